"""The page on operations: its commands, in order, in one federation with one member."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin.processes import free_port
from tests.support.code_blocks import blocks
from tests.support.fork_server import ForkServer
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "operations.md"
RUN = """
rounds = 2
[local]
batch_size = 20
lr = 0.3
[recipe]
name = "dp-fedavg"
"""


def commands() -> list[list[str]]:
    found = [line for block in blocks(PAGE) if "test_operations_page" in block.note for line in block.code.splitlines()]
    return [words for line in found if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, parent: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    for name in ("rows.csv", "test.csv"):
        rows = "".join(f"{n % 7 + n / 1000},{n % 3},{int(n % 7 > 3)}\n" for n in range(200))
        (tmp_path / name).write_text(f"a,b,label\n{rows}")
    said: dict[str, str] = {}
    with parent.tidy() as fork_server:

        def done(words: list[str], status: int = 0) -> str:
            child = fork_server.start(words, tmp_path / f"{len(fork_server.children)}.log", cwd=tmp_path)
            assert child.status(240) == status, f"{words}: {child.said()}"
            return child.said()

        address = f"127.0.0.1:{free_port()}"
        done(["federation", "init", "study", "--members", "north", "--address", address])
        shutil.move(tmp_path / "study" / "kits" / "north", tmp_path / "north")
        shutil.copy(tmp_path / "test.csv", tmp_path / "study" / "test.csv")
        policy = (tmp_path / "north" / "policy.toml").read_text()
        policy = policy.replace("auto_approve = false", "auto_approve = true").replace('["robust-hdp"]', '["any"]')
        (tmp_path / "north" / "policy.toml").write_text(policy)
        for name in ("study", "north"):
            done(["federation", "doctor", name, "--offline"])
            done(["federation", "doctor", name, "--alive"], 1)
        server = fork_server.start(["federation", "serve", "study"], tmp_path / "serve.log", cwd=tmp_path)
        server.wait_for("ready at", 120)
        join = ["federation", "join", "north", "--data", "rows.csv"]
        fork_server.start(join, tmp_path / "join.log", cwd=tmp_path).wait_for("is online", 120)
        for words in commands():
            if words[2] == "work":
                words = [*words, "--until-empty"]
            # The second run is the one that waits; and a ledger is known on the machine where it was copied.
            words = ["2" if word == "3" else word for word in words]
            status = 2 if words[1] == "ledger" else 0
            if words[2:4] == ["queue", "study"] and len(words) == 4:
                done(["federation", "run", "study", "run.toml", "--queue"])
            said[" ".join(words[1:4])] = done(words[1:], status)
    assert "registered, and this member is online" in said["federation doctor north"]
    assert "hush federation serve answers" in said["federation doctor study"]
    assert "renewed, valid until" in server.said()
    assert "coordinator study" in said["federation backup study"]
    assert "member north" in said["federation restore north.tar.gz"]
    assert "hush ledger adopt restored/north/ledger.db" in said["federation restore north.tar.gz"]
    assert "already registered on this machine" in said["ledger adopt restored/north/ledger.db"]
    assert "run run is finished" in said["federation work study"]
    assert "waiting" in said["federation queue study"]
