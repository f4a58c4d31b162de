"""PFA's bound on a quadratic: as printed it is broken by noise, with the noise in its last term it holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hush.bounds import pfa
from hush.bounds.pfa import Setting

START, REPEATS = 4.0, 100


def measured(made: Setting, rounds: int) -> np.ndarray:
    """The mean squared gradient of x^2 / 2 after 1, 2, ... steps of the clients' mean model, all directions kept."""
    rng = np.random.default_rng(2)
    x, found = np.full(REPEATS, START), []
    for _ in range(rounds):
        y = np.repeat(x[:, None], made.clients, axis=1)
        for _ in range(made.steps):
            y = y - made.lr * (y + np.sqrt(made.noise) * rng.normal(size=y.shape))
            found.append((y.mean(1) ** 2).mean())
        x = y.mean(1)
    return np.cumsum(found) / (np.arange(len(found)) + 1)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 1.0, 100.0])
def test_with_the_noise_in_its_last_term_it_holds(noise: float, steps: int) -> None:
    made = Setting(
        steps=steps, clients=10, smoothness=1.0, variance=0.0, batch=8, noise=noise, lr=0.01, gap=START**2 / 2
    )
    counts = (1, 10, 100, 2000)
    curve = measured(made, counts[-1])
    found = pfa.mean_gradient(made, counts, printed=False)
    for count, value in zip(counts, found.values, strict=True):
        assert curve[count * steps - 1] <= value


def test_as_printed_it_is_broken_by_noise() -> None:
    made = Setting(steps=1, clients=10, smoothness=1.0, variance=0.0, batch=8, noise=100.0, lr=0.005, gap=START**2 / 2)
    rounds = 20_000
    found = pfa.mean_gradient(made, [rounds])
    assert found.caveat and measured(made, rounds)[-1] > found.values[0]
    assert measured(made, rounds)[-1] <= pfa.mean_gradient(made, [rounds], printed=False).values[0]


def test_without_noise_both_are_the_same() -> None:
    made = Setting(steps=2, clients=5, smoothness=2.0, variance=3.0, batch=4, noise=0.0, lr=0.1, gap=1.0)
    assert pfa.mean_gradient(made, [7]).values == pfa.mean_gradient(made, [7], printed=False).values
    assert pfa.mean_gradient(replace(made, variance=6.0), [7]).values[0] > pfa.mean_gradient(made, [7]).values[0]
