"""docs/recipes.md and its figure are what the script makes of results/recipes.json and the code."""

from __future__ import annotations

import copy
import json
import re
import statistics
import tomllib
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from hush.config import parse as parse_config
from hush.config import with_noise
from hush.recipes import RECIPES, SLOTS, Recipe, parse
from hush.recipes.check import incompatible
from hush.recipes.presets import FAITHFUL
from scripts import recipe_figure as figure
from scripts import recipe_measure
from scripts import recipe_pages as script
from scripts.recipe_words import WORDS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
FIGURE = (ROOT / "docs" / "recipes.svg").read_text(encoding="utf-8")
RESULTS: dict[str, Any] = json.loads((ROOT / "results" / "recipes.json").read_text(encoding="utf-8"))


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def when(name: str) -> str:
    found = re.search(r"\*\*When to use\.\*\* (.*?)\n\n", section(name), re.DOTALL)
    assert found, name
    return " ".join(found[1].split())


def test_page_and_figure_are_up_to_date() -> None:
    hint = "run python -m scripts.recipe_pages"
    assert script.page(RESULTS) == PAGE, hint
    assert script.drawing() == FIGURE, hint


def test_a_changed_number_changes_the_page() -> None:
    changed = copy.deepcopy(RESULTS)
    accuracy = changed["settings"]["budgets"]["recipes"]["robust-hdp"]["accuracy"]
    accuracy["mean"], accuracy["by_seed"] = 0.01, [0.01] * len(accuracy["by_seed"])
    assert "Use it with widely different budgets" in script.verdict("robust-hdp", RESULTS)
    assert "Do not use it with widely different budgets and batch sizes (1.0 against" in script.verdict(
        "robust-hdp", changed
    )


def _with_current_names(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the present names of the noise and of a slot."""
    assert config["privacy"]["noise"] == "replayable"
    recipe = {"weight" if key == "weigh" else key: value for key, value in config["recipe"].items()}
    return {**config, "recipe": recipe, "privacy": {**config["privacy"], "noise": "seeded"}}


def test_every_recipe_was_measured_everywhere_with_these_settings() -> None:
    settings = recipe_measure.SETTINGS
    assert list(RESULTS["settings"]) == list(settings)
    assert {"command", "versions", "overrides"} <= set(RESULTS)
    for key, setting in RESULTS["settings"].items():
        assert set(setting["recipes"]) == set(RECIPES)
        planned = with_noise(parse_config(settings[key].config), lasting=False)
        assert parse_config(_with_current_names(_without_none(setting["config"]))) == planned
        assert setting["looked_at"] == settings[key].looked_at
        assert len(setting["seeds"]) == 3
        for figures in setting["recipes"].values():
            for spread in figures.values():
                values = spread["by_seed"]
                assert len(values) == 3
                assert spread["mean"] == pytest.approx(sum(values) / 3, abs=1e-5)
                assert spread["std"] == pytest.approx(statistics.stdev(values), abs=1e-5)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_has_its_section(name: str) -> None:
    text = section(name)
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert parse(tomllib.loads(block)["recipe"])[1] == RECIPES[name]
    for release in RECIPES[name].releases():
        assert release.what in text
        assert release.why in " ".join(text.split())
    idea = text.partition("\n\n")[0]
    assert len(re.findall(r"\.(?:\s|$)", idea)) == 3, idea
    cited = re.search(r"\*\*Paper\.\*\* \[.+ \d{4}.*\]\(https://\S+\)", text)
    assert cited or (name == "hush" and "**Paper.** None: developed in this project." in text)
    assert ("sets `" in text) == (name in FAITHFUL)
    assert WORDS[name].caution in " ".join(text.split())


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_in_sentences_were_measured(name: str) -> None:
    """Every pair of numbers in a sentence is that of the setting it speaks of."""
    other = script.baseline(name)
    text = when(name)
    found = re.findall(r"\(([\d.]+) against ([\d.]+) %\)", text)
    assert len(found) == len(re.findall(r"\d+\.\d", text)) / 2
    for key, setting in recipe_measure.SETTINGS.items():
        recipes = RESULTS["settings"][key]["recipes"]
        for own, theirs in re.findall(rf"{setting.where} \(([\d.]+) against ([\d.]+) %\)", text):
            found.remove((own, theirs))
            measured = [
                tuple(f"{100 * recipes[each][what]['mean']:.1f}" for each in (name, other))
                for what in ("accuracy", "worst_client")
            ]
            assert (own, theirs) in measured
    assert found == []


def test_every_recipe_belongs_to_a_paper() -> None:
    named = [name for _, _, names in script.papers().values() for name in names]
    assert named == list(RECIPES)


def test_all_pairs_are_shown() -> None:
    """What the table refuses is what the checks refuse, pair by pair."""
    table = PAGE.partition("## All pairs")[2]
    rows = {row[0].strip("`"): row[1:] for row in map(_cells, table.splitlines()) if len(row) == 7}
    slots = list(SLOTS)
    pairs = refused = 0
    for a, slot in enumerate(slots):
        for other in slots[a + 1 :]:
            for rule, option in SLOTS[slot].items():
                for partner, choice in SLOTS[other].items():
                    recipe = replace(Recipe(), **{slot: option(), other: choice()})
                    why = next((text for _, text in incompatible(recipe)), None)
                    shown = f"`{partner}` (" in rows[rule][slots.index(other)]
                    back = f"`{rule}` (" in rows[partner][slots.index(slot)]
                    assert shown == back == (why is not None), (rule, partner)
                    assert why is None or why in table
                    pairs, refused = pairs + 1, refused + (why is not None)
    assert f"{pairs} pairs, of which {refused} are refused" in table
    assert refused > 0
    assert '{ rule = "dp-sgd", budget = "minimum" }` | `weight = "epsilon"`' in table


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_all_options_are_shown() -> None:
    table = PAGE.partition("## All options")[2].partition("## All pairs")[0]
    for slot, rules in SLOTS.items():
        for rule in rules:
            assert f"| `{slot}` | `{rule}` |" in table


def test_the_figure_shows_every_recipe_and_fits() -> None:
    root = ElementTree.fromstring(FIGURE)
    texts = [(each.get("class"), each.text or "") for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for kind, text in texts if kind == "name"] == list(RECIPES)
    assert sum(figure.COLUMNS.values()) + 5 * figure.GAP + 2 * figure.MARGIN == figure.WIDTH
    # At the width of a phone, 375 pixels, letters stay above ten pixels.
    assert figure.FONT * 375 / figure.WIDTH > 10
    for recipe in RECIPES.values():
        for slot, wide in figure.COLUMNS.items():
            for line in figure.lines_of(getattr(recipe, slot)):
                assert _width(line) * figure.FONT <= wide - figure.PAD - 2, line


def _width(text: str) -> float:
    """In ems of a wide font (DejaVu Sans), a little more than it is."""
    return sum(1.0 if c in "mw" else 0.42 if c in "ijlftr-" else 0.64 for c in text)


def test_the_figure_can_be_read_in_light_and_in_dark() -> None:
    assert figure.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert figure.contrast("#999999", "#ffffff") < 4.5
    for name, colours in figure.COLOURS.items():
        for text, ground in figure.PAIRS:
            assert figure.contrast(colours[text], colours[ground]) >= 4.5, (name, text, ground)
        assert all(colour in FIGURE for colour in colours.values())
    assert "prefers-color-scheme:dark" in FIGURE
