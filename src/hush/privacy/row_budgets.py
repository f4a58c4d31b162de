"""Row budgets: rows of one client with budgets of their own, kept by sampling rates of their own.

Individualised DP-SGD by sampling (Boenisch et al. 2023, IDP-SGD, "Sample"): all rows share the noise and the clip, and
a row with a smaller budget enters batches less often. The noise is chosen so that the expected batch is the configured
one when every group of rows with equal budgets is sampled as often as its budget allows.

Guarantees:
    - The epsilon of a group over all steps, at its own rate and the common noise, is at most its budget (Theorem 12 of
      docs/proofs.md).
    - The expected batch is the configured one.

Edge cases:
    - One group gets the rate and, but for rounding, the noise of a plan without row budgets.
    - The sizes of the groups determine rates and noise, which the server knows: budgets, and how many rows have each,
      are taken as public. Which row has which budget stays at the client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from hush.privacy.accounting import api
from hush.types import Accountant, HushError, Policy, Relation

if TYPE_CHECKING:
    from hush.privacy.schedule import PrivacySchedule

Groups = tuple[tuple[float, int], ...]
_LEAST_RATE, _MOST_NOISE = 1e-7, 1e4
_RATE_TOLERANCE, _NOISE_TOLERANCE = 1e-3, 2e-3


@dataclass(frozen=True)
class RateGroup:
    """Rows with equal budgets: the budget, how many there are, and the probability with which each is sampled."""

    budget: float
    units: int
    rate: float


def capped(groups: Groups, most: float) -> Groups:
    """The groups with no budget above that of the client, in order of their budgets."""
    counts: dict[float, int] = {}
    for budget, units in groups:
        counts[min(budget, most)] = counts.get(min(budget, most), 0) + units
    return tuple(sorted(counts.items()))


def planned(schedule: PrivacySchedule, policy: Policy, groups: Groups) -> PrivacySchedule:
    """The schedule with the noise and the rates that keep the budget of every group over all of its rounds."""
    plan = schedule.plan
    steps = sum((stage.rounds + stage.spare) * stage.plan.steps for stage in schedule.stages if stage.spec.train)
    noise, rated = rates(
        capped(groups, policy.epsilon), plan.batch, max(1, steps), policy.delta, policy.relation, plan.accountant
    )
    stages = (
        replace(stage, plan=replace(stage.plan, noise_multiplier=noise, groups=rated)) for stage in schedule.stages
    )
    return replace(schedule, stages=tuple(stages))


@lru_cache(maxsize=4096)
def rates(
    groups: Groups, batch: int, steps: int, delta: float, relation: Relation, accountant: Accountant
) -> tuple[float, tuple[RateGroup, ...]]:
    """Return the least noise, and the rate of each group, at which batches of that size keep all budgets."""
    if not all(budget > 0 and math.isfinite(budget) and units > 0 for budget, units in groups):
        raise HushError("privacy.row_budgets: accepted: positive numbers", "privacy.row_budgets")

    def at(noise: float) -> tuple[float, ...]:
        return tuple(_rate(budget, noise, steps, delta, relation, accountant) for budget, _ in groups)

    def expected(found: Sequence[float]) -> float:
        return sum(rate * units for rate, (_, units) in zip(found, groups, strict=True))

    low, high = api.LEAST_NOISE, 1.0
    while expected(found := at(high)) < batch:
        low, high = high, 2.0 * high
        if high > _MOST_NOISE:
            raise HushError("privacy.row_budgets: too small for batches of this size", "privacy.row_budgets")
    while high / low > 1.0 + _NOISE_TOLERANCE:
        middle = math.sqrt(low * high)
        if expected(tried := at(middle)) < batch:
            low = middle
        else:
            high, found = middle, tried
    # A little less often than the budgets allow, so that the expected batch is what sums are divided by.
    scale = min(1.0, batch / expected(found))
    rated = (RateGroup(budget, units, scale * rate) for rate, (budget, units) in zip(found, groups, strict=True))
    return high, tuple(rated)


def epsilons(
    groups: Sequence[RateGroup], noise: float, steps: int, delta: float, relation: Relation, accountant: Accountant
) -> tuple[float, ...]:
    """The epsilon of the rows of each group after so many steps."""
    return tuple(api.epsilon_after(group.rate, noise, [steps], delta, relation, accountant)[0] for group in groups)


def _rate(budget: float, noise: float, steps: int, delta: float, relation: Relation, accountant: Accountant) -> float:
    """The highest rate at which so many steps stay within a budget, found from below."""

    def fits(rate: float) -> bool:
        return api.epsilon_after(rate, noise, [steps], delta, relation, accountant)[0] <= budget

    if fits(1.0):
        return 1.0
    low, high = _LEAST_RATE, 1.0
    if not fits(low):
        return 0.0
    while high / low > 1.0 + _RATE_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
