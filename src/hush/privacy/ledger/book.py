"""The book of a ledger: its hash-chained rows and what they add up to, namely the client's terms, its charges and the
state of each. Pure: no file, no clock.

A charge is one reservation. It goes RESERVED -> READY -> SENT, or, forfeited, RESERVED -> BURNED, each step a row:

    OPENED    terms: client, policy, accountant       READY     SHA-256 of the sealed payload
    POLICY    a tighter policy                        SENT      nothing
    RESERVED  costs                                   BURNED    nothing
    PLANNED   a run's schedule, as it was admitted, and what it was converted to
    COVERED   the name of a key, and a hash of the fingerprints of training rows that came and went
    ADOPTED   the name of the key that vouches for all rows up to here
    REPLACES  the ledger that was at this path before and was given up

Guarantees:
    - A row's hash covers everything in it and the hash of the row before, so that no row can be changed, dropped from
      the middle, repeated or moved without breaking the chain at that place. Anyone can recompute it: it is the SHA-256
      of three lines, `seq at salt kind round attempt previous`, `run` and `detail`.
    - `read_row` accepts exactly ten fields of the right types, and a row only where it belongs.
    - No row ever takes a charge back: `totals` only grows.
    - A round of a run has one charge that can be released; a further attempt needs all earlier ones forfeited.
    - Whatever `append` makes, `replay` accepts, and nothing that breaks the rules above, even with a correct hash.

Edge cases:
    - The chain alone cannot tell that its last rows were cut off, or that the whole is an old copy. The head tells:
      kept beside the ledger (`hush.privacy.ledger.anchor`) and echoed by the server.
    - A forfeited charge counts in full.
    - A policy that was tightened below what is spent stops all further charges.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from hush.privacy.accounting import privacy_filter
from hush.privacy.accounting.cost import Cost, Kind, from_json, to_json
from hush.privacy.ledger import terms
from hush.privacy.ledger.errors import BrokenLedgerError
from hush.privacy.ledger.terms import LedgerTerms
from hush.privacy.ledger.totals import CostKey, Totals, add_costs, add_totals, steps_of
from hush.types import HushError, Policy

OPENED, POLICY = "OPENED", "POLICY"
PLANNED = "PLANNED"
COVERED, ADOPTED, REPLACES = "COVERED", "ADOPTED", "REPLACES"
_NOTES = (COVERED, ADOPTED, REPLACES)
RESERVED, READY, SENT, BURNED = "RESERVED", "READY", "SENT", "BURNED"
BEFORE = {READY: RESERVED, SENT: READY, BURNED: RESERVED}
STATE_NAMES = {RESERVED: "charged", READY: "computed", SENT: "sent", BURNED: "forfeited"}  # as shown to users
START = "0" * 64
_MOST = 2**63 - 1
_HEAD = re.compile(r"([1-9][0-9]{0,18}):([0-9a-f]{64})")
_TYPES = (int, int, str, str, str, int, int, str, str, str)

Stamp: TypeAlias = tuple[int, str]  # the `at` and `salt` of a row


class Row(NamedTuple):
    """One row of a ledger: an event that never changes.

    `at` is the client's clock in seconds, for information only. `salt` is random for each row of a file, so that two
    copies that are extended independently never have equal rows. `detail` depends on `kind` (see above).
    """

    seq: int
    at: int
    salt: str
    kind: str
    run: str
    round: int
    attempt: int
    detail: str
    previous: str
    hash: str

    @property
    def head(self) -> str:
        """The row's number and hash, as in receipts and in the server's records."""
        return f"{self.seq}:{self.hash}"


class Charge(NamedTuple):
    """One charge: the row that made it, its number among the charges, and its state."""

    row: Row
    serial: int
    state: str
    sha256: str


class Planned(NamedTuple):
    """A schedule that was admitted as a whole, and what it was converted to (nothing for the first one)."""

    costs: tuple[Cost, ...]
    conversion: privacy_filter.Conversion


class Book:
    """The state computed from a chain of rows."""

    def __init__(self) -> None:
        self.terms = LedgerTerms("", Policy(0.0, 0.0), "pld")
        self.rows = 0
        self.hash = START
        self.name = ""
        self.notes: list[Row] = []
        self.charges: dict[int, Charge] = {}
        self.totals: dict[CostKey, int] = {}
        self.released: dict[tuple[str, Kind], int] = {}
        # What the privacy filter decides by: the first schedule, steps counted as they are, schedules converted to
        # units of the first, what is left of each, and charges of earlier versions that are neither.
        self.first: dict[CostKey, int] = {}
        self.direct: dict[CostKey, int] = {}
        self.planned: list[Planned] = []
        self.left_of: dict[str, dict[CostKey, int]] = {}
        self.unplanned: dict[str, dict[CostKey, int]] = {}
        self._newest: dict[tuple[str, int], int] = {}

    def append(
        self, stamp: Stamp, kind: str, run: str = "", number: int = 0, attempt: int = 0, detail: str = ""
    ) -> Row:
        """Make the next row and apply it, if it is valid here."""
        row = make_row(self.rows + 1, *stamp, kind, run, number, attempt, detail, self.hash)
        self._count(row)
        return row

    def replay(self, raw: Sequence[object]) -> Row:
        """Check the next stored row and apply it, or raise `BrokenLedgerError`."""
        row = read_row(raw, self.rows, self.hash)
        try:
            self._check(row)
            self._count(row)
        except HushError as error:
            raise BrokenLedgerError(f"entry {row.seq}: {error}") from None
        return row

    def newest(self, run: str, number: int) -> Charge | None:
        """The newest charge for a round of a run."""
        seq = self._newest.get((run, number))
        return None if seq is None else self.charges[seq]

    def of(self, head: str) -> Charge:
        """The charge whose receipt has this head."""
        charge = self.charges.get(parse_head(head)[0])
        if charge is None or charge.row.head != head:
            raise HushError(f"client {self.terms.client}: a receipt that was not issued by this ledger")
        return charge

    def may_follow(self, charge: Charge, kind: str) -> None:
        """Raise a `HushError` unless this charge may change to that state."""
        if charge.state != BEFORE[kind]:
            named = f"round {charge.row.round}, attempt {charge.row.attempt}"
            raise HushError(
                f"client {self.terms.client}: {named} is {STATE_NAMES[charge.state]} and cannot become "
                f"{STATE_NAMES[kind]}; accepted: {STATE_NAMES[BEFORE[kind]]}"
            )

    @property
    def covered_first(self) -> int:
        """The row that registers the training rows of the first charge, or 0; later ones cannot replace rows."""
        first = min(self.charges, default=self.rows + 1)
        return max((row.seq for row in self.notes if row.kind == COVERED and row.seq < first), default=0)

    def rounds_of(self, run: str) -> int:
        """The number of rounds of a run that were charged at least once."""
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
                f"client {self.terms.client}: {named} is already charged (attempt {last.row.attempt}, "
                f"{STATE_NAMES[last.state]}); accepted: a higher attempt, once that one is forfeited"
            )

    def check_payloads(self, kept: Mapping[int, object]) -> None:
        """Raise `BrokenLedgerError` unless all required sealed bytes are present and unchanged."""
        sealed = {seq: charge for seq, charge in self.charges.items() if charge.state in (READY, SENT)}
        for seq in kept.keys() | {seq for seq, charge in sealed.items() if charge.state == READY}:
            payload = kept.get(seq)
            digest = hashlib.sha256(payload).hexdigest() if isinstance(payload, bytes) else ""
            if seq not in sealed or sealed[seq].sha256 != digest:
                raise BrokenLedgerError(f"the bytes stored for entry {seq} differ from what was written")

    def check_covered(self, kept: Mapping[int, tuple[object, object]]) -> None:
        """Raise `BrokenLedgerError` unless all fingerprints of rows are present and unchanged."""
        noted = {row.seq: row for row in self.notes if row.kind == COVERED}
        for seq in kept.keys() | noted.keys():
            added, removed = kept.get(seq, (None, None))
            if (
                seq not in noted
                or not (isinstance(added, bytes) and isinstance(removed, bytes))
                or noted[seq].detail != covered_text(covered_key(noted[seq].detail), added, removed)
            ):
                raise BrokenLedgerError(f"the fingerprints of entry {seq} differ from what was written")

    def _check(self, row: Row) -> None:
        if row.kind == RESERVED:
            self.may_reserve(row.run, row.round, row.attempt)
        elif row.kind in BEFORE:
            charge = self.newest(row.run, row.round)
            if charge is None or charge.row.attempt != row.attempt:
                raise HushError(f"{row.kind} without a charge")
            self.may_follow(charge, row.kind)
        elif row.kind == PLANNED and self.rows:
            read_planned(row.detail)
        elif row.kind in _NOTES and self.rows:
            return
        elif row.kind != (POLICY if self.rows else OPENED):
            raise HushError(f"{row.kind!r} is not valid here")
        elif self.rows:
            terms.check_tighter(replace(self.terms, policy=terms.read_policy(row.detail)), self.terms)

    def _count(self, row: Row) -> None:
        if row.kind == RESERVED:
            self.totals = add_costs(self.totals, costs_of(row.detail))
            self._filtered(row.run, add_costs({}, costs_of(row.detail)))
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
            self.name = row.hash
        elif row.kind == PLANNED:
            planned = read_planned(row.detail)
            if self.first:
                self.planned.append(planned)
                self.left_of[row.run] = add_costs(self.left_of.get(row.run, {}), planned.costs)
            else:
                self.first = add_costs({}, planned.costs)
        elif row.kind in _NOTES:
            self.notes.append(row)
        else:
            self.terms = replace(self.terms, policy=terms.read_policy(row.detail))
        self.rows, self.hash = row.seq, row.hash

    def covers(self, run: str, costs: Totals) -> bool:
        """Whether a converted schedule of this run has all these steps left."""
        left = self.left_of.get(run, {})
        return all(steps <= left.get(key, 0) for key, steps in costs.items())

    def is_direct(self, costs: Totals) -> bool:
        """Whether these steps are counted as what they are."""
        return privacy_filter.is_direct(steps_of(self.first), steps_of(costs), self.terms.accountant)

    def _filtered(self, run: str, costs: dict[CostKey, int]) -> None:
        self.first = self.first or costs
        if self.covers(run, costs):
            self.left_of[run] = {key: steps - costs.get(key, 0) for key, steps in self.left_of[run].items()}
        elif self.is_direct(costs):
            self.direct = add_totals(self.direct, costs)
        else:
            self.unplanned[run] = add_totals(self.unplanned.get(run, {}), costs)


def make_row(
    seq: int, at: int, salt: str, kind: str, run: str, number: int, attempt: int, detail: str, previous: str
) -> Row:
    """Return the row that follows the one with hash `previous`."""
    # Only the last of the three lines can contain a newline, so no two rows give the same text.
    text = f"{seq} {at} {salt} {kind} {number} {attempt} {previous}\n{run}\n{detail}"
    return Row(seq, at, salt, kind, run, number, attempt, detail, previous, hashlib.sha256(text.encode()).hexdigest())


def read_row(raw: Sequence[object], after: int, previous: str) -> Row:
    """Parse the stored row that follows row number `after`, or raise `BrokenLedgerError`."""
    place = f"entry {after + 1}"
    if len(raw) != len(_TYPES) or any(type(value) is not kind for value, kind in zip(raw, _TYPES, strict=True)):
        raise BrokenLedgerError(f"{place} is malformed")
    row = Row._make(raw)
    if row.seq != after + 1:
        raise BrokenLedgerError(f"{place} is missing: entry {row.seq} follows entry {after}")
    if (
        row.previous != previous
        or row != make_row(*row[:-1])
        or not (row.salt + row.kind).isalnum()
        or not row.run.isprintable()
    ):
        raise BrokenLedgerError(f"{place} was changed after it was written")
    return row


def parse_head(text: str) -> tuple[int, str]:
    """Parse a head into row number and hash, or raise a `HushError`."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise HushError(f"head: found {text[:100]!r}; accepted: an entry number, a colon and 64 hexadecimal digits")
    return int(found[1]), found[2]


def planned_text(costs: Sequence[Cost], conversion: privacy_filter.Conversion) -> str:
    """The detail of a PLANNED row."""
    words = {"costs": json.loads(to_json(costs)), "doubt": conversion.doubt, "units": conversion.units}
    return json.dumps(words, sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=1024)
def read_planned(text: str) -> Planned:
    """Parse the output of `planned_text`; any other text is an error."""
    try:
        words = json.loads(text)
        if set(words) != {"costs", "doubt", "units"}:
            raise ValueError
        found = privacy_filter.Conversion(float(words["units"]), float(words["doubt"]))
    except (ValueError, TypeError):
        raise BrokenLedgerError(f"an entry contains {text[:60]!r} where a schedule belongs") from None
    if not (0.0 <= found.units < math.inf and 0.0 <= found.doubt < 1.0):
        raise BrokenLedgerError("an entry contains an impossible conversion")
    return Planned(from_json(json.dumps(words["costs"])), found)


def covered_text(key: str, added: bytes, removed: bytes) -> str:
    """The detail of a COVERED row that registers these fingerprints."""
    digest = hashlib.sha256(b"%d " % len(added) + added + removed).hexdigest()
    return f"{key} {digest}"


def covered_key(detail: str) -> str:
    """The name of the key of a COVERED row's fingerprints."""
    return detail.partition(" ")[0]


@lru_cache(maxsize=16384)
def costs_text(costs: tuple[Cost, ...]) -> str:
    """The costs as stored in a row. Cached, because a client repeats a few of them."""
    return to_json(costs)


@lru_cache(maxsize=16384)
def costs_of(text: str) -> tuple[Cost, ...]:
    """The costs of a RESERVED row."""
    return from_json(text)
