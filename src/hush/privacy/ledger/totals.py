"""Totals: how many steps of each kind a client's charges add up to, the epsilon of these, and whether it fits a budget.

Guarantees:
    - Totals are approved, not the charges of one caller: any charges that stay within them keep the budget,
      whoever makes them. Totals that are nowhere above approved ones need no accountant: fewer steps never cost more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from hush.privacy.accounting import api, events, privacy_filter
from hush.privacy.accounting.cost import Cost, Kind
from hush.types import Accountant, Policy

SLACK = 1e-9

CostKey: TypeAlias = tuple[Kind, float, float, int, int]
Totals: TypeAlias = Mapping[CostKey, int]  # the number of steps of each kind


def add_costs(totals: Totals, costs: Iterable[Cost]) -> dict[CostKey, int]:
    """Add costs to the totals: the number of steps of each kind."""
    summed = dict(totals)
    for cost in costs:
        key = (cost.kind, cost.noise, cost.rate, cost.samples, cost.batch)
        summed[key] = summed.get(key, 0) + cost.steps
    return summed


def add_totals(totals: Totals, more: Totals) -> dict[CostKey, int]:
    """Add two totals."""
    return {key: totals.get(key, 0) + more.get(key, 0) for key in {**totals, **more}}


def totals_as_costs(totals: Totals) -> tuple[Cost, ...]:
    """Totals as costs, without names."""
    return tuple(
        Cost(what="total", kind=kind, noise=noise, steps=steps, rate=rate, samples=samples, batch=batch)
        for (kind, noise, rate, samples, batch), steps in totals.items()
        if steps
    )


def steps_of(totals: Totals) -> privacy_filter.Steps:
    """The steps of totals."""
    return _steps_of(tuple(totals.items()))


@lru_cache(maxsize=16384)
def _steps_of(totals: tuple[tuple[CostKey, int], ...]) -> privacy_filter.Steps:
    return events.parts_of_costs(totals_as_costs(dict(totals)))


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
    costs = totals_as_costs(dict(totals))
    if not costs:
        return 0.0
    if any(cost.noise == 0 for cost in costs):
        return math.inf
    return api.epsilon_of(costs, policy.delta, policy.relation, accountant)
