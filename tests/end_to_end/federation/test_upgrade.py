"""Upgrades between two rounds of a run: it goes on, and every round is charged once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.member.consent import Consents
from hush.deploy.shared import protocol
from hush.deploy.shared.protocol import PROTOCOL, Version
from hush.privacy.ledger.statement import export
from hush.types import HushError
from tests.support.live_federation import config
from tests.support.loopback import Loopback, edited
from tests.support.paths import ROOT
from tests.support.protocol_record import approve

NEWER = Version(PROTOCOL, "0" * 64)


class StoppedError(Exception):
    """In place of a crash after a saved round."""


def stopped(federation: Loopback, **more: Any) -> Path:
    """The directory of a run that stops after its first round."""
    out = federation.place.runs / "run"

    def stop(record: Any, left: Any) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        federation.coordinator().run(config(2, 3, **more), out, progress=stop)
    return out


def test_a_version_with_more_config_keys_resumes_a_run(tmp_path: Path) -> None:
    """They change the hash of the config, and have their defaults in the run. A changed key is another config."""
    federation = Loopback(tmp_path / "fed", config(2, 3))
    federation.join()
    out = stopped(federation)
    for name, key in (("manifest.json", "config_hash"), ("federation.json", "")):
        raw = json.loads((out / name).read_bytes())
        raw |= {key: "0" * 64} if key else {}
        del raw["config"]["max_weight"]  # a key that the earlier version did not have
        (out / name).write_text(json.dumps(raw))
    with pytest.raises(HushError, match="a different config"):
        federation.coordinator().run(config(2, 3, max_weight=0.9), out, resume=True)
    assert federation.coordinator().run(config(2, 3), out, resume=True).rounds == 3
    assert [len(charges) for charges in federation.charges().values()] == [3, 3]
    federation.leave()


@pytest.mark.parametrize("by", ["rules", "a person"])
def test_a_coordinator_that_is_upgraded_between_two_rounds_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    federation = Loopback(tmp_path / "fed", config(2, 3))
    for kit in (federation.place.path / "kits").iterdir():
        edited(kit / "policy.toml", auto_approve=str(by == "rules").lower())
    federation.join()
    approve(federation)
    out = stopped(federation)
    monkeypatch.setattr("hush.deploy.shared.protocol.own", lambda: NEWER)
    # Members as well, one of them restarted: what it agreed to is read from its kit.
    federation.join("m001")
    result = federation.coordinator().run(config(2, 3), out, resume=True)
    assert result.rounds == 3
    run = json.loads((out / "federation.json").read_bytes())["run"]
    for name, charges in federation.charges().items():
        assert charges == [(run, 1), (run, 2), (run, 3)], name
        agreed = json.loads((federation.place.path / "kits" / name / "runs" / f"{run}.json").read_text())
        assert agreed["code"] == str(NEWER)
        if by == "a person":
            (proposal,) = Consents(federation.place.path / "kits" / name).listed()
            assert proposal.preview.code != str(NEWER), "one approval, of the run as it was before"
    federation.leave()


def test_a_member_that_lists_code_is_asked_about_each_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its policy decides: until it lists the new hash, the upgraded coordinator gets nothing of it."""
    federation = Loopback(tmp_path / "fed", config(2, 3))
    policy = tmp_path / "fed" / "kits" / "m001" / "policy.toml"
    edited(policy, code=f'["{protocol.code_hash()}"]')
    federation.join()
    out = stopped(federation, quorum=2)
    monkeypatch.setattr("hush.deploy.shared.protocol.own", lambda: NEWER)
    with pytest.raises(HushError, match=r"m001: its policy.*does not list the code.*--resume"):
        federation.coordinator().run(config(2, 3, quorum=2), out, resume=True)
    assert [len(charges) for charges in federation.charges().values()] == [1, 1]
    edited(policy, code=f'["{protocol.code_hash()}", "{NEWER.code}"]')
    federation.join("m001")
    federation.coordinator().run(config(2, 3, quorum=2), out, resume=True)
    assert [len(charges) for charges in federation.charges().values()] == [3, 3]
    federation.leave()


def test_another_protocol_is_refused_in_one_line_and_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Loopback(tmp_path / "fed", config(2, 3))
    federation.join()
    out = stopped(federation)
    newer = Version(PROTOCOL + 1, "0" * 64)
    monkeypatch.setattr("hush.deploy.shared.protocol.own", lambda: newer)
    with pytest.raises(HushError, match="m000: its version of Hush and the coordinator's have different protocol"):
        federation.coordinator().run(config(2, 3), out, resume=True)
    reasons = [note.get("reason", "") for note in audit_log.read(tmp_path / "fed" / "kits" / "m000" / "audit.jsonl")]
    assert f"the coordinator has {newer.words}, this member protocol {PROTOCOL}" in reasons[-1]
    monkeypatch.undo()
    federation.coordinator().run(config(2, 3), out, resume=True)
    assert [len(charges) for charges in federation.charges().values()] == [3, 3]
    federation.leave()


PROGRAM = """
import sys
from pathlib import Path
from hush.deploy.admin import localhost
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.shared.protocol import own
from tests.support.live_federation import CLASSES, config

def stop(record, left):
    if sys.argv[2] == "stop":
        print("stopped with", own(), flush=True)
        raise SystemExit(3)

place = FederationFolder(Path(sys.argv[1]))
result = localhost.coordinator(place, CLASSES).run(
    config(2, 4), place.runs / "run", resume=sys.argv[2] == "resume", progress=stop
)
print("ended with", own(), flush=True)
"""


@pytest.mark.soak
def test_another_installed_version_resumes_a_run_of_processes(tmp_path: Path) -> None:
    """Two installations with different code and one protocol: the coordinator's process and one member are upgraded."""
    newer = tmp_path / "newer"
    shutil.copytree(ROOT / "src" / "hush", newer / "hush", ignore=shutil.ignore_patterns("__pycache__"))
    changed = newer / "hush" / "text.py"
    changed.write_text(changed.read_text() + "\n# a later version\n")
    place = localhost.make(tmp_path / "fed", config(2, 4))

    def environment(path: Path) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join((str(path), str(ROOT))), "PYTHONUNBUFFERED": "1"}

    def coordinate(path: Path, what: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(place.path), what], env=environment(path), cwd=tmp_path,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    running: list[subprocess.Popen[bytes]] = []

    def start(path: Path, log: str, words: str, *arguments: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-c", "from hush.cli.main import main; main()", "federation", *arguments]
        with (tmp_path / log).open("wb") as out:
            child = subprocess.Popen(program, stdout=out, stderr=out, env=environment(path), cwd=tmp_path)
        running.append(child)
        for _ in range(1200):
            if words in (tmp_path / log).read_text():
                return child
            assert child.poll() is None, (tmp_path / log).read_text()
            time.sleep(0.1)
        raise AssertionError((tmp_path / log).read_text())

    def join(path: Path, name: str, log: str) -> subprocess.Popen[bytes]:
        kit = place.path / "kits" / name
        return start(path, log, "is online", "join", str(kit), "--data", str(kit / "data.npz"))

    try:
        link = start(ROOT / "src", "serve.log", "ready at", "serve", str(place.path))
        join(ROOT / "src", "m000", "m000.log")
        second = join(ROOT / "src", "m001", "m001.log")
        status, said = coordinate(ROOT / "src", "stop")
        assert status == 3, said
        # The upgrade: the SuperLink, one member and the coordinator, which resumes the run.
        for child in (second, link):
            child.terminate()
            child.wait(120)
        start(newer, "serve2.log", "ready at", "serve", str(place.path))
        join(newer, "m001", "m001b.log")
        status, later = coordinate(newer, "resume")
        assert status == 0, later
        code = [re.search(r"with (\d+:[0-9a-f]{64})", text)[1] for text in (said, later)]
        assert code[0] != code[1], "the code differs"
    finally:
        for child in reversed(running):
            child.terminate()
            child.wait(120)
    rounds = [json.loads(line) for line in (place.runs / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [sorted(line["weights"]) for line in rounds] == [["0", "1"]] * 4
    for name in FederationFolder(place.path).members():
        charged = [r["round"] for r in export(place.path / "kits" / name / "ledger.db") if r["kind"] == "RESERVED"]
        assert charged == [1, 2, 3, 4]
