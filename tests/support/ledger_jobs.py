"""Clients in processes of their own that work with a ledger file until something kills them.

As a script it imports what they need once and then forks a process for every job it reads, so that a thousand of them
cost seconds; with `--once` it does one job itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError, Ledger, book, ledger, totals
from hush.types import HushError, Policy, Receipt

RUN = "spring"
COSTS = (Cost(what="model update", kind="gaussian", noise=100.0, steps=5),)
POLICY = Policy(0.5, 1e-5)
FAILED = 9  # the exit status of a process that ended itself at a failpoint


def release(witness: str, receipt: Receipt, payload: bytes) -> None:
    """Send: from here on the bytes are known outside."""
    line = {"head": receipt.head, "round": receipt.round, "sha256": hashlib.sha256(payload).hexdigest()}
    file = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.fsync(file)
    os.close(file)


def pending(opened: Ledger) -> list[tuple[Receipt, bytes]]:
    """The sealed answers that are not recorded as sent, oldest first."""
    charges = [charge.row for charge in opened._fresh().charges.values() if charge.state == book.READY]
    return [kept for row in charges if (kept := opened.sealed(row.run, row.round)) is not None]


def work(opened: Ledger, witness: str, rounds: int, size: int = 2000, at: Callable[[str], object] = str) -> None:
    """What a client does with its ledger: resend what is pending, then one round after the other."""
    for receipt, payload in pending(opened):
        release(witness, receipt, payload)
        at("resent")
        opened.sent(receipt)
    for number in range(1, rounds + 1):
        attempt = opened.next_attempt(RUN, number)
        if not attempt:
            continue
        at("round begins")
        opened.acknowledge(RUN, number)
        receipt = opened.reserve(COSTS, RUN, number, attempt)
        payload = os.urandom(size)
        at("trained")
        opened.seal(receipt, payload)
        at("sealed")
        release(witness, receipt, payload)
        at("released")
        opened.sent(receipt)
    opened.acknowledge(RUN)


def client(path: str, witness: str, rounds: int, point: str = "", nth: int = 1, size: int = 2000) -> None:
    """Work to the end, or up to the nth time that a failpoint is passed."""
    passed = 0

    def failpoint(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == nth:
            os._exit(FAILED)

    with contextlib.suppress(BudgetSpentError), Ledger.open(path, wait=30, failpoint=failpoint) as opened:
        work(opened, witness, rounds, size, at=failpoint)


def hasty(path: str, witness: str, rounds: int) -> None:
    """A wrong client: it sends first and charges afterwards."""

    def first(name: str) -> None:
        if name == "round begins":
            release(witness, Receipt("hasty", 0, 0), os.urandom(8))

    with Ledger.open(path) as opened:
        work(opened, witness, rounds, at=first)


def forgetful(path: str, witness: str, rounds: int) -> None:
    """A wrong client: it trains again where it should resend."""
    with Ledger.open(path) as opened:
        for receipt, _ in pending(opened):
            release(witness, receipt, os.urandom(8))


def spender(path: str, run: str, rounds: int, noise: float, out: str) -> None:
    """Charge as many rounds as there is budget for, against others who do the same."""
    heads = []
    costs = [Cost(what="model update", kind="gaussian", noise=noise, steps=1)]
    with Ledger.open(path, wait=120) as opened, contextlib.suppress(BudgetSpentError):
        for number in range(1, rounds + 1):
            receipt = opened.reserve(costs, run, number)
            heads.append(receipt.head)
            time.sleep(0.002)  # SQLite's lock is not fair: let the others in
    Path(out).write_text(json.dumps(heads))


def marked(path: str, witness: str, rounds: int, synchronous: str) -> None:
    """Work with marks that a trace of system calls shows."""
    ledger._SYNCHRONOUS = synchronous
    null = os.open(os.devnull, os.O_WRONLY)
    with Ledger.open(path) as opened:
        work(opened, witness, rounds, at=lambda name: os.write(null, name.encode()))


def stubborn(path: str, witness: str, rounds: int, errors: int, out: str) -> None:
    """Work on while the disk fails: after each error open the ledger again."""
    seen: list[str] = []
    while len(seen) < errors:
        try:
            with Ledger.open(path, wait=30) as opened:
                work(opened, witness, rounds)
                break
        except BudgetSpentError:
            break
        except HushError as error:
            seen.append(str(error))
    Path(out).write_text(json.dumps(seen))


def cramped(path: str, witness: str, rounds: int, room: int, out: str) -> None:
    """Work on a disk on which no file can grow beyond its largest size by more than `room` bytes."""
    largest = max(file.stat().st_size for file in Path(path).parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, largest + room))
    stubborn(path, witness, rounds, 1, out)


JOBS: Mapping[str, Callable[..., None]] = {
    job.__name__: job for job in (client, hasty, forgetful, spender, marked, stubborn, cramped)
}


def run(job: str, args: dict[str, Any]) -> int:
    try:
        JOBS[job](**args)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Fork a process for every line `{"job", "args"}`, and say how one ended for every line `{"wait"}`."""
    totals.epsilon(totals.add_costs({}, COSTS), POLICY, "pld")
    print(json.dumps({"torch": "torch" in sys.modules}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        if "wait" in wanted:
            answer = {"status": os.waitstatus_to_exitcode(os.waitpid(wanted["wait"], 0)[1])}
        else:
            pid = os.fork()
            if pid == 0:
                os._exit(run(wanted["job"], wanted["args"]))
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        wanted = json.loads(sys.argv[2])
        sys.exit(run(wanted["job"], wanted["args"]))
    serve()
