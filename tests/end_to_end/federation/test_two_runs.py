"""Two runs of one federation at once: no answer that a member was charged for is turned away."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.config import parse
from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder, create
from hush.privacy.ledger.statement import export
from hush.seeds import rng
from tests.support.fork_server import Child, ForkServer
from tests.support.live_federation import CLASSES

MEMBERS = 2
TOML = """
seed = 5
rounds = 3
quorum = 2
[data]
name = "digits"
clients = 2
[model]
name = "mlp"
hidden = 8
[privacy]
budgets = 1.0
noise = "secure"
[local]
batch_size = 64
steps = 2
lr = 0.1
[recipe]
name = "dp-fedavg"
"""


class Pair:
    """A federation whose coordinator runs two configs at the same time."""

    def __init__(self, path: Path, fork_server: ForkServer) -> None:
        (path / "run.toml").write_text(TOML)
        self.file, self._fork_server = path / "run.toml", fork_server
        self.place = localhost.make(
            path / "fed", parse(tomllib.loads(TOML)), times={"deadline": 60.0, "patience": 20.0}
        )
        for policy in self.place.path.glob("kits/*/policy.toml"):
            policy.write_text(policy.read_text().replace("# lifetime = 1.0", "lifetime = 1000.0"))
        fork_server.start(["federation", "serve", self.place.path], path / "serve.log").wait_for("ready at", 120)
        for name in self.place.members():
            kit = self.place.path / "kits" / name
            words = ["federation", "join", kit, "--data", kit / "data.npz"]
            fork_server.start(words, path / f"{name}.log").wait_for("is online", 120)

    def start(self, name: str, hidden: int) -> Child:
        words = ["federation", "run", self.place.path, self.file, "--test", self.place.path / "test.npz"]
        words += ["--out", self.place.runs / name, "--classes", CLASSES, "--set", f"model.hidden={hidden}"]
        return self._fork_server.start(words, self.place.path / f"{name}.log")

    def check(self, runs: int) -> None:
        """Every round of every run had an answer from all, and every charge was sent."""
        for name in [path.name for path in self.place.runs.iterdir()]:
            lines = [json.loads(line) for line in (self.place.runs / name / "rounds.jsonl").read_text().splitlines()]
            assert [sorted(line["weights"]) for line in lines] == [["0", "1"]] * 3, (
                name,
                [line["refused"] for line in lines],
            )
        for name in self.place.members():
            kit = self.place.path / "kits" / name
            rows = list(export(kit / "ledger.db"))
            charged = [row["seq"] for row in rows if row["kind"] == "RESERVED"]
            assert len(charged) == sum(row["kind"] == "SENT" for row in rows) == 3 * runs
            assert not [note for note in audit_log.read(kit / "audit.jsonl") if note["event"] == "not sent"]
            assert FederationFolder(self.place.path).heads()[name].startswith(f"{charged[-1]}:"), (
                "the newest of both runs"
            )


def test_an_older_head_replaces_no_newer_one(tmp_path: Path) -> None:
    """What a coordinator read when its run began may be behind what another has seen meanwhile."""
    place = create(tmp_path / "fed", ["a", "b"], "localhost:1")
    place.keep_heads({"a": f"9:{'f' * 64}", "b": f"2:{'1' * 64}"})
    place.keep_heads({"a": f"10:{'0' * 64}"})
    place.keep_heads({"a": f"9:{'f' * 64}", "b": ""})
    assert place.heads() == {"a": f"10:{'0' * 64}", "b": f"2:{'1' * 64}"}


@pytest.mark.parametrize("pairs", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_two_runs_of_different_sizes_end_and_lose_nothing(tmp_path: Path, parent: ForkServer, pairs: int) -> None:
    drawn = rng(1, "pairs")
    with parent.tidy() as fork_server:
        pair = Pair(tmp_path, fork_server)
        for number in range(pairs):
            sizes = (3000, 8) if number == 0 else tuple(int(size) for size in 2 ** drawn.uniform(3, 12, size=2))
            both = [pair.start(f"run{number}-{at}", size) for at, size in enumerate(sizes)]
            for child in both:
                child.ended(120)
                assert "hush: error" not in child.said(), child.said()
            pair.check(2 * (number + 1))
