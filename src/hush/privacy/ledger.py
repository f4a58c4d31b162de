"""What a client has spent, and the only maker of the receipts that let an update out.

Guarantees:
    - `reserve` charges a round before it is trained. A round that would take the client beyond its budget raises
      `BudgetSpentError` and charges nothing.
    - A round is reserved once. Nothing is ever refunded.
    - `spent` is computed from the events that were reserved, not from what was planned.

Edge cases:
    - `approve` verifies a whole plan once, so that the rounds within it need no further look at the accountant.
    - A policy of infinite epsilon promises nothing: training without noise then costs infinity from its first round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hush.privacy import accounting
from hush.privacy.cost import Cost, composed
from hush.privacy.plan import PrivacyPlan
from hush.types import Accountant, HushError, Policy, Receipt

_SLACK = 1e-9


class BudgetSpentError(HushError):
    """The next round would exceed the client's budget."""


class MemoryLedger:
    """A client's account for the length of one simulation."""

    def __init__(self, client: int, policy: Policy, accountant: Accountant) -> None:
        self._client = client
        self._policy = policy
        self._accountant: Accountant = accountant
        self._steps: dict[tuple[float, float], int] = {}
        self._approved: dict[tuple[float, float], int] = {}
        self._rounds: set[int] = set()

    def approve(self, plan: PrivacyPlan) -> None:
        """Check that the whole plan fits the budget."""
        key, steps = _key(plan), plan.rounds * plan.steps
        self._check({key: steps})
        self._approved = {key: steps}

    def reserve(self, plan: PrivacyPlan, round_number: int) -> Receipt:
        """Charge one round of the plan, or raise `BudgetSpentError`."""
        if round_number in self._rounds:
            raise HushError(f"client {self._client}: round {round_number} is already charged")
        key = _key(plan)
        wanted = {**self._steps, key: self._steps.get(key, 0) + plan.steps}
        if any(steps > self._approved.get(each, 0) for each, steps in wanted.items()):
            self._check(wanted)
        self._steps = wanted
        self._rounds.add(round_number)
        return Receipt(self._client, round_number, len(self._rounds))

    @property
    def rounds(self) -> int:
        """Rounds charged so far."""
        return len(self._rounds)

    def spent(self) -> float:
        """Epsilon of all that was reserved."""
        return self._epsilon(self._steps)

    def _check(self, steps: dict[tuple[float, float], int]) -> None:
        cost, budget = self._epsilon(steps), self._policy.epsilon
        if cost > budget + _SLACK:
            raise BudgetSpentError(f"client {self._client}: epsilon {cost:.4g} would exceed the budget of {budget:.4g}")

    def _epsilon(self, steps: dict[tuple[float, float], int]) -> float:
        if not steps:
            return 0.0
        if any(z <= 0 for _, z in steps):
            return math.inf
        policy = self._policy
        return accounting.epsilon(_composed(steps.items()), policy.delta, policy.relation, self._accountant)


def _key(plan: PrivacyPlan) -> tuple[float, float]:
    return plan.rate, plan.noise_multiplier


def _composed(steps: Iterable[tuple[tuple[float, float], int]]) -> accounting.Event:
    return composed(Cost("model update", "poisson-gaussian", z, count, rate) for (rate, z), count in steps)
