"""RC-DPFL's bounds: the overlap is what two Gaussians have, and the variance is that of the product's plans."""

from __future__ import annotations

import numpy as np
import pytest

from hush.bounds import rc_dpfl
from hush.privacy.plan import PrivacyPlan


@pytest.mark.parametrize(("distance", "variance", "parameters"), [(1.0, 4.0, 5), (0.3, 1.0, 40), (2.0, 1.0, 1)])
def test_the_overlap_is_twice_the_error_of_the_best_rule(distance: float, variance: float, parameters: int) -> None:
    rng = np.random.default_rng(5)
    drawn = rng.normal(scale=np.sqrt(variance / parameters), size=(200_000, parameters))
    wrong = (drawn[:, 0] > distance / 2).mean()  # nearer to the other mean, along the line between them
    assert rc_dpfl.overlap(distance, variance, parameters) == pytest.approx(2 * wrong, abs=0.006)
    planted = rc_dpfl.overlap(distance, variance, 4 * parameters)
    assert abs(planted - 2 * wrong) > 0.006


def test_a_larger_batch_separates_clusters() -> None:
    small, large = (
        rc_dpfl.update_variance(epochs=1, rows=2400, batch=b, lr=0.1, parameters=100, clip=1.0, multiplier=2.0)
        for b in (32, 2400)
    )
    assert small / large == pytest.approx((2400 / 32) ** 3)
    assert rc_dpfl.overlap(0.1, large, 100) < rc_dpfl.overlap(0.1, small, 100)


def test_the_variance_is_that_of_the_plan() -> None:
    plan = PrivacyPlan(
        samples=2400,
        batch=32,
        epochs=2,
        rounds=5,
        clip=0.7,
        noise_multiplier=1.3,
        relation="add-remove",
        accountant="pld",
    )
    found = rc_dpfl.update_variance(epochs=2, rows=2400, batch=32, lr=0.05, parameters=100, clip=0.7, multiplier=1.3)
    assert found == pytest.approx(plan.update_noise(0.05, 100))
