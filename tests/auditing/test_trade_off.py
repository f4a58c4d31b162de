"""Trade-off curves are those of the accountants, and limit what a published theorem says they limit."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from hush.auditing.trade_off import Planned, TradeOff, possible
from hush.privacy.accounting import api, gaussian
from hush.privacy.accounting.cost import Cost, Kind
from hush.types import Relation


def plan(kind: Kind = "gaussian", noise: float = 1.0, steps: int = 1, rate: float = 1.0, delta: float = 1e-5,
         relation: Relation = "add-remove") -> Planned:  # fmt: skip
    cost = Cost(what="model update", kind=kind, noise=noise, steps=steps, rate=rate)
    return Planned(costs=(cost,), delta=delta, relation=relation)


@pytest.mark.parametrize(("relation", "steps"), [("add-remove", 1), ("add-remove", 4), ("replace-one", 1)])
def test_a_gaussian_has_the_curve_of_a_gaussian(relation: Relation, steps: int) -> None:
    curve = plan(steps=steps, noise=1.5, relation=relation).curve()
    move = (2.0 if relation == "replace-one" else 1.0) * math.sqrt(steps) / 1.5
    assert curve.accuracy == pytest.approx(stats.norm.cdf(move / 2), abs=1e-9)
    for false in (1e-3, 0.05, 0.3, 0.8):
        exact = stats.norm.sf(stats.norm.isf(false) - move)
        assert exact <= curve.most_true(false) + 1e-12
        assert curve.most_true(false) == pytest.approx(exact, abs=2e-4)
        assert curve.least_false(curve.most_true(false)) == pytest.approx(false, rel=1e-6)


def test_sampled_steps_have_the_epsilon_of_the_accountant_on_their_curve() -> None:
    """Where the curve is steepest below delta it is the claim; every attack of simulated steps is below it."""
    planned = plan("poisson-gaussian", 0.8, 5, 0.2)
    epsilon = planned.epsilon()
    assert epsilon == api.epsilon_of(planned.costs, 1e-5)
    curve = planned.curve()
    assert curve.most_true(1e-7) <= 1e-5 + math.exp(epsilon) * 1e-7 + 1e-6
    rng = np.random.default_rng(1)
    noise = 0.8 * rng.normal(size=(2, 40_000, 5))
    taken = rng.random((40_000, 5)) < 0.2
    score = [gaussian.loss(each, 0.2, 0.8, "remove").sum(1) for each in (noise[0], noise[1] + taken)]
    accuracy = 0.5 * float((score[1] > 0).mean() + (score[0] <= 0).mean())
    assert 0.97 * curve.accuracy < accuracy < curve.accuracy + 0.005


def allows_less(limit: float, curve: TradeOff) -> bool:
    return curve.accuracy < limit


def test_less_noise_allows_more_and_the_search_finds_the_factor() -> None:
    planned = plan("poisson-gaussian", 1.1, 20, 0.1)
    accuracies = [planned.curve(scale).accuracy for scale in (0.25, 0.5, 1.0, 2.0, 4.0)]
    assert accuracies == sorted(accuracies, reverse=True)
    for scale in (0.3, 0.9, 1.0, 1.7):
        found = planned.least_refuted(partial(allows_less, planned.curve(scale).accuracy))
        assert found == pytest.approx(scale, rel=0.01)
    assert planned.least_refuted(lambda curve: False) == math.inf
    assert planned.least_refuted(lambda curve: True) < 0.1


def test_releases_are_picked_by_name() -> None:
    costs = (Cost(what="a", kind="gaussian", noise=1.0, steps=1), Cost(what="b", kind="gaussian", noise=3.0, steps=2))
    planned = Planned(costs=costs, delta=1e-5, relation="add-remove")
    assert planned.only("b").epsilon() == api.epsilon_of(costs[1:], 1e-5)
    assert planned.only("c").epsilon() == 0.0
    assert planned.only("c").curve().accuracy == 0.5


def test_batches_of_a_fixed_size_have_the_curve_of_their_accountant() -> None:
    cost = Cost(what="model update", kind="fixed-gaussian", noise=2.0, steps=4, samples=100, batch=50)
    planned = Planned(costs=(cost,), delta=1e-5, relation="replace-one", accountant="rdp")
    assert planned.epsilon() == api.epsilon_of((cost,), 1e-5, "replace-one", "rdp")
    assert 0.5 < planned.curve(2.0).accuracy < planned.curve().accuracy < 1.0


def test_noise_below_what_can_be_accounted_allows_everything() -> None:
    assert plan(noise=1.0).curve(0.01).accuracy > 0.999
    assert plan("poisson-gaussian", 1.0, 3, 0.5).curve(0.01).accuracy == 1.0


def pure(epsilon: float) -> TradeOff:
    return TradeOff(np.array([epsilon]), np.array([0.0]))


def most_probable(canaries: int, guesses: int, correct: int, curve: TradeOff) -> float:
    """The largest probability that is possible."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if possible(canaries, guesses, correct, curve, middle) else (low, middle)
    return low


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(1, 1, 1), (20, 20, 15), (100, 40, 36)])
def test_randomised_response_is_possible(canaries: int, guesses: int, correct: int) -> None:
    """A mechanism that exists is never ruled out: each guess right with the probability that epsilon allows."""
    chance = float(stats.binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-1.0))))
    assert possible(canaries, guesses, correct, pure(1.0), chance * (1 - 1e-9))


def test_a_single_canary_is_limited_by_the_accuracy_of_its_curve() -> None:
    curve = plan(noise=0.8).curve()
    assert most_probable(1, 1, 1, curve) == pytest.approx(curve.accuracy, abs=1e-6)
    assert most_probable(1, 1, 1, pure(1.0)) == pytest.approx(1 / (1 + math.exp(-1.0)), abs=1e-6)


def test_impossible_counts_are_ruled_out() -> None:
    assert not possible(100, 100, 100, pure(0.5), 0.05)
    assert possible(100, 100, 50, pure(0.0), 0.5)
    assert most_probable(100, 100, 90, pure(1.0)) < 0.02
    some = [most_probable(200, 40, correct, plan(noise=1.0).curve()) for correct in (25, 30, 35, 40)]
    assert some == sorted(some, reverse=True)
