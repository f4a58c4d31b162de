"""Checks of `ledger_jobs`: start its processes, and compare the ledgers that they leave with what was sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from hush.privacy.ledger import Ledger, ledger, totals
from hush.privacy.ledger.book import READY, SENT, Book
from hush.types import Policy
from tests.support.ledger_jobs import COSTS, POLICY, pending
from tests.support.paths import environment, helper


class JobServer:
    """A process that forks the clients, one for each job."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            helper("ledger_jobs"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.hello = self._answer()

    def start(self, job: str, **args: Any) -> int:
        return int(self._ask({"job": job, "args": args})["pid"])

    def wait(self, pid: int) -> int:
        return int(self._ask({"wait": pid})["status"])

    def kill(self, pid: int) -> int:
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def run(self, job: str, **args: Any) -> int:
        return self.wait(self.start(job, **args))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


def fresh(directory: Path, policy: Policy = POLICY) -> tuple[str, str]:
    """A new ledger and the name of its witness."""
    directory.mkdir()
    path = directory / "client.ledger"
    Ledger.create(path, "hospital", policy).close()
    return str(path), str(directory / "witness")


def check(path: str, witness: str) -> tuple[Book, int]:
    """Spent >= released, never above the budget, and every release exactly what was sealed; how many there were."""
    _, book = ledger.inspect(path)
    charges = {charge.row.head: charge for charge in book.charges.values()}
    released: dict[str, str] = {}
    for line in Path(witness).read_text().splitlines() if Path(witness).exists() else ():
        seen = json.loads(line)
        assert released.setdefault(seen["head"], seen["sha256"]) == seen["sha256"], "other bytes were sent again"
    for head, digest in released.items():
        assert head in charges, "released without a charge"
        assert charges[head].state in (READY, SENT), "released without a seal"
        assert charges[head].sha256 == digest, "released other bytes than were sealed"
    policy = book.terms.policy
    spent = totals.epsilon(book.totals, policy, "pld")
    assert totals.epsilon(totals.add_costs({}, COSTS * len(released)), policy, "pld") <= spent <= policy.epsilon
    assert sum(charge.state == SENT for charge in charges.values()) <= len(released) <= len(charges)
    return book, len(released)


def check_finished(path: str, witness: str) -> None:
    """After an undisturbed end everything that was sealed was sent, and the budget is used up."""
    book, released = check(path, witness)
    assert all(charge.state != READY for charge in book.charges.values())
    assert sum(charge.state == SENT for charge in book.charges.values()) == released
    with Ledger.open(path) as reopened:
        assert not reopened.affords(COSTS)
        assert pending(reopened) == []
