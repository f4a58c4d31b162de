"""What was spent, in epsilon: always computed from the costs, never taken from a record.

Guarantees:
    - `epsilon` is the accountant's bound for all costs together, under the policy's delta and relation.
    - `fits` decides by that bound alone. A total that is nowhere above an approved one needs no second look, since
      fewer steps never cost more.

Edge cases:
    - No cost is 0; a release without noise is infinite, which only an infinite budget affords.
    - `left` is the difference of two epsilons. Epsilons do not add up exactly: `fits` says what can be afforded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from hush.privacy import accounting
from hush.privacy.cost import Cost, Kind
from hush.types import Accountant, Policy

Key: TypeAlias = tuple[Kind, float, float, int, int]
Totals: TypeAlias = Mapping[Key, int]

SLACK = 1e-9


def plus(totals: Totals, costs: Iterable[Cost]) -> dict[Key, int]:
    """The totals with these costs added: how many steps of each sort."""
    summed = dict(totals)
    for cost in costs:
        key = (cost.kind, cost.noise, cost.rate, cost.samples, cost.batch)
        summed[key] = summed.get(key, 0) + cost.steps
    return summed


def within(totals: Totals, approved: Totals) -> bool:
    """Whether no sort of step was taken more often than approved."""
    return all(steps <= approved.get(key, 0) for key, steps in totals.items())


def epsilon(totals: Totals, policy: Policy, accountant: Accountant) -> float:
    """An upper bound on the epsilon of the totals."""
    return _epsilon(tuple(totals.items()), policy, accountant)


def fits(spent: float, policy: Policy) -> bool:
    """Whether this much may be spent in all."""
    return spent <= policy.epsilon + SLACK


def left(spent: float, policy: Policy) -> float:
    """What remains of the budget."""
    return math.inf if policy.epsilon == math.inf else max(0.0, policy.epsilon - spent)


@lru_cache(maxsize=16384)
def _epsilon(totals: tuple[tuple[Key, int], ...], policy: Policy, accountant: Accountant) -> float:
    costs = [
        Cost("total", kind, noise, steps, rate, samples, batch)
        for (kind, noise, rate, samples, batch), steps in totals
        if steps
    ]
    if not costs:
        return 0.0
    if any(cost.noise == 0 for cost in costs):
        return math.inf
    return accounting.epsilon_of(costs, policy.delta, policy.relation, accountant)
