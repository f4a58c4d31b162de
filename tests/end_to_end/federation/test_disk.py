"""Real disks that are full, ports that are taken, certificates that are gone: said on the right side, nothing lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import localhost
from hush.deploy.admin.folders import FederationFolder, create
from hush.privacy.ledger.statement import describe
from hush.types import HushError
from tests.support.fork_server import ForkServer
from tests.support.live_federation import CLASSES, config


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A disk of that size under a folder, and a file `ballast` to fill it with."""
    path.mkdir(parents=True, exist_ok=True)
    kept = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hush", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine allows no mounts: {done.stderr.strip()}")
    try:
        for name, content in kept.items():
            (path / name).write_bytes(content)
            (path / name).chmod(0o600)
        yield path / "ballast"
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def fill(ballast: Path) -> None:
    with ballast.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"\0" * 4096)
        except OSError:
            return


def start(place: FederationFolder, fork_server: ForkServer) -> dict[str, Any]:
    fork_server.start(["federation", "serve", place.path], place.path / "link.log").wait_for("ready at", 60)
    joined = {name: join(place, fork_server, name) for name in place.members()}
    for child in joined.values():
        child.wait_for("is online", 60)
    return joined


def join(place: FederationFolder, fork_server: ForkServer, name: str) -> Any:
    kit = place.path / "kits" / name
    words = ["federation", "join", kit, "--policy", kit / "policy.toml", "--data", kit / "data.npz"]
    return fork_server.start(words, place.path / f"{name}.log")


TIMES = {"deadline": 60.0, "patience": 3.0, "gather": 60.0}


@pytest.mark.soak
def test_a_member_whose_disk_is_full_stops_and_loses_nothing(tmp_path: Path, parent: ForkServer) -> None:
    run = config(3, 5, quorum=2)
    place = localhost.make(tmp_path / "fed", run, times=TIMES)
    kit, out = place.path / "kits" / "m002", place.runs / "run"
    with parent.tidy() as fork_server, small_disk(kit, "2m") as ballast:
        joined = start(place, fork_server)

        def watch(record: Any, left: Any) -> None:
            if record.round == 1:
                fill(ballast)
            if record.round == 3:
                assert not joined["m002"].alive()
                assert "No space left on device" in joined["m002"].said() or "disk is full" in joined["m002"].said()
                ballast.unlink()
                join(place, fork_server, "m002").wait_for("online at", 60)

        localhost.coordinator(place, CLASSES).run(run, out, progress=watch)
        described = describe(kit / "ledger.db")
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    there = [line["round"] for line in lines if "2" in line["weights"]]
    assert (there[0], there[-1]) == (1, 5)
    assert 2 not in there
    assert described["chain_ok"]
    assert sum(described["charges"].values()) >= len(there)
    assert described["spent"] <= described["policy"]["epsilon"] + 1e-9


@pytest.mark.soak
def test_a_coordinator_whose_disk_is_full_says_so_and_goes_on_later(tmp_path: Path, parent: ForkServer) -> None:
    run = config(2, 4)
    place = localhost.make(tmp_path / "fed", run, times=TIMES)
    out = place.runs / "run"
    with parent.tidy() as fork_server, small_disk(out, "256k") as ballast:
        start(place, fork_server)
        # Rounds are saved while there is room; the file that fills the disk lies beside the run directory's.
        out_dir = out / "here"
        with pytest.raises(HushError, match=r"No space left on device.*--resume"):
            localhost.coordinator(place, CLASSES).run(run, out_dir, progress=lambda record, left: fill(ballast))
        ballast.unlink()
        result = localhost.coordinator(place, CLASSES).run(run, out_dir, resume=True)
    assert result.rounds == 4
    for name, card in zip(place.members(), result.guarantees, strict=True):
        described = describe(place.path / "kits" / name / "ledger.db")
        assert (described["charges"]["SENT"], sum(described["charges"].values())) == (4, 4)
        assert described["spent"] == pytest.approx(card.epsilon_spent, rel=1e-9)


def test_a_taken_port_and_a_missing_certificate_are_named_by_serve(tmp_path: Path, parent: ForkServer) -> None:
    with parent.tidy() as fork_server, socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        place = create(tmp_path / "fed", ["a"], f"127.0.0.1:{port}")
        child = fork_server.start(["federation", "serve", place.path], tmp_path / "busy.log")
        child.ended(30)
        assert f"127.0.0.1:{port}: cannot listen on this address" in child.said()
        (place.server / "server.key").unlink()
        child = fork_server.start(["federation", "serve", place.path], tmp_path / "none.log")
        child.ended(30)
        assert "server.key: not found; expected a certificate" in child.said()
        assert "Traceback" not in child.said()
