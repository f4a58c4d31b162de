"""The statistics of an audit hold what they promise, each beside a wrong twin that does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from hush.auditing import statistics as statistics
from hush.privacy.accounting import gaussian
from hush.types import HushError, Relation

Bounding = Callable[[np.ndarray, np.ndarray, float, float], float]


def test_one_run_bounds_as_published() -> None:
    """The two examples that Steinke, Nasr and Jagielski print."""
    assert statistics._refuted(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=1e-3)
    assert statistics._refuted(100_000, 1510, 1439, 1e-5, 0.05) == pytest.approx(2.675, abs=1e-3)


def test_p_value_is_the_binomial_tail_and_grows_with_epsilon_and_delta() -> None:
    assert statistics.p_value(100, 100, 75, math.log(3), 0.0) == pytest.approx(stats.binom.sf(74, 100, 0.75))
    grid = [statistics.p_value(200, 60, 50, epsilon, 1e-4) for epsilon in np.linspace(0, 4, 30)]
    assert grid == sorted(grid)
    assert statistics.p_value(200, 60, 50, 1.0, 1e-3) > statistics.p_value(200, 60, 50, 1.0, 1e-4) > 0
    assert statistics.p_value(10, 4, 0, 0.0, 0.1) == 1.0
    with pytest.raises(HushError, match="5 correct of 4 guesses"):
        statistics.p_value(10, 4, 5, 1.0, 0.1)


def answers(epsilon: float, truth: np.ndarray, seed: int) -> np.ndarray:
    """Randomised response: the mechanism that makes the most of a pure epsilon."""
    honest = np.random.default_rng(seed).random(len(truth)) < 1 / (1 + math.exp(-epsilon))
    return np.where(honest, truth, ~truth).astype(float)


def too_high(bound: Bounding, trials: int = 300, runs: int = 300) -> int:
    """How often a bound at 95 % exceeds the true epsilon of randomised response."""
    no, yes = np.zeros(runs, bool), np.ones(runs, bool)
    return sum(bound(answers(1.0, no, 2 * s), answers(1.0, yes, 2 * s + 1), 0.0, 0.95) > 1.0 for s in range(trials))


def plug_in(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> float:
    """The wrong twin: rates as they are, without any confidence."""
    return math.log(present.mean() / absent.mean())


def rarely(count: int, trials: int = 300) -> bool:
    return bool(stats.binom.sf(count - 1, trials, 0.05) > 1e-4)


def test_two_datasets_keeps_its_confidence_and_a_plug_in_does_not() -> None:
    assert rarely(too_high(statistics.two_datasets))
    assert not rarely(too_high(plug_in))


def pooled(refutes: Callable[[np.ndarray, np.ndarray], bool]) -> int:
    tosses = [np.random.default_rng(1000 + s).random(200) < 0.5 for s in range(300)]
    return sum(refutes(answers(1.0, toss, s), toss) for s, toss in enumerate(tosses))


def by_the_best_of_all_guesses(scores: np.ndarray, included: np.ndarray) -> bool:
    """The wrong twin: the best number of guesses, as if it had been the only one tried."""
    ranked = included[np.argsort(scores, kind="stable")]
    sides = np.arange(4, 101)
    correct = np.cumsum(ranked[::-1])[sides - 1] + np.cumsum(~ranked)[sides - 1]
    return bool((stats.binom.sf(correct - 1, 2 * sides, 1 / (1 + math.exp(-1.0))) < 0.05).any())


def test_one_run_keeps_its_confidence_and_choosing_afterwards_does_not() -> None:
    assert rarely(pooled(lambda scores, included: statistics.one_run(scores, included, 0.0, 0.95) > 1.0))
    assert not rarely(pooled(by_the_best_of_all_guesses))


def test_delta_is_allowed_for() -> None:
    """A mechanism that gives a row away once in a hundred runs is (0, 0.01)-private."""
    absent, present = np.zeros(60_000), np.zeros(60_000)
    present[np.random.default_rng(1).random(60_000) < 0.01] = 1.0
    assert statistics.two_datasets(absent, present, 0.01, 0.95) < 0.5
    assert statistics.two_datasets(absent, present, 0.001, 0.95) > 4.0


def test_scores_that_say_nothing_give_zero() -> None:
    rng = np.random.default_rng(1)
    assert statistics.two_datasets(np.ones(100), np.ones(100), 1e-5, 0.95) == 0.0
    assert statistics.two_datasets(rng.normal(size=(3000, 5)), rng.normal(size=(3000, 5)), 1e-5, 0.999) < 0.1
    assert statistics.one_run(rng.normal(size=1000), rng.random(1000) < 0.5, 1e-5, 0.999) < 0.1
    assert statistics.one_run(np.ones(3), np.ones(3, bool), 1e-5, 0.95) == 0.0


def test_total_failure_gives_the_highest_bound() -> None:
    judged = 3000 - int(statistics.choosing(3000).sum())
    highest = statistics.two_datasets(np.zeros(3000), np.full(3000, math.nan), 0.0, 0.95)
    assert statistics.two_datasets(np.zeros(3000), np.ones(3000), 0.0, 0.95) == highest
    assert highest == pytest.approx(math.log(judged / -math.log(0.025)), abs=0.01)


def test_a_discriminant_finds_a_column_without_noise() -> None:
    rng = np.random.default_rng(1)
    absent, present = rng.normal(size=(1500, 6)), rng.normal(size=(1500, 6))
    absent[:, 4], present[:, 4] = 0.0, 1e-3
    assert statistics.two_datasets(absent[:, :4], present[:, :4], 1e-5, 0.95) < 1.0
    assert statistics.two_datasets(absent, present, 1e-5, 0.95) > 5.0


def test_the_gaussian_estimate_is_near_the_truth_and_below() -> None:
    rng = np.random.default_rng(1)
    mu = 1 / gaussian.noise_for(3.0, 1e-4)
    found = [statistics.if_gaussian(rng.normal(size=4000), mu + rng.normal(size=4000), 1e-4, 0.95) for _ in range(100)]
    assert sum(epsilon > 3.0 for epsilon in found) < 15
    assert np.mean(found) > 2.7
    assert statistics.if_gaussian(np.zeros(5), np.ones(5), 1e-4, 0.95) == math.inf
    assert statistics.if_gaussian(np.zeros(5), np.zeros(5), 1e-4, 0.95) == 0.0
    assert statistics.if_gaussian(np.zeros(1), np.zeros(5), 1e-4, 0.95) == 0.0


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_likelihood_is_that_of_the_mechanism(relation: Relation) -> None:
    """One step: as the accountant has it. Several: by adding up all ways to be sampled."""
    x = np.linspace(-4, 5, 30)
    direction: gaussian.Direction = "replace" if relation == "replace-one" else "remove"
    single = statistics.log_likelihood(x, 0.3, 1, 0.8, relation)
    np.testing.assert_allclose(single, gaussian.loss(x, 0.3, 0.8, direction), rtol=1e-9, atol=1e-12)
    sign = -1.0 if relation == "replace-one" else 0.0

    def density(move: float) -> np.ndarray:
        ways = [stats.binom.pmf(k, 3, 0.3) * stats.norm.pdf(x, move * k, 0.8 * math.sqrt(3)) for k in range(4)]
        return np.sum(ways, axis=0)

    expected = np.log(density(1.0) / density(sign))
    np.testing.assert_allclose(statistics.log_likelihood(x, 0.3, 3, 0.8, relation), expected, rtol=1e-9, atol=1e-12)
