"""The account of a client: what it has spent and what still fits its budget, computed from the totals of its book.

Guarantees:
    - Epsilon is always computed from the costs, never taken from a record: `spent` is the accountant's bound for every
      cost that was ever reserved, forfeited charges included, as if all had been fixed beforehand.
    - `filtered` is what the privacy filter counts for the same charges, which holds however later runs are chosen
      (Theorem 2 of docs/proofs.md). Charges and schedules are admitted if both fit the budget.
    - Totals are approved, not the charges of one caller: any charges that stay within them keep the budget,
      whoever makes them. Totals that are nowhere above approved ones need no accountant: fewer steps never cost more.

Edge cases:
    - No cost is 0; a release without noise is infinite, which only an infinite budget affords.
    - `left` is the difference of two epsilons, which do not add up exactly; `affords` is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from hush.privacy.accounting import privacy_filter
from hush.privacy.accounting.cost import Cost, Kind, from_json
from hush.privacy.ledger.book import BURNED, Book
from hush.privacy.ledger.errors import BudgetSpentError
from hush.privacy.ledger.terms import LedgerTerms
from hush.privacy.ledger.totals import SLACK, Totals, add_costs, add_totals, epsilon, fits, remaining, steps_of, within
from hush.types import Accountant, Policy, Receipt


class Spending(Protocol):
    """What a run asks of a client's ledger, which is a file (`Ledger`) or in memory (`MemoryLedger`)."""

    @property
    def terms(self) -> LedgerTerms:
        """The client, its policy and its accountant."""
        ...

    @property
    def rounds(self) -> int:
        """The number of charges so far."""
        ...

    def released(self) -> dict[tuple[str, Kind], int]:
        """The number of noisy steps so far, by name and kind of release."""
        ...

    def totals(self) -> Totals:
        """The number of steps of each kind in all charges."""
        ...

    def admitted(self) -> tuple[tuple[Cost, ...], ...]:
        """The schedules that the privacy filter counts, where no file records them and there are several."""
        ...

    def spent(self) -> float:
        """The epsilon of all charges."""
        ...

    def filtered(self) -> float:
        """The epsilon that the privacy filter counts for all charges and admitted schedules."""
        ...

    def left(self) -> float:
        """The budget minus what the filter counts."""
        ...

    def affords(self, costs: Sequence[Cost], run: str = "") -> bool:
        """Whether these costs can be charged to a run now."""
        ...

    def approve(self, costs: Sequence[Cost], run: str = "") -> None:
        """Admit the schedule of a run as a whole, or raise `BudgetSpentError`."""
        ...

    def reserve(self, costs: Sequence[Cost], run: str, round_number: int) -> Receipt:
        """Charge everything that one round releases, or raise `BudgetSpentError`."""
        ...


class Account:
    """A book with a budget. A ledger is an account whose book is stored in a file."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._approved: Totals = {}

    @property
    def terms(self) -> LedgerTerms:
        """The client, its policy and its accountant."""
        return self._fresh().terms

    @property
    def rounds(self) -> int:
        """The number of charges so far, including forfeited ones."""
        return len(self._fresh().charges)

    def released(self) -> dict[tuple[str, Kind], int]:
        """The number of noisy steps so far, by name and kind of release."""
        return dict(self._fresh().released)

    def totals(self) -> Totals:
        """The number of steps of each kind in all charges."""
        return dict(self._fresh().totals)

    def admitted(self) -> tuple[tuple[Cost, ...], ...]:
        """None: the rows record the schedules."""
        return ()

    @property
    def head(self) -> str:
        """Number and hash of the newest row."""
        now = self._fresh()
        return f"{now.rows}:{now.hash}"

    def spent(self) -> float:
        """The epsilon of all charges."""
        book = self._fresh()
        return epsilon(book.totals, book.terms.policy, book.terms.accountant)

    def filtered(self) -> float:
        """The epsilon that the privacy filter counts for all charges and admitted schedules."""
        return filtered(self._fresh())

    def left(self) -> float:
        """The budget minus what is spent."""
        return remaining(self.filtered(), self.terms.policy)

    def affords(self, costs: Sequence[Cost], run: str = "") -> bool:
        """Whether these costs can be charged to a run now."""
        try:
            self._admitted(self._fresh(), costs, run)
        except BudgetSpentError:
            return False
        return True

    def charged(self, run: str) -> tuple[Cost, ...]:
        """The charges of a run, in order."""
        rows = [charge.row for charge in self._fresh().charges.values() if charge.row.run == run]
        return tuple(cost for row in rows for cost in from_json(row.detail))

    def next_attempt(self, run: str, round_number: int) -> int:
        """The attempt at a round that may be charged now, or 0 if its charge is not forfeited."""
        last = self._fresh().newest(run, round_number)
        if last is None:
            return 1
        return last.row.attempt + 1 if last.state == BURNED else 0

    def _fresh(self) -> Book:
        """The book, including rows written by other processes."""
        return self._book

    def _admitted(self, book: Book, costs: Sequence[Cost], run: str) -> privacy_filter.Conversion | None:
        """Return what the costs of a run are converted to, None if they need no conversion; or raise
        `BudgetSpentError`.
        """
        wanted, new = add_costs(book.totals, costs), add_costs({}, costs)
        if within(wanted, self._approved):
            return None
        policy, accountant = book.terms.policy, book.terms.accountant
        fixed = epsilon(wanted, policy, accountant)
        planned = bool(book.first) and book.covers(run, new)
        direct = not book.first or planned or book.is_direct(new)
        if policy.epsilon == math.inf:
            return None
        if not fits(fixed, policy):
            raise _refused(book.terms, fixed)
        before = state(book, policy, accountant)
        after = before
        if not book.first:
            after = privacy_filter.State(steps_of(new), steps_of(new))
        elif not planned:
            after = privacy_filter.after(before, steps_of(new), policy, accountant)
        if not privacy_filter.fits(after, fixed, _loosened(policy), accountant):
            raise _refused(book.terms, max(fixed, privacy_filter.bound(after, policy, accountant)), fixed)
        if direct:
            return None
        return privacy_filter.Conversion(
            after.converted.units - before.converted.units, max(0.0, after.converted.doubt - before.converted.doubt)
        )


def state(book: Book, policy: Policy, accountant: Accountant) -> privacy_filter.State:
    """What the privacy filter has admitted."""
    conversions = [planned.conversion for planned in book.planned]
    units, doubt = (math.fsum(getattr(each, name) for each in conversions) for name in ("units", "doubt"))
    found = privacy_filter.State(
        steps_of(book.first), steps_of(book.direct), privacy_filter.Conversion(units, doubt), len(conversions)
    )
    for more in book.unplanned.values():
        found = privacy_filter.after(found, steps_of(more), policy, accountant)
    return found


def filtered(book: Book, policy: Policy | None = None, costs: Sequence[Cost] = ()) -> float:
    """Return the epsilon that the privacy filter counts for a book: at least that of the fixed composition.

    With `costs`, after this schedule as well; with `policy`, under this policy instead of the book's own.
    """
    policy, accountant = policy or book.terms.policy, book.terms.accountant
    new = add_costs({}, costs)
    fixed = epsilon(add_totals(book.totals, new), policy, accountant)
    if not math.isfinite(policy.epsilon) or not (book.first or new):
        return fixed
    now = state(book, policy, accountant)
    if new:
        steps = steps_of(new)
        now = privacy_filter.after(now, steps, policy, accountant) if book.first else privacy_filter.State(steps, steps)
    return fixed if privacy_filter.within_first(now) else max(fixed, privacy_filter.bound(now, policy, accountant))


def _loosened(policy: Policy) -> Policy:
    return replace(policy, epsilon=policy.epsilon + SLACK)


def _refused(terms: LedgerTerms, spent: float, fixed: float | None = None) -> BudgetSpentError:
    text = f"client {terms.client}: epsilon {spent:.4g} would exceed the budget of {terms.policy.epsilon:.4g}"
    if fixed is None:
        return BudgetSpentError(text)
    return BudgetSpentError(
        f"{text} (by the privacy filter, since this schedule differs from the first one of the ledger; "
        f"{fixed:.4g} if all schedules had been fixed beforehand)"
    )
