"""Batch sizes beyond which noise hardly falls: against the accountant, and the limits."""

from __future__ import annotations

import math

import pytest

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.batch_size import least_noise_batch
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.types import Policy

ROWS = 2000


def noise_per_row(policy: Policy, batch: int, steps: int) -> float:
    """The noise multiplier that the accountant asks for, over the sampling rate."""
    plan = PrivacyPlan(
        samples=ROWS, batch=batch, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation=policy.relation,
        accountant="pld", local_steps=steps,
    )  # fmt: skip
    costs: tuple[Cost, ...] = (plan.cost(),)
    assert costs[0].what == UPDATE
    return api.noise_scale(costs, policy.epsilon, policy.delta, policy.relation, "pld") / plan.rate


@pytest.mark.parametrize(("epsilon", "steps"), [(0.5, 30), (3.0, 30), (3.0, 300), (8.0, 300)])
def test_larger_batches_hardly_lower_the_noise(epsilon: float, steps: int) -> None:
    policy = Policy(epsilon, 1e-4)
    batch = least_noise_batch(policy, ROWS, steps)
    assert batch < ROWS
    chosen, full = noise_per_row(policy, batch, steps), noise_per_row(policy, ROWS, steps)
    assert 1.03 < chosen / full < 1.2
    assert noise_per_row(policy, max(1, batch // 4), steps) > 1.5 * full


def test_many_steps_and_small_budgets_take_small_batches() -> None:
    batches = [least_noise_batch(Policy(2.0, 1e-4), ROWS, steps) for steps in (10, 100, 1000, 10_000)]
    assert batches == sorted(batches, reverse=True)
    assert batches[1] == pytest.approx(batches[3] * 10, rel=0.05)
    assert least_noise_batch(Policy(0.1, 1e-4), ROWS, 100) < batches[1] / 10


def test_limits() -> None:
    assert least_noise_batch(Policy(math.inf, 1e-4), ROWS, 10) == ROWS
    assert least_noise_batch(Policy(50.0, 1e-4), ROWS, 1) == ROWS
    assert least_noise_batch(Policy(1e-6, 1e-9), ROWS, 10**6) == 1
    half = least_noise_batch(Policy(2.0, 1e-4, "replace-one"), ROWS, 100)
    assert half == pytest.approx(least_noise_batch(Policy(2.0, 1e-4), ROWS, 100) / 2, abs=1)
