"""What reaches the disk before a byte is sent, and what happens when the disk refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from hush.privacy.ledger import Ledger
from hush.types import HushError, Policy
from tests.support.ledger_checks import JobServer, check, check_finished, fresh
from tests.support.ledger_jobs import COSTS, pending
from tests.support.paths import environment, helper

AMPLE = Policy(5.0, 1e-5)
CALL = re.compile(r"^(?:\d+ +)?(\w+)\((?:(\d+)<([^>]*)>)?(.*)$")


def trace(log: Path, options: list[str], job: str, **args: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    wanted = json.dumps({"job": job, "args": args})
    command = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-o",
        str(log),
        *options,
        *helper("ledger_jobs"),
        "--once",
        wanted,
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    return done


def unsynced_sends(log: Path) -> tuple[int, int, Counter[int]]:
    """Releases, those with bytes of the ledger still on their way to the disk, and how often a charge was synced."""
    releases = unsafe = syncs = 0
    dirty = False
    per_charge: Counter[int] = Counter()
    for line in log.read_text().splitlines():
        found = CALL.match(line)
        if found is None or found[3] is None:
            continue
        call, file, rest = found[1], found[3], found[4]
        if file.endswith("client.ledger-wal"):
            dirty = call == "pwrite64" or (dirty and call not in ("fdatasync", "fsync"))
            syncs += call in ("fdatasync", "fsync")
        elif file == "/dev/null" and '"round begins"' in rest:
            syncs = 0
        elif file == "/dev/null" and '"trained"' in rest:
            per_charge[syncs] += 1
        elif file.endswith("/witness") and call == "write":
            releases += 1
            unsafe += dirty
    return releases, unsafe, per_charge


def work_under_trace(directory: Path, synchronous: str, rounds: int) -> tuple[int, int, Counter[int]]:
    path, witness = fresh(directory / synchronous, AMPLE)
    log = directory / f"{synchronous}.log"
    calls = ["-e", "trace=pwrite64,write,fdatasync,fsync"]
    done = trace(log, calls, "marked", path=path, witness=witness, rounds=rounds, synchronous=synchronous)
    assert done.returncode == 0, done.stderr
    return unsynced_sends(log)


def test_a_charge_is_synced_once_and_nothing_is_sent_before(tmp_path: Path) -> None:
    releases, unsafe, per_charge = work_under_trace(tmp_path, "FULL", 200)
    assert (releases, unsafe) == (200, 0)
    # The first charge also starts the log, and another may find the log full: these sync more.
    assert per_charge[1] >= 195
    assert sum(per_charge.values()) == 200
    assert per_charge[0] == 0


def test_a_ledger_that_syncs_less_is_found_out(tmp_path: Path) -> None:
    releases, unsafe, per_charge = work_under_trace(tmp_path, "NORMAL", 20)
    assert releases == 20
    assert unsafe == 20
    assert per_charge[0] >= 18


def fail_under_trace(directory: Path, inject: str, errors: int) -> list[str]:
    """The errors of a client that works on until it has met that many; what it released is charged."""
    path, witness = fresh(directory / "0", AMPLE)
    out = directory / "out.json"
    options = ["-e", f"trace={inject.split(':')[0]}", "-e", f"inject={inject}"]
    job = {"path": path, "witness": witness, "rounds": 5000, "errors": errors, "out": str(out)}
    done = trace(directory / "log", options, "stubborn", **job)
    assert done.returncode == 0, done.stderr
    _, released = check(path, witness)
    assert released > 0
    return list(json.loads(out.read_text()))


def test_fsync_errors(tmp_path: Path) -> None:
    seen = fail_under_trace(tmp_path, "fdatasync:error=EIO:when=3+4", 100)
    assert len(seen) == 100
    assert all("disk I/O error" in line and "\n" not in line for line in seen), seen


def test_disk_full(tmp_path: Path) -> None:
    seen = fail_under_trace(tmp_path, "pwrite64:error=ENOSPC:when=8+29", 20)
    assert len(seen) == 20
    assert all("full" in line and "\n" not in line for line in seen), seen


def test_no_file_may_grow(tmp_path: Path) -> None:
    """A real limit that needs no rights and no tracing: the kernel refuses to let a file grow."""
    job_server = JobServer()
    path, witness = fresh(tmp_path / "0")
    errors = 0
    for number in range(20):
        out = tmp_path / "out.json"
        status = job_server.run("cramped", path=path, witness=witness, rounds=1000, room=4096 * number, out=str(out))
        assert status == 0
        errors += len(json.loads(out.read_text()))
        check(path, witness)
        if number % 5 == 4:
            path, witness = fresh(tmp_path / f"{number}")
    assert errors == 20
    assert job_server.run("client", path=path, witness=witness, rounds=1000) == 0
    check_finished(path, witness)
    job_server.close()


def test_after_an_error_of_the_disk_a_ledger_does_nothing_more(tmp_path: Path) -> None:
    path, _ = fresh(tmp_path / "0")
    errors = [OSError(5, "Input/output error")]

    def failpoint(point: str) -> None:
        if point == "seal committed" and errors:
            raise errors.pop()

    with Ledger.open(path, failpoint=failpoint) as ledger:
        receipt = ledger.reserve(COSTS, "", 1)
        with pytest.raises(HushError, match="Input/output error; nothing was released"):
            ledger.seal(receipt, b"bytes")
        for refused in (partial(pending, ledger), ledger.spent, lambda: ledger.reserve(COSTS, "", 2)):
            with pytest.raises(HushError, match=r"client.ledger: stopped by an earlier error .*; open it again"):
                refused()
    with Ledger.open(path) as ledger:
        assert pending(ledger) == [(receipt, b"bytes")]
