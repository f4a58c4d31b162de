"""What a client has spent and may still spend, read from its book.

Guarantees:
    - `spent` is computed from every cost that was ever reserved, burned charges included.
    - `affords` and `approve` decide by the accountant's bound for all of it together, over all runs.
    - What is approved are totals, not a promise to one caller: any charges that stay within them keep the budget,
      whoever makes them.

Edge cases:
    - A plan is approved for the rounds that its run has not charged yet, so that a run can be taken up again.
    - `left` is a guide. Epsilons do not add up exactly; `affords` is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from hush.privacy.cost import Cost, Kind
from hush.privacy.ledger import balance
from hush.privacy.ledger.book import BURNED, Book
from hush.privacy.ledger.terms import Terms
from hush.privacy.plan import PrivacyPlan
from hush.types import HushError


class BudgetSpentError(HushError):
    """The next charge would exceed the client's budget."""


class Account:
    """A book with a budget over it. A ledger is an account whose book is kept."""

    def __init__(self, held: Book) -> None:
        self._book = held
        self._approved: balance.Totals = {}

    @property
    def terms(self) -> Terms:
        """Whose account it is, and what it keeps."""
        return self._fresh().terms

    @property
    def rounds(self) -> int:
        """Charges so far, burned ones included."""
        return len(self._fresh().charges)

    def released(self) -> dict[tuple[str, Kind], int]:
        """Noisy steps so far, by name and kind of what they release."""
        return dict(self._fresh().released)

    @property
    def head(self) -> str:
        """Number and hash of the newest row."""
        now = self._fresh()
        return f"{now.rows}:{now.hash}"

    def spent(self) -> float:
        """Epsilon of all that was ever reserved."""
        return self._epsilon(self._fresh().totals)

    def left(self) -> float:
        """The budget less what is spent."""
        return balance.left(self.spent(), self.terms.policy)

    def affords(self, costs: Sequence[Cost]) -> bool:
        """Whether these costs could be reserved now."""
        wanted = balance.plus(self._fresh().totals, costs)
        return balance.within(wanted, self._approved) or balance.fits(self._epsilon(wanted), self._book.terms.policy)

    def approve(self, plan: PrivacyPlan, run: str = "") -> None:
        """Check that what remains of the plan in this run fits the budget, on top of all that was spent."""
        now = self._fresh()
        self.approve_costs([plan.cost(max(plan.rounds - now.rounds_of(run), 0))])

    def approve_costs(self, costs: Iterable[Cost]) -> None:
        """Check that all these costs fit the budget, on top of all that was spent."""
        wanted = balance.plus(self._fresh().totals, costs)
        self._check(wanted)
        self._approved = wanted

    def next_attempt(self, run: str, round_number: int) -> int:
        """The attempt at a round that may be reserved now, or 0 if its charge has not burned."""
        last = self._fresh().newest(run, round_number)
        if last is None:
            return 1
        return last.row.attempt + 1 if last.state == BURNED else 0

    def _fresh(self) -> Book:
        """The book, up to date."""
        return self._book

    def _check(self, wanted: balance.Totals) -> None:
        if balance.within(wanted, self._approved):
            return
        cost, terms = self._epsilon(wanted), self._book.terms
        if not balance.fits(cost, terms.policy):
            raise BudgetSpentError(
                f"client {terms.client}: epsilon {cost:.4g} would exceed the budget of {terms.policy.epsilon:.4g}"
            )

    def _epsilon(self, totals: balance.Totals) -> float:
        terms = self._book.terms
        return balance.epsilon(totals, terms.policy, terms.accountant)


@lru_cache(maxsize=16384)
def costs_of(plan: PrivacyPlan) -> tuple[Cost, ...]:
    """What one round of a plan costs. Cached: a client asks the same every round."""
    return (plan.cost(),)
