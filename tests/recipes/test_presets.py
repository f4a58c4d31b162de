"""Presets: each recipe has a summary, and names what it does not cover."""

from __future__ import annotations

from hush.recipes import RECIPES, SUMMARIES


def test_every_recipe_is_summed_up() -> None:
    asked = (
        "robust-hdp weiavg pfa dp-fedavg minimum maximum dp-scaffold dp-scaffold-warm scaffold scaffold-warm fedavg "
        "fedsgd dp-fedsgd pfa-plus rc-dpfl km-cdpfl f-cdpfl o-cdpfl padpfl fedprox hush closed-form"
    )
    assert set(RECIPES) == set(SUMMARIES) == set(asked.split())


def test_what_is_not_covered_is_declared() -> None:
    gaps = {name: [r.what for r in recipe.releases() if not r.covered] for name, recipe in RECIPES.items()}
    assert gaps["robust-hdp"] == []
    assert gaps["fedavg"] == ["model update", "number of training samples"]
    assert gaps["maximum"] == ["privacy beyond the client's own budget", "number of training samples"]
    assert gaps["weiavg"] == ["privacy budget"]
