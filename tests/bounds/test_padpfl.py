"""PADPFL's bound on quadratics: lemma 2 holds round by round and summed up; theorem 2 as printed falls below zero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hush.bounds import padpfl
from hush.bounds.padpfl import Setting

CURVES = np.array([0.4, 0.8, 1.0])  # client i has the loss a_i |x|^2 / 2, in 10 dimensions
FACTORS = np.array([0.2, 0.3, 0.5])
MEAN = float(FACTORS @ CURVES)
SIZE, START = 10, 3.0
GAP = MEAN / 2 * SIZE * START**2
# All gradients point the same way, so sum p_i |a_i x| = |sum p_i a_i x| and A is 1.
SETTING = Setting(mu=3.0, inexactness=0.0, smoothness=1.0, dissimilarity=1.0, gap=GAP, convexity=0.4)


def local(x: np.ndarray, setting: Setting) -> np.ndarray:
    """The mean of the solved local problems: l_i(y) + mu / 2 |y - x|^2 is least at mu x / (mu + a_i)."""
    return float(FACTORS @ (setting.mu / (setting.mu + CURVES))) * x


def gaps(setting: Setting, rounds: int, deviation: float) -> np.ndarray:
    """The loss above its minimum after each round, on average over runs."""
    rng = np.random.default_rng(3)
    x, found = np.full((300, SIZE), START), []
    for _ in range(rounds):
        x = local(x, setting) + deviation * rng.normal(size=x.shape)
        found.append(MEAN / 2 * (x**2).sum(1).mean())
    return np.array(found)


@pytest.mark.parametrize("deviation", [0.0, 0.1, 1.0])
def test_a_round_adds_no_more_than_lemma_2_says(deviation: float) -> None:
    rng = np.random.default_rng(4)
    x = np.full(SIZE, START)
    noise = deviation * rng.normal(size=(20_000, SIZE))
    after = MEAN / 2 * ((local(x, SETTING) + noise) ** 2).sum(1).mean()
    norms = np.linalg.norm(noise, axis=1)
    most = padpfl.increment(SETTING, float(MEAN * np.linalg.norm(x)), float(norms.mean()), float((norms**2).mean()))
    assert after - GAP <= most
    if deviation == 0.0:
        assert most < 0


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.5])
def test_summed_up_it_holds_for_strongly_convex_losses(deviation: float) -> None:
    counts = (1, 10, 100)
    found = padpfl.contracted(SETTING, counts, SIZE * deviation**2)
    assert found.applies
    measured = gaps(SETTING, counts[-1], deviation)
    for count, value in zip(counts, found.values, strict=True):
        assert measured[count - 1] <= value


def test_without_the_noise_it_fails() -> None:
    measured = gaps(SETTING, 100, 0.5)[-1]
    assert measured > padpfl.contracted(SETTING, [100], 0.0).values[0]


def test_as_printed_it_falls_below_zero() -> None:
    """Where lambda_2 is negative, as progress needs, beta^2 is put in place of something smaller."""
    largest = MEAN * np.sqrt(SIZE) * START
    rounds = 200
    (value,) = padpfl.printed(
        SETTING,
        [rounds],
        gradient=float(largest),
        bound=1e-6,
        largest=0.5,
        rows=150,
        clients=3,
        epsilon=5.0,
        delta=0.01,
    ).values
    assert SETTING.lambdas[0] < 0 and value < 0 <= gaps(SETTING, rounds, 0.0)[-1]


def test_a_weak_proximal_term_breaks_the_condition() -> None:
    assert not padpfl.contracted(replace(SETTING, mu=1.0), [1], 0.0).applies
