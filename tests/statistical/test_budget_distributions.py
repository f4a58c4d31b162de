"""The budgets drawn by name follow the papers' distributions, and a wrong reading of them would be noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from hush.data.budgets import budgets
from hush.data.distributions import DISTRIBUTIONS, Mixture, Normal
from hush.seeds import rng

DRAWS = 5000
THRESHOLD = 1e-6

# Written again from the papers' tables, apart from the code under test: (mean, std, weight).
NORMALS = {
    "dist1": [(2.0, 1.0, 1.0)],
    "dist2": [(0.2, 0.01, 0.2), (1.0, 0.1, 0.6), (5.0, 1.0, 0.2)],
    "dist4": [(0.2, 0.01, 0.2), (0.5, 0.1, 0.6), (2.0, 1.0, 0.2)],
    "dist6": [(0.2, 0.01, 0.3), (0.5, 0.1, 0.5), (1.0, 0.1, 0.2)],
    "dist8": [(0.2, 0.01, 0.6), (0.5, 0.1, 0.4)],
    "gauss": [(3.0, 1.0, 1.0)],
    "mixgauss1": [(0.1, 0.01, 0.9), (10.0, 0.1, 0.1)],
    "mixgauss2": [(0.5, 0.01, 0.9), (10.0, 0.1, 0.1)],
    "mixgauss3": [(1.0, 0.1, 0.9), (10.0, 0.1, 0.1)],
    "mixgauss4": [(0.1, 0.01, 0.5), (1.0, 0.1, 0.4), (10.0, 1.0, 0.1)],
}
UNIFORMS = {"dist3": (0.2, 5.0), "dist5": (0.2, 2.0), "dist7": (0.2, 1.0), "dist9": (0.2, 0.5), "uniform": (1.0, 10.0)}


def positive_normals(parts: list[tuple[float, float, float]]) -> Any:
    def cdf(x: np.ndarray) -> np.ndarray:
        return sum(weight * stats.truncnorm.cdf(x, -mean / std, np.inf, mean, std) for mean, std, weight in parts)

    return cdf


def expected(name: str) -> Any:
    if name in NORMALS:
        return positive_normals(NORMALS[name])
    if name in UNIFORMS:
        low, high = UNIFORMS[name]
        return stats.uniform(low, high - low).cdf
    return stats.pareto(1.5, scale=0.5).cdf


def p_value(drawn: np.ndarray, cdf: Any) -> float:
    return float(stats.kstest(drawn, cdf).pvalue)


def test_all_distributions_are_covered() -> None:
    assert {*NORMALS, *UNIFORMS, "pareto"} == set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_follow_the_table(name: str) -> None:
    drawn = np.array(budgets(name, DRAWS, 11))
    assert p_value(drawn, expected(name)) > THRESHOLD
    assert p_value(1.1 * drawn, expected(name)) < THRESHOLD


def test_second_parameter_read_as_variance_would_be_noticed() -> None:
    twin = positive_normals([(mean, np.sqrt(std), weight) for mean, std, weight in NORMALS["dist2"]])
    assert p_value(np.array(budgets("dist2", DRAWS, 3)), twin) < THRESHOLD


def test_draws_at_or_below_zero_are_drawn_again_not_clipped() -> None:
    drawn = np.array(budgets("dist1", 20_000, 5))
    assert len(np.unique(drawn)) == len(drawn) and drawn.min() > 0
    assert p_value(drawn, expected("dist1")) > THRESHOLD
    clipped = np.maximum(np.random.default_rng(0).normal(2.0, 1.0, 20_000), 1e-3)
    assert p_value(clipped, expected("dist1")) < THRESHOLD


def test_components_keep_their_weights_when_values_are_drawn_again() -> None:
    # Two thirds of the second component's draws are redrawn; redrawing the component too would leave it a quarter.
    mixture = Mixture((Normal(1.0, 0.01), Normal(-0.43, 1.0)), (0.5, 0.5))
    gen = rng(0, "weights")
    drawn = np.array([mixture.draw(gen) for _ in range(DRAWS)])
    cdf = positive_normals([(1.0, 0.01, 0.5), (-0.43, 1.0, 0.5)])
    twin = positive_normals([(1.0, 0.01, 0.75), (-0.43, 1.0, 0.25)])
    assert p_value(drawn, cdf) > THRESHOLD > p_value(drawn, twin)
