"""The account of a client: what it has spent and what still fits its budget, computed from the totals of its book.

Guarantees:
    - Epsilon is always computed from the costs, never taken from a record: `epsilon` is the accountant's bound for all
      of them together, under the policy's delta and relation. `fits` decides by that bound alone.
    - `spent` is computed from every cost that was ever reserved, forfeited charges included.
    - `affords` and `approve` decide by the accountant's bound for all of it together, over all runs.
    - Totals are approved, not the charges of one caller: any charges that stay within them keep the budget,
      whoever makes them. Totals that are nowhere above approved ones need no accountant: fewer steps never cost more.

Edge cases:
    - No cost is 0; a release without noise is infinite, which only an infinite budget affords.
    - `left` is the difference of two epsilons, which do not add up exactly; `affords` is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost, Kind, from_json
from hush.privacy.ledger.book import BURNED, Book, CostKey, Totals, add_costs
from hush.privacy.ledger.errors import BudgetSpentError
from hush.privacy.ledger.terms import LedgerTerms
from hush.types import Accountant, Policy, Receipt

SLACK = 1e-9


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

    def spent(self) -> float:
        """The epsilon of all charges."""
        ...

    def left(self) -> float:
        """The budget minus what is spent."""
        ...

    def affords(self, costs: Sequence[Cost]) -> bool:
        """Whether these costs can be charged now."""
        ...

    def approve(self, costs: Iterable[Cost]) -> None:
        """Check that all these costs fit the budget in addition to what is spent, or raise `BudgetSpentError`."""
        ...

    def reserve(self, costs: Sequence[Cost], run: str, round_number: int) -> Receipt:
        """Charge everything that one round releases, or raise `BudgetSpentError`."""
        ...


class Account:
    """A book with a budget. A ledger is an account whose book is stored in a file."""

    def __init__(self, held: Book) -> None:
        self._book = held
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

    @property
    def head(self) -> str:
        """Number and hash of the newest row."""
        now = self._fresh()
        return f"{now.rows}:{now.hash}"

    def spent(self) -> float:
        """The epsilon of all charges."""
        return self._epsilon(self._fresh().totals)

    def left(self) -> float:
        """The budget minus what is spent."""
        return remaining(self.spent(), self.terms.policy)

    def affords(self, costs: Sequence[Cost]) -> bool:
        """Whether these costs can be charged now."""
        wanted = add_costs(self._fresh().totals, costs)
        return within(wanted, self._approved) or fits(self._epsilon(wanted), self._book.terms.policy)

    def approve(self, costs: Iterable[Cost]) -> None:
        """Check that all these costs fit the budget in addition to what is spent, or raise `BudgetSpentError`."""
        wanted = add_costs(self._fresh().totals, costs)
        self._check(wanted)
        self._approved = wanted

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

    def _check(self, wanted: Totals) -> None:
        if within(wanted, self._approved):
            return
        cost, terms = self._epsilon(wanted), self._book.terms
        if not fits(cost, terms.policy):
            raise BudgetSpentError(
                f"client {terms.client}: epsilon {cost:.4g} would exceed the budget of {terms.policy.epsilon:.4g}"
            )

    def _epsilon(self, totals: Totals) -> float:
        terms = self._book.terms
        return epsilon(totals, terms.policy, terms.accountant)


def within(totals: Totals, approved: Totals) -> bool:
    """Whether no kind of step occurs more often than approved."""
    return all(steps <= approved.get(key, 0) for key, steps in totals.items())


def epsilon(totals: Totals, policy: Policy, accountant: Accountant) -> float:
    """Return an upper bound on the epsilon of the totals."""
    return _epsilon(tuple(totals.items()), policy, accountant)


def fits(spent: float, policy: Policy) -> bool:
    """Whether these totals fit the budget."""
    return spent <= policy.epsilon + SLACK


def remaining(spent: float, policy: Policy) -> float:
    """Return what remains of the budget."""
    return math.inf if policy.epsilon == math.inf else max(0.0, policy.epsilon - spent)


@lru_cache(maxsize=16384)
def _epsilon(totals: tuple[tuple[CostKey, int], ...], policy: Policy, accountant: Accountant) -> float:
    costs = [
        Cost(what="total", kind=kind, noise=noise, steps=steps, rate=rate, samples=samples, batch=batch)
        for (kind, noise, rate, samples, batch), steps in totals
        if steps
    ]
    if not costs:
        return 0.0
    if any(cost.noise == 0 for cost in costs):
        return math.inf
    return api.epsilon_of(costs, policy.delta, policy.relation, accountant)
