"""The ledgers of a run's clients: in memory for one simulation, or in files that persist.

With files, a second run on the same data continues from what is spent, with the protocol of a deployment: charge,
compute, seal, send, for rounds and for enrolment alike. An answer that was sealed before a crash is sent again as the
same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError, Ledger, Spending, account, totals, witness
from hush.privacy.ledger.binding import bind
from hush.privacy.ledger.fingerprints import Rows
from hush.privacy.ledger.ledger import inspect
from hush.privacy.schedule import ENROLMENT
from hush.types import Accountant, HushError, Policy, Receipt

StoredAnswer: TypeAlias = tuple[Receipt, bytes]
Warn: TypeAlias = Callable[[str], None]


class RunLedgers:
    """The ledgers of all clients, in order of client number, for one run.

    Where a run consists of several trainings (`hush.tuning`), the rounds of each are charged as rounds `first`,
    `first` + 1, ... of the run.
    """

    def __init__(self, ledgers: Sequence[Spending], run: str = "", *, durable: bool = False, first: int = 0) -> None:
        self.ledgers = ledgers
        self.run = run
        self._durable = durable
        self._first = first

    def charge(
        self, client: int, number: int, costs: Sequence[Cost], order: Callable[[], bytes] | None = None
    ) -> Receipt | StoredAnswer | None:
        """Return the receipt for a round, or what was sealed for it before; or raise `BudgetSpentError`.

        A charge of this round that a dead process left without sealed bytes is forfeited and made again. None: the
        round was answered, and its bytes are no longer stored. It is not charged, and nothing may be released for it.

        With an `order`, the answer follows from it alone and may be computed more than once: if ledgers persist, the
        order is sealed with the charge, in place of the answer.
        """
        counted = self._first + number
        if not self._durable:
            receipt = self.ledgers[client].reserve(costs, self.run, counted)
            return replace(receipt, round=number) if self._first else receipt
        ledger = self._file(client)
        ledger.forfeit_unsealed(self.run, counted)
        attempt = ledger.next_attempt(self.run, counted)
        # A file may identify its client by name; the run identifies it by number.
        if attempt:
            sealed = None if order is None else order()
            reserved = ledger.reserve(costs, self.run, counted, attempt, sealed)
            return replace(reserved, client=client, round=number)
        kept = ledger.sealed(self.run, counted)
        return None if kept is None else (replace(kept[0], client=client, round=number), kept[1])

    def seal(self, client: int, receipt: Receipt, payload: Callable[[], bytes]) -> None:
        """Store the bytes of an answer before it is sent, if ledgers persist."""
        if self._durable:
            ledger = self._file(client)
            ledger.seal(replace(receipt, client=ledger.terms.client), payload())

    def sent(self, client: int, number: int) -> None:
        """Record that the server has saved a round's answer. Bytes not recorded as sent are never deleted."""
        if self._durable and (kept := self._file(client).sealed(self.run, self._first + number)) is not None:
            self._file(client).sent(kept[0])

    def recharge(self, client: int, costs: Sequence[Cost], number: int) -> None:
        """Charge a round that a resumed run has already released; a file without it is a `HushError`."""
        if not self._durable:
            self.ledgers[client].reserve(costs, self.run, self._first + number)
        elif number != ENROLMENT and self._file(client).next_attempt(self.run, self._first + number) == 1:
            raise HushError(
                f"{self._file(client).where}: has no charge for round {number} of the run to resume; accepted: the "
                "ledgers that it was started with, or none if it was started without"
            )

    def close(self) -> None:
        """Close the files."""
        if self._durable:
            for client in range(len(self.ledgers)):
                self._file(client).close()

    def _file(self, client: int) -> Ledger:
        ledger = self.ledgers[client]
        assert isinstance(ledger, Ledger)
        return ledger


def ignore(warning: str) -> None:
    """Discard the warning."""


def opened(
    directory: Path, policies: Sequence[Policy], lifetimes: Sequence[float] | None, accountant: Accountant,
    rows: Sequence[Rows], warn: Warn, names: Sequence[str],
) -> list[Ledger]:  # fmt: skip
    """Open a ledger file for each client, creating missing ones, and bind it to the client's training rows.

    A named client is identified by its name, in the ledger and in the file name; others by their number.

    Without `lifetimes`, a new ledger's lifetime budget is the client's budget, and an existing one keeps its own. If a
    config and a ledger differ, the stricter of the two applies from then on, and `warn` is called.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: list[Ledger] = []
    try:
        agreed: list[Policy] = []
        # Another run that starts at the same time finds complete ledgers, or creates them.
        with witness.here().locked():
            for client, policy in enumerate(policies):
                who = names[client] or client
                path = directory / f"client-{quote(str(who), safe=' ')}.ledger"
                lifetime = None if lifetimes is None else lifetimes[client]
                if path.exists():
                    agreed.append(_stricter(path, who, policy, lifetime, warn))
                    made.append(Ledger.open(path))
                else:
                    agreed.append(replace(policy, epsilon=lifetime or policy.epsilon))
                    made.append(Ledger.create(path, who, agreed[-1], accountant))
        bind(made, rows, sorted(directory.glob("*.ledger")))
        # Last, because it is permanent: a refused run changes no policy.
        for ledger, policy in zip(made, agreed, strict=True):
            ledger.tighten(policy)
    except BaseException:
        for ledger in made:
            ledger.close()
        raise
    return made


def _stricter(path: Path, client: int | str, policy: Policy, lifetime: float | None, warn: Warn) -> Policy:
    """Return the policy of an existing ledger from now on; a `HushError` if more than that is spent."""
    _, book = inspect(path)
    kept, wanted = book.terms.policy, replace(policy, epsilon=lifetime or book.terms.policy.epsilon)
    if book.terms.client != client:
        raise HushError(f"{path}: the ledger of client {book.terms.client}; accepted: that of client {client}")
    if kept.relation != wanted.relation:
        raise HushError(f"{path}: keeps {kept.relation}, the config has {wanted.relation}; accepted: the same")
    if kept.unit != wanted.unit:
        raise HushError(f"{path}: protects a {kept.unit}, the config a {wanted.unit}; accepted: the same privacy.unit")
    strict = replace(kept, epsilon=min(kept.epsilon, wanted.epsilon), delta=min(kept.delta, wanted.delta))
    spent = account.filtered(book, strict)
    if strict != kept and not totals.fits(spent, strict):
        raise HushError(
            f"{path}: has spent epsilon {spent:.4g} at delta {strict.delta:g}, more than a lifetime budget of "
            f"{strict.epsilon:.4g}; accepted: a privacy.lifetime and a privacy.delta that what is spent fits"
        )
    for name, ours, theirs in (("lifetime budget", kept.epsilon, wanted.epsilon), ("delta", kept.delta, wanted.delta)):
        if theirs < ours:
            warn(f"client {client}: its ledger's {name} of {ours:g} is tightened to the config's {theirs:g}")
        elif theirs > ours:
            warn(
                f"client {client}: its ledger's {name} of {ours:g} applies; it is stricter than the config's {theirs:g}"
            )
    return strict


def approve(ledgers: Iterable[Spending], schedules: Iterable[Sequence[Sequence[Cost]]], run: str = "") -> None:
    """Admit each client's schedule, as much of it as its budget covers; the rest is checked round by round.

    `schedules` has for each client what to try in turn: the schedule with a reserve for repeated rounds, and without.
    """
    for ledger, choices in zip(ledgers, schedules, strict=True):
        for wanted in (*choices, *(() if not choices else _parts(choices[-1]))):
            with contextlib.suppress(BudgetSpentError):
                ledger.approve(wanted, run)
                break


def _parts(costs: Sequence[Cost]) -> Iterator[tuple[Cost, ...]]:
    """Smaller and smaller parts of a schedule."""
    for part in (31, 30, 28, 24, 16, 8, 4, 2, 1):
        fewer = (replace(cost, steps=cost.steps * part // 32) for cost in costs)
        yield tuple(cost for cost in fewer if cost.steps)
