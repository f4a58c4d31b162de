"""DP-SCAFFOLD's bound on quadratics, with local steps, sampled users and noise; bounds that forget a term fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hush.bounds import dp_scaffold
from hush.bounds.dp_scaffold import Setting

CURVES = np.array([0.5, 1.0, 1.5, 2.0])  # user i has the loss a_i / 2 |x - c_i|^2
CENTRES = np.array([-3.0, 1.0, 2.0, -1.0])
START = 6.0
BEST = float(CURVES @ CENTRES / CURVES.sum())
REPEATS = 200


def runs(setting: Setting, rounds: int, seed: int = 0) -> np.ndarray:
    """The models before each round and after the last, in each of many runs of algorithm 1 from a warm start."""
    rng = np.random.default_rng(seed)
    x = np.full(REPEATS, START)
    deviation = np.sqrt(setting.noise)
    # Every user's variate is the mean of K noisy gradients at the start.
    users = CURVES * (START - CENTRES) + deviation / np.sqrt(setting.steps) * rng.normal(size=(REPEATS, 4))
    found = [x]
    for _ in range(rounds):
        server = users.mean(1)
        order = np.argsort(rng.random((REPEATS, 4)), axis=1)[:, : round(setting.share * 4)]
        present = np.zeros((REPEATS, 4), bool)
        np.put_along_axis(present, order, True, axis=1)
        y = np.repeat(x[:, None], 4, axis=1)
        for _ in range(setting.steps):
            noisy = CURVES * (y - CENTRES) + deviation * rng.normal(size=y.shape)
            y = y - setting.lr * (noisy + server[:, None] - users)
        new = users - server[:, None] + (x[:, None] - y) / (setting.steps * setting.lr)
        x = x + setting.server_lr * np.where(present, y - x[:, None], 0).sum(1) / present.sum(1)
        users = np.where(present, new, users)
        found.append(x)
    return np.array(found)


def gaps(models: np.ndarray) -> np.ndarray:
    """The loss above its minimum, on average over the runs."""
    return CURVES.mean() / 2 * ((models - BEST) ** 2).mean(1)


def setting(noise: float, share: float = 1.0, **more: float) -> Setting:
    """Local steps at the largest step size that the lemma allows."""
    made = Setting(
        steps=3, share=share, users=4, smoothness=2.0, variance=0.0, noise=noise, lr=1.0, distance=abs(START - BEST),
        **more,
    )  # fmt: skip
    return replace(
        made, lr=min(condition.limit for condition in made.conditions if condition.what == "local step size")
    )


@pytest.mark.parametrize("noise", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_mean_gap_is_below_the_bound(noise: float, share: float) -> None:
    made = setting(noise, share)
    counts = (1, 10, 100, 1000)
    found = dp_scaffold.mean_gap(made, counts)
    assert found.applies
    measured = gaps(runs(made, counts[-1])[:-1])
    for count, value in zip(counts, found.values, strict=True):
        assert measured[:count].mean() <= value


def test_a_bound_without_the_noise_fails() -> None:
    made = setting(1e4)
    rounds = 2000
    measured = gaps(runs(made, rounds)[:-1]).mean()
    assert measured <= dp_scaffold.mean_gap(made, [rounds]).values[0]
    assert measured > dp_scaffold.mean_gap(replace(made, noise=0.0), [rounds]).values[0]


def test_a_bound_without_the_distance_fails() -> None:
    made = setting(0.0)
    measured = gaps(runs(made, 50)[:-1]).mean()
    assert measured > dp_scaffold.mean_gap(replace(made, distance=0.0), [50]).values[0] == 0.0


@pytest.mark.parametrize("noise", [0.0, 100.0])
def test_the_distance_contracts_where_losses_are_strongly_convex(noise: float) -> None:
    made = setting(noise, convexity=0.5)
    counts = (1, 10, 100, 1000)
    found = dp_scaffold.squared_distance(made, counts)
    assert found.applies
    distances = ((runs(made, counts[-1]) - BEST) ** 2).mean(1)
    for count, value in zip(counts, found.values, strict=True):
        assert distances[count] <= value
    faster = dp_scaffold.squared_distance(replace(made, convexity=50.0, noise=0.0), counts)
    assert not faster.applies and any(
        distances[count] > value for count, value in zip(counts, faster.values, strict=True)
    )


def test_a_larger_step_breaks_a_condition() -> None:
    made = setting(1.0)
    assert not dp_scaffold.mean_gap(replace(made, lr=1.01 * made.lr), [1]).applies
    assert not dp_scaffold.mean_gap(replace(made, server_lr=0.5), [1]).applies
