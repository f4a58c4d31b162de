"""A ledger in memory: what one client of a simulation spends, in a few words of memory and without a database.

It decides by the accountant's bound for all charges together, and makes receipts. That is fixed composition: a memory
ledger lives for one run, whose schedule is fixed. Training that is planned from a noisy count is a second schedule,
calibrated by the privacy filter before it is approved (Theorem 2 of docs/proofs.md). It keeps sums in place of rows:
nothing is stored, so there is no chain to check, and no bytes are sealed. Ledgers that were charged alike share what
they keep, so that a hundred thousand clients of a few kinds need little more than one of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hush.privacy.accounting import privacy_filter
from hush.privacy.accounting.cost import Cost, Kind
from hush.privacy.accounting.events import parts_of_costs
from hush.privacy.ledger import terms
from hush.privacy.ledger.errors import BudgetSpentError
from hush.privacy.ledger.terms import LedgerTerms
from hush.privacy.ledger.totals import CostKey, Totals, add_costs, epsilon, fits, remaining, within
from hush.types import Accountant, HushError, Policy, Receipt

_KINDS = 16_384  # sums that are kept for others to share


class _Sums(NamedTuple):
    """What charges add up to: the steps of each kind of cost, and by name and kind of release."""

    totals: Totals
    released: dict[tuple[str, Kind], int]


_NOTHING = _Sums({}, {})


class MemoryLedger:
    """The ledger of one simulated client, which lives as long as its run."""

    __slots__ = ("_approved", "_charged", "_policy", "_schedules", "_sums", "accountant", "client")

    def __init__(self, client: int | str, policy: Policy, accountant: Accountant = "pld") -> None:
        terms.check(LedgerTerms(client, policy, accountant))
        self.client, self.accountant = client, accountant
        self._policy = policy
        self._sums = _NOTHING
        self._approved: Totals = {}
        self._schedules: tuple[tuple[Cost, ...], ...] = ()
        self._charged: tuple[tuple[str, int], ...] = ()

    @property
    def terms(self) -> LedgerTerms:
        """The client, its policy and its accountant."""
        return LedgerTerms(self.client, self._policy, self.accountant)

    @property
    def rounds(self) -> int:
        """The number of charges so far."""
        return len(self._charged)

    def released(self) -> dict[tuple[str, Kind], int]:
        """The number of noisy steps so far, by name and kind of release."""
        return dict(self._sums.released)

    def totals(self) -> Totals:
        """The number of steps of each kind in all charges."""
        return dict(self._sums.totals)

    def admitted(self) -> tuple[tuple[Cost, ...], ...]:
        """The schedules that were approved, where there are several."""
        return self._schedules if len(self._schedules) > 1 else ()

    def spent(self) -> float:
        """The epsilon of all charges."""
        return epsilon(self._sums.totals, self._policy, self.accountant)

    def filtered(self) -> float:
        """The epsilon that the privacy filter counts for two approved schedules; for one, that of all charges."""
        spent = self.spent()
        if len(self._schedules) < 2 or not math.isfinite(self._policy.epsilon + spent):
            return spent
        steps = [parts_of_costs(costs) for costs in self._schedules]
        state = privacy_filter.of_schedules(steps, self._policy, self.accountant)
        return max(spent, privacy_filter.bound(state, self._policy, self.accountant))

    def left(self) -> float:
        """The budget minus what the filter counts."""
        return remaining(self.filtered(), self._policy)

    def affords(self, costs: Sequence[Cost], run: str = "") -> bool:
        """Whether these costs can be charged now."""
        wanted = _added(self._sums, tuple(costs)).totals
        return within(wanted, self._approved) or fits(epsilon(wanted, self._policy, self.accountant), self._policy)

    def approve(self, costs: Sequence[Cost], run: str = "") -> None:
        """Check that all these costs fit the budget in addition to what is spent, or raise `BudgetSpentError`."""
        wanted = _added(self._sums, tuple(costs)).totals
        self._check(wanted)
        self._approved = wanted
        self._schedules = (*self._schedules, tuple(costs))

    def reserve(self, costs: Sequence[Cost], run: str, round_number: int) -> Receipt:
        """Charge everything that one round releases, once, or raise `BudgetSpentError`."""
        if not costs:
            raise HushError(f"client {self.client}: nothing to reserve; accepted: at least one cost")
        if (run, round_number) in self._charged:
            raise HushError(f"client {self.client}: round {round_number} is already charged; accepted: another round")
        sums = _added(self._sums, tuple(costs))
        self._check(sums.totals)
        self._sums, self._charged = sums, _then(self._charged, (run, round_number))
        return Receipt(self.client, round_number, len(self._charged), run)

    def _check(self, wanted: Totals) -> None:
        if within(wanted, self._approved):
            return
        cost = epsilon(wanted, self._policy, self.accountant)
        if not fits(cost, self._policy):
            raise BudgetSpentError(
                f"client {self.client}: epsilon {cost:.4g} would exceed the budget of {self._policy.epsilon:.4g}"
            )


def _added(sums: _Sums, costs: tuple[Cost, ...]) -> _Sums:
    """Return the sums after a charge, the same object for equal charges."""
    return _shared(tuple(sums.totals.items()), tuple(sums.released.items()), costs)


@lru_cache(maxsize=_KINDS)
def _shared(
    totals: tuple[tuple[CostKey, int], ...], released: tuple[tuple[tuple[str, Kind], int], ...], costs: tuple[Cost, ...]
) -> _Sums:
    added, counted = add_costs(dict(totals), costs), dict(released)
    for cost in costs:
        counted[cost.what, cost.kind] = counted.get((cost.what, cost.kind), 0) + cost.steps
    return _Sums(added, counted)


@lru_cache(maxsize=_KINDS)
def _then(charged: tuple[tuple[str, int], ...], number: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return (*charged, number)
