"""Recipes from a config: names, slots, mixtures, and mistakes in them."""

from __future__ import annotations

import pytest

from hush.recipes import RECIPES, parse
from hush.recipes.slots.step import Ema, Momentum
from hush.recipes.slots.weight import EstimatedNoise, Uniform
from hush.types import HushError


def test_parse_names_slots_and_mixtures() -> None:
    assert parse({"name": "weiavg"}) == ("weiavg", RECIPES["weiavg"])
    name, recipe = parse({"weight": {"rule": "estimated-noise", "estimator": "pairwise"}})
    assert (name, recipe.weight) == ("custom", EstimatedNoise("pairwise"))
    name, recipe = parse({"name": "robust-hdp", "step": {"rule": "ema", "decay": 0.8, "inner": {"rule": "momentum"}}})
    assert name == "robust-hdp (modified)"
    assert recipe.step == Ema(0.8, Momentum())
    assert parse({"weight": "uniform"})[1].weight == Uniform()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "robust-hpd"}, r"recipe.name: unknown recipe 'robust-hpd'; did you mean robust-hdp\?"),
        ({"name": 3}, "recipe.name: unknown recipe 3"),
        ({"wiegh": "uniform"}, "recipe.wiegh: unknown key 'wiegh'; did you mean weight?"),
        ({"weight": "unifrom"}, "recipe.weight.rule: unknown rule 'unifrom'; did you mean uniform"),
        ({"weight": {"estimator": "rpca"}}, "recipe.weight: expected a rule name or a table"),
        (
            {"weight": {"rule": "estimated-noise", "estimator": "svd"}},
            "recipe.weight.estimator: expected 'rpca', 'pair",
        ),
        ({"weight": {"rule": "uniform", "x": 1}}, "recipe.weight.x: unknown key"),
        ({"step": {"rule": "momentum", "beta": 1.0}}, "recipe.step.beta: expected a number from 0 to below 1"),
        ({"step": {"rule": "ema", "inner": {"rule": "ad"}}}, "recipe.step.inner.rule: unknown rule 'ad'"),
        ({"step": {"rule": "add", "lr": "fast"}}, "recipe.step.lr: expected a valid number"),
    ],
)
def test_mistakes(table: dict[str, object], words: str) -> None:
    with pytest.raises(HushError, match=words) as caught:
        parse(table)
    assert "\n" not in str(caught.value)
