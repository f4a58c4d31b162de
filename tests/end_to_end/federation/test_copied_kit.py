"""Copies of a member's kit, with and without its node file: the first process keeps its place, and both learn of it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder
from tests.support.fork_server import Child, ForkServer
from tests.support.live_federation import CLASSES, config

SMALL = 8  # rounds: enough to outlast a copy that tries to come in


def joined(fork_server: ForkServer, kit: Path, log: Path, witness: str = "") -> Child:
    changes = {"HUSH_WITNESS": witness} if witness else {}
    return fork_server.start(["federation", "join", kit, "--data", kit / "data.npz"], log, environment=changes)


def copied(place: FederationFolder, number: int, with_node: bool) -> Path:
    """A copy of the first member's kit, taken while the member is running, as if for another machine.

    There is no newer state of its ledger there, which would give it away.
    """
    kit = place.path / "kits" / "m000"
    copy = place.path / f"copy{number}"
    shutil.copytree(kit, copy)
    shutil.copytree(os.environ["HUSH_WITNESS"], place.path / f"witness{number}")
    if not with_node:
        (copy / "node").unlink()
    return copy


@pytest.mark.parametrize("copies", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_copied_kit_is_refused_and_both_are_notified(tmp_path: Path, parent: ForkServer, copies: int) -> None:
    with parent.tidy() as fork_server:
        place = localhost.make(tmp_path / "fed", config(2, SMALL), times={"deadline": 60.0, "gather": 60.0})
        kits = place.path / "kits"
        serving = fork_server.start(["federation", "serve", place.path], tmp_path / "serve.log")
        serving.wait_for("ready at", 60)
        first = {name: joined(fork_server, kits / name, tmp_path / name) for name in ("m000", "m001")}
        for child in first.values():
            child.wait_for("is online", 60)
        strangers: list[Child] = []

        def intrude(*_: object) -> None:
            if not strangers:
                for number in range(copies):
                    path = copied(place, number, with_node=number % 2 == 0)
                    log, witness = tmp_path / f"{number}.log", str(place.path / f"witness{number}")
                    strangers.append(joined(fork_server, path, log, witness))

        result = localhost.coordinator(place, CLASSES).run(config(2, SMALL), place.runs / "run", progress=intrude)
        for stranger in strangers:
            stranger.ended(60)
            assert "this key is refused: in use" in stranger.said(), stranger.said()
            assert "is online" not in stranger.said()
        first["m000"].wait_for("was the kit copied?", 20)
        serving.wait_for("m000: a second process tried to use its key", 20)
        assert "copied" not in first["m001"].said()
        assert result.rounds == SMALL
        assert all(guarantee.rounds == SMALL for guarantee in result.guarantees)
        for path, who in ((place.server / "audit.jsonl", "m000"), (kits / "m000" / "audit.jsonl", None)):
            notes = [note for note in audit_log.read(path) if note["event"] == "copied"]
            assert notes
            assert all(note.get("member") == who for note in notes)
        # A crash is no copy: the member comes back within seconds, and the copy that it left in its wake does not.
        first["m000"].kill()
        began = time.monotonic()
        again = joined(fork_server, kits / "m000", tmp_path / "again.log")
        again.wait_for("is online", 20)
        assert time.monotonic() - began < 15
        late = joined(fork_server, place.path / "copy0", tmp_path / "late.log", str(place.path / "witness0"))
        late.ended(60)
        assert "this key is refused: in use" in late.said()
