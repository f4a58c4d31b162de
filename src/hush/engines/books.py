"""The ledgers of a run's clients: in memory for one simulation, or files that outlive it.

With files, a second run on the same data goes on from what is spent, and the protocol is the one of a deployment:
reserve, train, seal, send. An answer that was sealed before a crash is sent again as the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors.torch import load, save

from hush.privacy.cost import Cost
from hush.privacy.ledger import Ledger
from hush.types import Accountant, HushError, Policy, Receipt, Task, Update


class Books:
    """The ledgers of all clients, in order of their numbers, for one run."""

    def __init__(self, ledgers: Sequence[Ledger], run: str = "", *, durable: bool = False) -> None:
        self.ledgers = ledgers
        self._run = run
        self._durable = durable

    def charge(self, task: Task, costs: Sequence[Cost]) -> Receipt | Update | None:
        """The receipt for a task, or the answer that was sealed for it before; or raise `BudgetSpentError`.

        None: the task was charged and answered long ago, and the answer is no longer kept. It is not charged again.
        """
        ledger = self.ledgers[task.client]
        if not self._durable:
            return ledger.reserve_costs(costs, self._run, task.round)
        attempt = ledger.next_attempt(self._run, task.round)
        if attempt:
            return ledger.reserve_costs(costs, self._run, task.round, attempt)
        kept = ledger.sealed(self._run, task.round)
        return _unpacked(task, *kept) if kept is not None else None

    def seal(self, update: Update) -> None:
        """Fix the bytes of an answer before it goes out, where they are to outlive the run."""
        if self._durable:
            ledger = self.ledgers[update.client]
            ledger.seal(update.receipt, _packed(update))
            ledger.sent(update.receipt)

    def recharge(self, client: int, costs: Sequence[Cost], number: int) -> None:
        """Count a round that a resumed run has already released; files have it already."""
        if not self._durable:
            self.ledgers[client].reserve_costs(costs, self._run, number)

    def close(self) -> None:
        """Close the files."""
        if self._durable:
            for ledger in self.ledgers:
                ledger.close()


def opened(
    directory: Path, policies: Sequence[Policy], lifetimes: Sequence[float], accountant: Accountant
) -> list[Ledger]:
    """A ledger file for each client, made where there is none yet."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: list[Ledger] = []
    try:
        for client, (policy, lifetime) in enumerate(zip(policies, lifetimes, strict=True)):
            path = directory / f"client-{client}.ledger"
            whole = Policy(lifetime, policy.delta, policy.relation)
            made.append(Ledger.open(path) if path.exists() else Ledger.create(path, client, whole, accountant))
            _check(path, made[-1], policy)
    except BaseException:
        for ledger in made:
            ledger.close()
        raise
    return made


def approve(ledgers: Iterable[Ledger], costs: Iterable[Sequence[Cost]]) -> None:
    """Check each client's whole course at once where its budget affords it; else every round is checked by itself."""
    for ledger, wanted in zip(ledgers, costs, strict=True):
        if ledger.affords(wanted):
            ledger.approve_costs(wanted)


def _check(path: Path, ledger: Ledger, policy: Policy) -> None:
    kept = ledger.terms.policy
    if (kept.delta, kept.relation) != (policy.delta, policy.relation):
        raise HushError(
            f"{path}: keeps delta {kept.delta:g} under {kept.relation}, the config has {policy.delta:g} under "
            f"{policy.relation}; accepted: the same"
        )


def _packed(update: Update) -> bytes:
    packed: bytes = save({"vector": update.vector.contiguous()}, {"notes": json.dumps(dict(update.notes))})
    return packed


def _unpacked(task: Task, receipt: Receipt, payload: bytes) -> Update:
    size = int.from_bytes(payload[:8], "little")
    notes = json.loads(json.loads(payload[8 : 8 + size]).get("__metadata__", {}).get("notes", "{}"))
    return Update(task.client, task.round, load(payload)["vector"], task.answer, receipt, notes)
