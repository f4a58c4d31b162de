"""Row 15: members killed in every round, the server killed again and again. The run ends, and the books agree."""

from __future__ import annotations

import heapq
import json
import math
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from safetensors.torch import load_file

from hush.config import parse
from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.agreement import AGREEMENT
from hush.deploy.shared.refusal import MEANING, RefusalCode
from hush.deploy.transport.flower import CoordinatorClient
from hush.privacy.ledger.statement import describe, export
from hush.seeds import rng
from hush.server.run_directory import read_json
from hush.types import HushError
from tests.support.fork_server import Child, ForkServer
from tests.support.live_federation import CLASSES

TOML = """
seed = 5
rounds = {rounds}
quorum = 2
[data]
name = "digits"
clients = {members}
[privacy]
budgets = 4.0
noise = "secure"
[local]
batch_size = 16
steps = 2
lr = 0.5
[recipe]
name = "dp-fedavg"
"""


WHICH = ("coordinator", "link", "coordinator", "link and coordinator", "coordinator")


class Scenario:
    """A federation of processes, and what befalls them."""

    def __init__(
        self, path: Path, fork_server: ForkServer, members: int, rounds: int, coordinated: bool = True, text: str = TOML
    ) -> None:
        text = text.replace("{members}", str(members)).replace("{rounds}", str(rounds))
        (path / "run.toml").write_text(text)
        self.config = parse(tomllib.loads(text))
        times = {"deadline": 60.0, "patience": 4.0, "gather": 90.0}
        self.place = localhost.make(path / "fed", self.config, times=times)
        self.file, self.out, self._server = path / "run.toml", self.place.runs / "run", fork_server
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.kills: dict[str, int] = defaultdict(int)
        self.struck: set[str] = set()
        self.early: set[str] = set()
        self.link = self.serve()
        self.link.wait_for("ready at", 120)
        self.members = {name: self.join(name) for name in self.place.members()}
        for child in self.members.values():
            child.wait_for("is online", 120)
        self.coordinator = self.coordinate() if coordinated else self.link

    def serve(self) -> Child:
        return self._server.start(["federation", "serve", self.place.path], self.place.server / "superlink.log")

    def join(self, name: str) -> Child:
        kit = self.place.path / "kits" / name
        return self._server.start(["federation", "join", kit, "--data", kit / "data.npz"], kit / "join.log")

    def coordinate(self, *more: str) -> Child:
        words = ["federation", "run", self.place.path, self.file, "--test", self.place.path / "test.npz"]
        words += ["--out", self.out, "--classes", CLASSES, *more]
        return self._server.start(words, self.place.server / "run.log")

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, len(self._due) + sum(self.kills.values()), what))

    def run_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def kill_member(self, name: str, back: float) -> None:
        """Kill a member; it is started again after a while."""

        def again() -> None:
            self.members[name] = self.join(name)
            self.struck.discard(name)

        if name not in self.struck:
            self.members[name].kill()
            self.struck.add(name)
            self.kills["member"] += 1
            if not (self.out / AGREEMENT).exists():
                self.early.add(name)
            self.later(back, again)

    def kill_server(self, which: str) -> None:
        """Kill the coordinator, the SuperLink, or both; they are started again at once."""
        if self.done():
            return
        if "link" in which:
            self.link.kill()
            self.link = self.serve()
        if "coordinator" in which:
            self.coordinator.kill()
            self.coordinator = self.coordinate("--resume")
        self.kills["server"] += 1
        self.kills[which] += 1

    def done(self) -> bool:
        return (self.out / "result.json").exists()

    def written(self) -> int:
        return (self.out / "rounds.jsonl").read_bytes().count(b"\n") if (self.out / "rounds.jsonl").exists() else 0


def kill_randomly(scenario: Scenario, server_kills: int, share: float, seconds: float) -> None:
    """In every round kill a share of the members, and in some of them the server, at random moments."""
    rounds, names = scenario.config.rounds, list(scenario.members)
    drawn = rng(1, "scenario")
    per_round = math.ceil(share * len(names))
    at = sorted(int(number) for number in drawn.permutation(rounds - 1)[:server_kills])
    # Blows fall within the shortest round so far, so that those meant for the last rounds do not come too late.
    began, seen, pace, last = time.monotonic(), -1, 0.2, math.inf
    while not scenario.done():
        assert time.monotonic() - began < seconds, scenario.coordinator.said()[-3000:]
        now = scenario.written()
        if now > seen:
            took, last = time.monotonic() - last, time.monotonic()
            pace = took if seen == 1 else min(pace, took) if seen > 1 else pace
            for number in range(max(0, seen + 1), now + 1):
                for chosen in drawn.permutation(len(names))[:per_round]:
                    kill = partial(scenario.kill_member, names[int(chosen)], 0.3)
                    scenario.later(pace * float(drawn.random()), kill)
                if number in at:
                    which = WHICH[at.index(number) % len(WHICH)]
                    scenario.later(pace * float(drawn.random()), partial(scenario.kill_server, which))
            seen = now
        scenario.run_due()
        for name, child in scenario.members.items():
            assert name in scenario.struck or child.alive(), child.said()
        if not scenario.coordinator.alive() and not scenario.done():
            # It gave up by itself, as it does when the SuperLink has forgotten its run.
            assert "Traceback" not in scenario.coordinator.said(), scenario.coordinator.said()
            scenario.coordinator = scenario.coordinate("--resume")
        time.sleep(0.05)


def check_books(place: FederationFolder, out: Path, rounds: int, early: set[str]) -> dict[str, Any]:
    """What every ledger says against what the coordinator wrote down, message by message.

    `early` are the members that were struck before the run had begun: only these may be missing from it.
    """
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) == rounds or "remaining budget" in result["ended"], result["ended"]
    heads: dict[tuple[str, int], set[str]] = defaultdict(set)
    for note in audit_log.read(place.server / "audit.jsonl"):
        if note["event"] == "update":
            heads[note["member"], note["round"]].add(note["head"])
    # Asked again after a crash, a member sends what it sent before: one charge, one answer.
    assert all(len(found) == 1 for found in heads.values())
    burned = 0
    # Numbers are of those who took part: a member that was down when it was asked at first has none.
    numbers = {fact["name"]: client for client, fact in enumerate(read_json(out / AGREEMENT)["facts"])}
    assert set(place.members()) - set(numbers) <= early
    for name in place.members():
        path = place.path / "kits" / name / "ledger.db"
        described, rows = describe(path), list(export(path))
        assert described["chain_ok"]
        assert described["spent"] <= described["policy"]["epsilon"] + 1e-9
        charged = [row["round"] for row in rows if row["kind"] == "RESERVED"]
        lost = [row["round"] for row in rows if row["kind"] == "BURNED"]
        live = {number: charged.count(number) - lost.count(number) for number in charged}
        assert set(live.values()) <= {0, 1}
        client = numbers.get(name)
        seen = {line["round"] for line in lines if client in line["charged"]}
        assert seen <= {number for number, charges in live.items() if charges}
        known = {f"{row['seq']}:{row['hash']}" for row in rows}
        assert all(found <= known for (who, _), found in heads.items() if who == name)
        assert client is None or result["guarantees"][client]["epsilon_spent"] <= described["spent"] + 1e-9
        burned += len(lost)
    assert all(bool(value.isfinite().all()) for value in load_file(out / "model.safetensors").values())
    answered = [len(line["weights"]) for line in lines]
    return {"rounds": len(lines), "burned": burned, "answered": sum(answered) / len(answered), "least": min(answered)}


@pytest.mark.parametrize(
    ("members", "rounds", "server_kills", "seconds"),
    [(4, 4, 2, 240.0), pytest.param(20, 50, 20, 2400.0, marks=pytest.mark.soak)],
)
def test_members_and_servers_are_killed_and_the_books_agree(
    tmp_path: Path, parent: ForkServer, members: int, rounds: int, server_kills: int, seconds: float
) -> None:
    with parent.tidy() as fork_server:
        scenario = Scenario(tmp_path, fork_server, members, rounds)
        began = time.monotonic()
        kill_randomly(scenario, server_kills, 0.3, seconds)
        took = time.monotonic() - began
    figures = check_books(scenario.place, scenario.out, rounds, scenario.early)
    print(f"{members} members, {took:.0f} s, {dict(scenario.kills)}, {figures}")
    assert scenario.kills["server"] == server_kills
    assert scenario.kills["member"] >= 0.2 * members * figures["rounds"]
    assert figures["rounds"] >= rounds - 2


def test_a_superlink_that_dies_for_good_is_named_and_nothing_is_lost(tmp_path: Path, parent: ForkServer) -> None:
    """The error says how to go on; what was charged is not charged again."""
    with parent.tidy() as fork_server:
        scenario = Scenario(tmp_path, fork_server, 2, 3, coordinated=False)
        hub = CoordinatorClient(
            scenario.place.settings.address, scenario.place.ca(), scenario.place.secret(), patience=1.0
        )
        first = localhost.coordinator(scenario.place, CLASSES, hub)
        with pytest.raises(HushError, match=r"cannot be reached.*resume with the same command and --resume"):
            first.run(scenario.config, scenario.out, progress=lambda record, left: scenario.link.kill())
        assert scenario.written() == 1
        scenario.link = scenario.serve()
        result = localhost.coordinator(scenario.place, CLASSES).run(scenario.config, scenario.out, resume=True)
    assert result.rounds == 3
    for name, card in zip(scenario.place.members(), result.guarantees, strict=True):
        described = describe(scenario.place.path / "kits" / name / "ledger.db")
        assert (described["charges"]["SENT"], sum(described["charges"].values())) == (3, 3)
        assert described["spent"] == pytest.approx(card.epsilon_spent, rel=1e-9)


def test_a_budget_that_ends_in_the_middle(tmp_path: Path, parent: ForkServer) -> None:
    """Equal noise for all: who has a small budget leaves, the run goes on, and a restart does not let it back in."""
    rule = '[recipe]\nname = "robust-hdp"\nprotect = { rule = "dp-sgd", spread = "equal-noise" }'
    with parent.tidy() as fork_server:
        text = TOML.replace('[recipe]\nname = "dp-fedavg"', rule).replace("budgets = 4.0", "budgets = [3.6, 4.0, 4.0]")
        scenario = Scenario(tmp_path, fork_server, 3, 6, coordinated=False, text=text)
        gone: list[int] = []

        def watch(record: Any, left: Any) -> None:
            if 0 in record.refused and not gone:
                gone.append(record.round)
                scenario.kill_member("m000", 0.0)
                scenario.run_due()
                scenario.members["m000"].wait_for("is online", 60)

        result = localhost.coordinator(scenario.place, CLASSES).run(scenario.config, scenario.out, progress=watch)
    lines = [json.loads(line) for line in (scenario.out / "rounds.jsonl").read_text().splitlines()]
    assert result.rounds == 6
    assert 1 < gone[0] < 6
    assert all(("0" in line["weights"]) == (line["round"] < gone[0]) for line in lines)
    described = describe(scenario.place.path / "kits" / "m000" / "ledger.db")
    assert sum(described["charges"].values()) == sum(0 in line["charged"] for line in lines) == gone[0] - 1
    assert described["spent"] == pytest.approx(result.guarantees[0].epsilon_spent, rel=1e-6)
    assert lines[gone[0] - 1]["refused"]["0"] == MEANING[RefusalCode.BUDGET]


def test_a_member_that_is_revoked_in_the_middle_is_out_and_the_run_goes_on(tmp_path: Path, parent: ForkServer) -> None:
    with parent.tidy() as fork_server:
        scenario = Scenario(tmp_path, fork_server, 3, 4, coordinated=False)

        def revoke(record: Any, left: Any) -> None:
            if record.round == 1:
                scenario.place.revoke("m002")

        result = localhost.coordinator(scenario.place, CLASSES).run(scenario.config, scenario.out, progress=revoke)
        scenario.members["m002"].ended(20)
        assert "this key is refused: not registered, or revoked" in scenario.members["m002"].said()
        scenario.join("m002").ended(20)
    lines = [json.loads(line) for line in (scenario.out / "rounds.jsonl").read_text().splitlines()]
    assert result.rounds == 4
    assert sorted(lines[0]["weights"]) == ["0", "1", "2"]
    assert [sorted(line["weights"]) for line in lines[1:]] == [["0", "1"]] * 3
    assert all(line["refused"].get("2") == "revoked" for line in lines[1:2])
    described = describe(scenario.place.path / "kits" / "m002" / "ledger.db")
    assert sum(described["charges"].values()) == 1
    assert described["spent"] == pytest.approx(result.guarantees[2].epsilon_spent, rel=1e-6)
