"""The accuracy figure and its page are those of the results, and can be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from scripts import accuracy_by_budget, accuracy_figure
from scripts.recipe_figure import contrast
from tests.support.paths import ROOT

RESULTS = json.loads(accuracy_by_budget.RESULTS.read_text(encoding="utf-8"))


def test_the_figure_and_the_table_are_up_to_date() -> None:
    assert accuracy_by_budget.FIGURE.read_text(encoding="utf-8") == accuracy_by_budget.drawing(RESULTS)
    assert accuracy_by_budget.table(RESULTS) in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    changed = json.loads(json.dumps(RESULTS))
    changed["factors"]["1"]["hush"]["auto"][0] -= 0.2
    assert accuracy_by_budget.drawing(changed) != accuracy_by_budget.drawing(RESULTS)


def test_other_recipes_have_the_best_of_their_rates_and_hush_has_one() -> None:
    for by_recipe in RESULTS["factors"].values():
        assert list(by_recipe["hush"]) == ["auto"]
        for name in accuracy_by_budget.OTHERS:
            assert list(by_recipe[name]) == list(map(str, accuracy_by_budget.RATES))
            assert all(len(values) == len(RESULTS["seeds"]) for values in by_recipe[name].values())
    assert accuracy_by_budget.best({"0.1": [0.2, 0.4], "1.0": [0.5, 0.3]}) == ("1.0", [0.5, 0.3])


def test_what_the_readme_says_of_the_figure() -> None:
    """`hush` is above every other private recipe at every budget."""
    own, *others = accuracy_by_budget.curves(RESULTS)
    private = [curve for curve in others if curve.kind == "other"]
    assert len(private) == len(accuracy_by_budget.OTHERS)
    for at, value in enumerate(own.values):
        assert value > max(curve.values[at] for curve in private)


def test_the_figure_is_valid_and_its_text_can_be_read() -> None:
    drawn = ET.fromstring(accuracy_by_budget.drawing(RESULTS))
    points = [line.get("points", "") for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    for point in " ".join(points).split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= accuracy_figure.WIDTH
        assert 0 <= y <= accuracy_figure.HEIGHT
    for colours in accuracy_figure.COLOURS.values():
        for text, page in accuracy_figure.PAIRS:
            assert contrast(colours[text], colours[page]) >= 4.5


@pytest.mark.slow
def test_one_point_of_the_figure_is_measured_again() -> None:
    import hush

    config = {**RESULTS["config"], "seed": 1}
    found = hush.simulate(config, recipe="hush").accuracy["mean"]
    assert found == pytest.approx(RESULTS["factors"]["1"]["hush"]["auto"][0], abs=0.02)
