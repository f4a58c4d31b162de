"""The statistics of an audit hold what they promise, each beside a wrong twin that does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from hush.auditing import statistics as statistics
from hush.auditing.trade_off import Planned, TradeOff
from hush.privacy.accounting import gaussian
from hush.privacy.accounting.cost import Cost
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


def exact(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> float:
    return statistics.two_datasets(absent, present, delta, confidence).epsilon(delta)


def plug_in(absent: np.ndarray, present: np.ndarray, delta: float, confidence: float) -> float:
    """The wrong twin: rates as they are, without any confidence."""
    return math.log(present.mean() / absent.mean())


def rarely(count: int, trials: int = 300) -> bool:
    return bool(stats.binom.sf(count - 1, trials, 0.05) > 1e-4)


def test_two_datasets_keeps_its_confidence_and_a_plug_in_does_not() -> None:
    assert rarely(too_high(exact))
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
    assert rarely(pooled(lambda scores, included: statistics.one_run(scores, included, 0.95).epsilon(0.0) > 1.0))
    assert not rarely(pooled(by_the_best_of_all_guesses))


def test_delta_is_allowed_for() -> None:
    """A mechanism that gives a row away once in a hundred runs is (0, 0.01)-private."""
    absent, present = np.zeros(60_000), np.zeros(60_000)
    present[np.random.default_rng(1).random(60_000) < 0.01] = 1.0
    assert exact(absent, present, 0.01, 0.95) < 0.5
    assert exact(absent, present, 0.001, 0.95) > 4.0


def test_scores_that_say_nothing_give_zero() -> None:
    rng = np.random.default_rng(1)
    assert exact(np.ones(100), np.ones(100), 1e-5, 0.95) == 0.0
    assert exact(rng.normal(size=(3000, 5)), rng.normal(size=(3000, 5)), 1e-5, 0.999) < 0.1
    assert statistics.one_run(rng.normal(size=1000), rng.random(1000) < 0.5, 0.999).epsilon(1e-5) < 0.1
    assert statistics.one_run(np.ones(3), np.ones(3, bool), 0.95).epsilon(1e-5) == 0.0


def test_total_failure_gives_the_highest_bound() -> None:
    judged = 3000 - int(statistics.choosing(3000).sum())
    highest = exact(np.zeros(3000), np.full(3000, math.nan), 0.0, 0.95)
    assert exact(np.zeros(3000), np.ones(3000), 0.0, 0.95) == highest
    assert highest == pytest.approx(math.log(2 * judged / -math.log(0.025)), abs=0.01)


def test_a_discriminant_finds_a_column_without_noise() -> None:
    rng = np.random.default_rng(1)
    absent, present = rng.normal(size=(1500, 6)), rng.normal(size=(1500, 6))
    absent[:, 4], present[:, 4] = 0.0, 1e-3
    assert exact(absent[:, :4], present[:, :4], 1e-5, 0.95) < 1.0
    assert exact(absent, present, 1e-5, 0.95) > 5.0


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


# Against a curve: whole trade-offs, which the accountant knows.


def gaussian_plan(epsilon: float, delta: float) -> Planned:
    noise = gaussian.noise_for(epsilon, delta)
    return Planned(costs=(Cost(what="model update", kind="gaussian", noise=noise, steps=1),), delta=delta,
                   relation="add-remove")  # fmt: skip


def normal(move: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed).normal(size=(2, runs))
    return drawn[0], move + drawn[1]


def test_two_datasets_refute_a_true_curve_rarely_and_half_the_noise_always() -> None:
    plan = gaussian_plan(2.0, 1e-3)
    move = 1.0 / plan.costs[0].noise
    found = [statistics.two_datasets(*normal(move, 1000, seed), 1e-3, 0.95) for seed in range(300)]
    assert rarely(sum(one.refutes(plan.curve()) for one in found))
    # The wrong twin: what was seen, without any confidence.
    assert sum(float(np.mean(normal(move, 1000, s)[1] > move / 2)) > plan.curve().accuracy for s in range(300)) > 60
    assert all(one.refutes(plan.curve(2.0)) for one in found[:20])
    assert all(statistics.two_datasets(*normal(2 * move, 400, s), 1e-3, 0.999).refutes(plan.curve()) for s in range(20))


def test_the_bound_of_a_curve_is_near_its_epsilon() -> None:
    plan = gaussian_plan(2.0, 1e-3)
    found = statistics.two_datasets(*normal(1.0 / plan.costs[0].noise, 10_000, 1), 1e-3, 0.95)
    noise = plan.least_refuted(found.refutes)
    assert 1.0 < noise < 1.2
    assert 0.8 * 2.0 < plan.epsilon(noise) < 2.0


def test_tails_find_what_the_middle_does_not() -> None:
    """A mechanism that gives a row away once in fifty runs: accuracy is nothing, the tails are all."""
    absent, present = np.zeros(4000), (np.random.default_rng(1).random(4000) < 0.02).astype(float)
    found = statistics.two_datasets(absent, present, 1e-5, 0.95)
    plan = gaussian_plan(1.0, 1e-5)
    assert found.accuracy < plan.curve().accuracy
    assert found.refutes(plan.curve())


def strengths(move: float, canaries: int, rng: np.random.Generator) -> tuple[int, np.ndarray, np.ndarray]:
    """The worst mechanism for many canaries: all are answered with one strength, which it draws anew for each run.

    About each canary alone it says what Gaussian noise says, since that is a mixture of randomised responses.
    """
    truth = rng.random(canaries) < 0.5
    loss = abs(0.5 * move**2 + move * rng.normal())
    honest = rng.random(canaries) < 1.0 / (1.0 + math.exp(-loss))
    return int(honest.sum()), truth, np.where(honest, truth, ~truth).astype(float)


def test_guesses_about_many_canaries_refute_a_true_curve_rarely() -> None:
    plan, canaries = gaussian_plan(2.0, 1e-5), 200
    move, rng = 1.0 / plan.costs[0].noise, np.random.default_rng(1)
    independent, alike, naive = 0, 0, 0
    for _ in range(150):
        truth = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + move * truth
        independent += statistics.one_run(scores, truth, 0.95, 50).refutes(plan.curve())
        right, truth, guessed = strengths(move, canaries, rng)
        alike += statistics.one_run(guessed, truth, 0.95, 50).refutes(plan.curve())
        # The wrong twin: guesses about canaries taken for independent ones.
        naive += bool(stats.binom.sf(right - 1, canaries, plan.curve().accuracy) < 0.05)
    assert rarely(independent, 150) and rarely(alike, 150)
    assert not rarely(naive, 150)


def test_many_canaries_refute_too_little_noise() -> None:
    plan, rng = gaussian_plan(2.0, 1e-5), np.random.default_rng(2)
    for _ in range(10):
        truth = rng.random(1000) < 0.5
        scores = rng.normal(size=1000) + 3.0 / plan.costs[0].noise * truth
        assert statistics.one_run(scores, truth, 0.95, 124).refutes(plan.curve())


def test_several_runs_have_a_mean_and_what_they_have_in_common_does_not_matter() -> None:
    plan, canaries, rng = gaussian_plan(2.0, 1e-5), 50, np.random.default_rng(3)
    move, wrong = 1.0 / plan.costs[0].noise, 0
    for _ in range(100):
        drawn = [strengths(move, canaries, rng)[1:] for _ in range(60)]
        found = statistics.one_run(np.stack([d[1] for d in drawn]), np.stack([d[0] for d in drawn]), 0.95)
        wrong += found.accuracy > plan.curve().accuracy
    assert stats.binom.sf(wrong - 1, 100, 0.025) > 1e-4
    truth = rng.random((100, canaries)) < 0.5
    scores = rng.normal(size=(100, canaries)) + move * truth
    found = statistics.one_run(scores, truth, 0.95)
    assert 0.9 * plan.curve().accuracy < found.accuracy < plan.curve().accuracy


def test_the_bound_on_a_mean_keeps_its_confidence_and_is_near() -> None:
    rng = np.random.default_rng(4)
    assert rarely(
        sum(statistics.least_mean((rng.random(100) < 0.6).astype(float), 0.05) > 0.6 for _ in range(200)), 200
    )
    assert 0.62 < statistics.least_mean(np.clip(0.66 + 0.05 * rng.normal(size=100), 0, 1), 0.05) < 0.66
    assert statistics.least_mean(np.ones(200), 0.05) > 0.97
    assert statistics.least_mean(np.zeros(50), 0.05) == 0.0


def test_the_expected_number_of_right_guesses() -> None:
    rng, gap = np.random.default_rng(5), 0.8
    truth = rng.random(400_000) < 0.5
    order = np.argsort(rng.normal(size=400_000) + gap * truth)
    for size in (4_000, 80_000, 400_000):
        right = truth[order[-size // 2 :]].sum() + (~truth[order[: size // 2]]).sum()
        accuracy = float(stats.norm.cdf(gap / 2))
        assert statistics.expected_correct(400_000, size, accuracy) == pytest.approx(right, rel=0.01)
    assert statistics.guess_sizes(1000)[:3] == [1000, 500, 250]
    assert TradeOff(np.zeros(1), np.ones(1)).accuracy == 1.0
