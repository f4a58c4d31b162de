"""Robust-HDP's bound on quadratics, with weights that are not those of the loss; bounds that forget a term fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hush.bounds import robust_hdp
from hush.bounds.robust_hdp import Setting

CENTRES = np.array([-2.0, 0.5, 3.0])  # client i has the loss |x - c_i|^2 / 2
SHARES = np.array([0.5, 0.3, 0.2])
START = 5.0
BEST = float(SHARES @ CENTRES)
COUNTS = (1, 10, 100, 2000)


def setting(variance: float, weights: np.ndarray = SHARES, steps: tuple[int, ...] = (2, 2, 2)) -> Setting:
    """Local steps at the largest step size that the theorem allows. Gradients are at most 8 on the way."""
    made = Setting(
        steps=steps, shares=SHARES.tolist(), weights=[weights.tolist()], smoothness=1.0, lipschitz=8.0,
        dissimilarity=5.0, variances=[variance, 2 * variance, 3 * variance], lr=1.0, gap=(START - BEST) ** 2 / 2,
    )  # fmt: skip
    return replace(made, lr=min(condition.limit for condition in made.conditions))


def gradients(made: Setting, rounds: int, repeats: int = 200) -> np.ndarray:
    """The squared norm of the gradient before each round, on average over runs."""
    rng = np.random.default_rng(1)
    x, found = np.full(repeats, START), []
    deviations = np.sqrt(made.variances)
    for _ in range(rounds):
        found.append(((x - BEST) ** 2).mean())
        updates = np.zeros((repeats, 3))
        for i, steps in enumerate(made.steps):
            y = x.copy()
            for _ in range(steps):
                y = y - made.lr * (y - CENTRES[i] + deviations[i] * rng.normal(size=repeats))
            updates[:, i] = y - x
        x = x + updates @ np.array(made.weights[0])
    return np.array(found)


@pytest.mark.parametrize("variance", [0.0, 10.0])
@pytest.mark.parametrize("weights", [SHARES, np.array([0.2, 0.3, 0.5])], ids=["own", "other"])
@pytest.mark.parametrize("steps", [(2, 2, 2), (1, 2, 4)])
def test_the_least_gradient_is_below_the_bound(variance: float, weights: np.ndarray, steps: tuple[int, ...]) -> None:
    made = setting(variance, weights, steps)
    found = robust_hdp.least_gradient(made, COUNTS)
    assert found.applies
    measured = gradients(made, COUNTS[-1])
    for count, value in zip(COUNTS, found.values, strict=True):
        assert measured[:count].min() <= value


def test_a_bound_without_the_noise_fails() -> None:
    made = setting(1e4)
    rounds = 4000
    measured = gradients(made, rounds).min()
    assert measured <= robust_hdp.least_gradient(made, [rounds]).values[0]
    quiet = replace(made, variances=[0.0] * 3, dissimilarity=0.0)
    assert measured > robust_hdp.least_gradient(quiet, [rounds]).values[0]


def test_a_bound_without_the_weights_fails() -> None:
    made = setting(0.0, np.array([0.0, 0.0, 1.0]))
    rounds = 20_000
    measured = gradients(made, rounds, repeats=1).min()
    assert measured <= robust_hdp.least_gradient(made, [rounds]).values[0]
    as_if = replace(made, weights=[SHARES.tolist()])
    assert measured > robust_hdp.least_gradient(as_if, [rounds]).values[0]


def test_a_larger_step_breaks_a_condition() -> None:
    made = setting(1.0)
    assert not robust_hdp.least_gradient(replace(made, lr=1.01 * made.lr), [1]).applies
