"""The automatic learning rate: that it minimises its bound, what it tends to, and that it follows from public plans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_friedman1

import hush
from hush.config import parse
from hush.engines import auto_lr
from hush.engines.auto_lr import COHERENCE, DISTANCE, FEATURE_DISTANCE, REMAINING, least_bound_rate
from hush.engines.setup import Federation, prepare
from hush.seeds import rng
from hush.server.loop import enrolled

NAMED = "determine the learning rate"


def bound(rate: float, reach: float, noise: float, rounds: int) -> float:
    """How far the average model's loss is above the best, by the docstring of `hush.engines.auto_lr`."""
    signals = (1 + REMAINING * rounds) * (COHERENCE * reach) ** 2
    return DISTANCE**2 / (2 * rate * reach * rounds) + rate * (signals + rounds * noise) / (2 * reach * rounds)


@pytest.mark.parametrize("rounds", [1, 6, 200])
@pytest.mark.parametrize("noise", [0.0, 1.0, 1e6])
def test_no_other_rate_has_a_lower_bound(noise: float, rounds: int) -> None:
    found = least_bound_rate(10.0, noise, rounds)
    lowest = bound(found, 10.0, noise, rounds)
    assert all(bound(found * factor, 10.0, noise, rounds) > lowest for factor in (0.5, 0.9, 1.1, 2.0))


def test_without_noise_the_signal_alone_sets_the_rate() -> None:
    assert least_bound_rate(10.0, 0.0, 1) == pytest.approx(DISTANCE / (10 * COHERENCE * math.sqrt(1 + REMAINING)))
    # Steps times rate is what counts.
    assert 40 * least_bound_rate(40.0, 0.0, 100) == pytest.approx(10 * least_bound_rate(10.0, 0.0, 100))


def test_without_noise_more_rounds_hardly_shorten_the_steps_of_a_short_run() -> None:
    ratio = least_bound_rate(10.0, 0.0, 3) / least_bound_rate(10.0, 0.0, 12)
    assert ratio == pytest.approx(math.sqrt((1 + 12 * REMAINING) / (1 + 3 * REMAINING)))
    assert ratio < 1.5, "the worst case for losses that are not smooth is 2"


def test_where_noise_prevails_all_of_it_adds_up_to_the_distance() -> None:
    for rounds in (1, 7, 200):
        assert math.sqrt(rounds * 1e9) * least_bound_rate(10.0, 1e9, rounds) == pytest.approx(DISTANCE, rel=1e-6)


def test_the_rate_falls_with_noise_rounds_and_steps() -> None:
    rates = [
        [least_bound_rate(10.0, noise, 30) for noise in (0.0, 1.0, 10.0, 1e3)],
        [least_bound_rate(10.0, 10.0, rounds) for rounds in (1, 3, 30, 300)],
        [least_bound_rate(steps, 10.0, 30) for steps in (1.0, 10.0, 100.0)],
    ]
    assert all(listed == sorted(set(listed), reverse=True) for listed in rates)


def federation(recipe: Any = "hush", mode: str = "sound", **more: Any) -> Federation:
    raw = {"rounds": 50, "mode": mode, "data": {"clients": 6}, "recipe": {"name": recipe}, **more}
    return prepare(parse(raw))


def lr(budgets: float) -> float:
    return float(federation(privacy={"budgets": budgets}).config.local.lr)


def test_plans_give_the_rate_of_the_bound() -> None:
    made = federation(privacy={"budgets": 0.5})
    view = enrolled(made.terms)
    weights = made.recipe.weight.foreseen(view)
    # The noise in the terms is that at the rate which was chosen.
    chosen = float(made.config.local.lr)
    noise = float((weights.square() * view.planned_noise).sum()) / chosen**2
    assert chosen == pytest.approx(least_bound_rate(10.0, noise, 50), rel=1e-9)


def test_behind_features_of_unit_variance_the_distance_is_shorter() -> None:
    x = np.random.default_rng(0).normal(size=(60, 1, 16, 16)).astype(np.float32)
    dataset = hush.data.clients(x, np.arange(60) % 3, clients=2)
    strict = {"rounds": 5, "local": {"batch_size": 8}, "privacy": {"budgets": 0.05}, "recipe": {"name": "dp-fedavg"}}
    made = [
        prepare(parse({**strict, "model": {"name": name}}), dataset=dataset) for name in ("scattering-linear", "logreg")
    ]
    adds = []
    for each in made:
        view = enrolled(each.terms)
        weights = each.recipe.weight.foreseen(view)
        adds.append(math.sqrt(5 * float((weights.square() * view.planned_noise).sum())))
    assert adds == pytest.approx([FEATURE_DISTANCE, DISTANCE], rel=0.01)


def test_the_rate_follows_the_budgets() -> None:
    assert 1.8 < lr(0.2) / lr(0.1) < 2.2
    assert lr(1e6) == pytest.approx(least_bound_rate(10.0, 0.0, 50), rel=1e-2)


def test_a_rate_that_follows_from_the_plans_is_named() -> None:
    assert any(NAMED in text for text in federation().not_covered())
    assert not any(NAMED in text for text in federation(local={"lr": 0.1}).not_covered())


@pytest.mark.parametrize(("recipe", "mode"), [("fedavg", "sound"), ("scaffold", "sound"), ("padpfl", "faithful")])
def test_without_privacy_the_rate_is_fixed_and_says_nothing(recipe: str, mode: str) -> None:
    made = federation(recipe, mode)
    assert made.config.local.lr == auto_lr.PLAIN
    assert not any(NAMED in text for text in made.not_covered())


def test_few_rounds_reach_what_takes_a_fixed_rate_many() -> None:
    raw = {"seed": 1, "rounds": 3, "data": {"clients": 6}, "privacy": {"budgets": [0.5, 1.0, 4.0] * 2}}
    found = {lr: hush.simulate({**raw, "recipe": {"name": "hush"}, "local": {"lr": lr}}) for lr in ("auto", 0.02, 0.1)}
    auto, *fixed = [result.accuracy["mean"] for result in found.values()]
    assert auto > 0.7 and auto > max(fixed) + 0.1


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return 21.0 * x, (y - 187.5) / 162.5


def friedman() -> tuple[np.ndarray, np.ndarray]:
    x, y = make_friedman1(800, noise=1.0, random_state=0)
    return x, (y - 15.0) / 15.0


def correlated() -> tuple[np.ndarray, np.ndarray]:
    """Thirty columns that are nearly one, so that steps add up."""
    draw = rng(0, "correlated")
    x = 0.8 * draw.normal(size=(800, 1)) + 0.6 * draw.normal(size=(800, 30))
    return x, (x[:, :3].sum(1) + 0.3 * draw.normal(size=800)) / 8.0


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, 20])
@pytest.mark.parametrize("rows", [diabetes, friedman, correlated])
@pytest.mark.parametrize("recipe", ["fedavg", "dp-fedavg", "hush", "robust-hdp"])
def test_regression_beats_the_mean_with_and_without_bounds(recipe: str, rows: Any, rounds: int) -> None:
    x, y = rows()
    x, y = x.astype(np.float32), y.astype(np.float32)
    raw = {"seed": 1, "rounds": rounds, "data": {"clients": 2}, "privacy": {"budgets": 4.0}, "recipe": {"name": recipe}}
    bounded = {**raw, "objective": {"target_bounds": [100.0, 300.0]}}
    for config, targets in ((raw, y / y.std()), (bounded, 200.0 + 100.0 * y)):
        result = hush.simulate(config, dataset=(x, targets))
        assert result.score["mean"] < 0.97 * result.metrics["baseline"]["value"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fedavg", "dp-fedavg", "hush"])
def test_regression_of_a_wide_model_beats_the_mean(recipe: str) -> None:
    x, y = correlated()
    raw = {"rounds": 5, "data": {"clients": 2}, "privacy": {"budgets": 8.0}, "recipe": {"name": recipe}}
    config = {**raw, "model": {"name": "mlp", "hidden": 100}}
    result = hush.simulate(config, dataset=(x.astype(np.float32), y.astype(np.float32)))
    assert result.score["mean"] < 0.97 * result.metrics["baseline"]["value"]


def test_a_regression_goes_no_farther_than_its_targets() -> None:
    x, y = correlated()
    dataset = hush.data.clients(x.astype(np.float32), y.astype(np.float32), clients=2)
    made = prepare(parse({"rounds": 1, "privacy": {"budgets": 1e6}, "recipe": {"name": "dp-fedavg"}}), dataset=dataset)
    assert float(made.config.local.lr) == pytest.approx(auto_lr.TARGET_SCALE / 2 / math.sqrt(31))
    plain = prepare(parse({"rounds": 1, "recipe": {"name": "fedavg"}}), dataset=dataset)
    assert plain.config.local.lr == 1 / 31


def test_a_run_whose_outputs_are_not_finite_still_ends() -> None:
    x, y = correlated()
    config = {"rounds": 8, "data": {"clients": 2}, "recipe": {"name": "fedavg"}, "local": {"lr": 1e4}}
    result = hush.simulate(config, dataset=(x.astype(np.float32), y.astype(np.float32)))
    assert not math.isfinite(result.score["mean"]) and result.metrics["notes"]
