"""What the rows of a ledger add up to: the client's terms, its charges and the state of each. Pure: no file, no clock.

A charge is one reservation. It goes RESERVED -> READY -> SENT, or RESERVED -> BURNED, each step a row of its own:

    OPENED    terms: client, policy, accountant       READY     SHA-256 of the sealed payload
    POLICY    a tighter policy                        SENT      nothing
    RESERVED  costs                                   BURNED    nothing

Guarantees:
    - No row ever takes a charge back: `totals` only grows.
    - A round of a run has one charge that can be released; a further attempt needs all earlier ones burned.
    - Whatever `append` makes, `replay` accepts, and nothing that breaks the rules above, even with a correct hash.

Edge cases:
    - A burned charge counts in full.
    - A policy that was tightened below what is spent stops all further charges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from hush.privacy import cost
from hush.privacy.cost import Cost, Kind
from hush.privacy.ledger import balance, chain, terms
from hush.privacy.ledger.chain import BrokenLedgerError, Row
from hush.privacy.ledger.terms import Terms
from hush.types import HushError, Policy

OPENED, POLICY = "OPENED", "POLICY"
RESERVED, READY, SENT, BURNED = "RESERVED", "READY", "SENT", "BURNED"
BEFORE = {READY: RESERVED, SENT: READY, BURNED: RESERVED}
_MOST = 2**63 - 1


Stamp: TypeAlias = tuple[int, str]  # the `at` and `salt` of a row


class Charge(NamedTuple):
    """One reservation: the row that made it, its number among the charges, and where it stands."""

    row: Row
    serial: int
    state: str
    sha256: str


class Book:
    """The sum of a chain of rows."""

    def __init__(self) -> None:
        self.terms = Terms("", Policy(0.0, 0.0), "pld")
        self.rows = 0
        self.hash = chain.START
        self.charges: dict[int, Charge] = {}
        self.totals: dict[balance.Key, int] = {}
        self.released: dict[tuple[str, Kind], int] = {}
        self._newest: dict[tuple[str, int], int] = {}

    def append(
        self, stamp: Stamp, kind: str, run: str = "", number: int = 0, attempt: int = 0, detail: str = ""
    ) -> Row:
        """Make the next row and count it; it must be one that may follow."""
        row = chain.make(self.rows + 1, *stamp, kind, run, number, attempt, detail, self.hash)
        self._count(row)
        return row

    def replay(self, raw: Sequence[object]) -> Row:
        """Check the next stored row and count it, or raise `BrokenLedgerError`."""
        row = chain.read(raw, self.rows, self.hash)
        try:
            self._check(row)
            self._count(row)
        except HushError as error:
            raise BrokenLedgerError(f"row {row.seq}: {error}") from None
        return row

    def newest(self, run: str, number: int) -> Charge | None:
        """The newest charge for a round of a run."""
        seq = self._newest.get((run, number))
        return None if seq is None else self.charges[seq]

    def of(self, head: str) -> Charge:
        """The charge whose receipt carries this head."""
        charge = self.charges.get(chain.parse_head(head)[0])
        if charge is None or charge.row.head != head:
            raise HushError(f"client {self.terms.client}: a receipt that is not from this ledger")
        return charge

    def may_follow(self, charge: Charge, kind: str) -> None:
        """Raise a `HushError` unless this charge may go to that state."""
        if charge.state != BEFORE[kind]:
            named = f"round {charge.row.round}, attempt {charge.row.attempt}"
            raise HushError(
                f"client {self.terms.client}: {named} is {charge.state} and cannot become {kind}; "
                f"accepted: {BEFORE[kind]}"
            )

    def rounds_of(self, run: str) -> int:
        """How many rounds of a run were charged, however often."""
        return sum(1 for each, _ in self._newest if each == run)

    def may_reserve(self, run: str, number: int, attempt: int) -> None:
        """Raise a `HushError` unless this attempt at a round may be charged."""
        if len(run) > 200 or not run.isprintable():
            raise HushError(f"run: found {run[:60]!r}; accepted: at most 200 printable characters")
        if not (0 <= number <= _MOST and 1 <= attempt <= _MOST):
            raise HushError(f"round, attempt: found {number}, {attempt}; accepted: 0 or more, 1 or more")
        last = self.newest(run, number)
        if last is not None and (last.state != BURNED or attempt <= last.row.attempt):
            named = f"round {number}" + (f" of {run}" if run else "")
            raise HushError(
                f"client {self.terms.client}: {named} is already charged (attempt {last.row.attempt}, {last.state}); "
                "accepted: a higher attempt, once that one is BURNED"
            )

    def check_payloads(self, kept: Mapping[int, object]) -> None:
        """Raise `BrokenLedgerError` unless all sealed bytes are there that must be, and are what was sealed."""
        sealed = {seq: charge for seq, charge in self.charges.items() if charge.state in (READY, SENT)}
        for seq in kept.keys() | {seq for seq, charge in sealed.items() if charge.state == READY}:
            payload = kept.get(seq)
            digest = hashlib.sha256(payload).hexdigest() if isinstance(payload, bytes) else ""
            if seq not in sealed or sealed[seq].sha256 != digest:
                raise BrokenLedgerError(f"the bytes sealed for row {seq} are not what was written")

    def _check(self, row: Row) -> None:
        if row.kind == RESERVED:
            self.may_reserve(row.run, row.round, row.attempt)
        elif row.kind in BEFORE:
            charge = self.newest(row.run, row.round)
            if charge is None or charge.row.attempt != row.attempt:
                raise HushError(f"{row.kind} without a charge")
            self.may_follow(charge, row.kind)
        elif row.kind != (POLICY if self.rows else OPENED):
            raise HushError(f"{row.kind!r} does not belong there")
        elif self.rows:
            terms.check_tighter(replace(self.terms, policy=terms.read_policy(row.detail)), self.terms)

    def _count(self, row: Row) -> None:
        if row.kind == RESERVED:
            self.totals = balance.plus(self.totals, costs_of(row.detail))
            for each in costs_of(row.detail):
                self.released[each.what, each.kind] = self.released.get((each.what, each.kind), 0) + each.steps
            self.charges[row.seq] = Charge(row, len(self.charges) + 1, RESERVED, "")
            self._newest[row.run, row.round] = row.seq
        elif row.kind in BEFORE:
            charge = self.charges[self._newest[row.run, row.round]]
            digest = row.detail if row.kind == READY else charge.sha256
            self.charges[charge.row.seq] = Charge(charge.row, charge.serial, row.kind, digest)
        elif row.kind == OPENED:
            self.terms = terms.read(row.detail)
        else:
            self.terms = replace(self.terms, policy=terms.read_policy(row.detail))
        self.rows, self.hash = row.seq, row.hash


@lru_cache(maxsize=16384)
def costs_text(costs: tuple[Cost, ...]) -> str:
    """Costs as a row keeps them. Cached: a client repeats the same few."""
    return cost.to_json(costs)


@lru_cache(maxsize=16384)
def costs_of(text: str) -> tuple[Cost, ...]:
    """The costs of a RESERVED row."""
    return cost.from_json(text)
