"""The privacy promise and the code agree about what is released."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing
from pathlib import Path
from typing import Any, Literal

from hush.recipes import SLOTS
from hush.types import Release

PROMISE = Path(__file__).parents[2] / "docs" / "privacy-promise.md"
OUTSIDE_RECIPES = {
    ("test accuracy per client", "simulation", "no", ""),
    ("the noise itself", "noise = replayable", "no", ""),
    ("privacy plan", "local.lr = auto", "no", ""),
}


Row = tuple[str, str, str, str]


def table() -> set[Row]:
    section = PROMISE.read_text().split("## What a client releases")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (yes|no) \| ([a-z-]*) ?\| [^|]+ \|$", section, re.MULTILINE)
    assert len(rows) == len(set(rows)) == section.count("\n| ") - 1 >= 8
    return {(what, choice.partition(",")[0], covered, event) for what, choice, covered, event in rows}


def variants(option: Any) -> list[Any]:
    """The option with every combination of its named choices, and with no share of the budget where it has one."""
    hints = typing.get_type_hints(option)
    named = {f.name: typing.get_args(hints[f.name]) for f in dataclasses.fields(option)}
    choices = {k: v for k, v in named.items() if typing.get_origin(hints[k]) is Literal}
    if "every" in hints:
        choices["share"] = (0.0, 0.1)
    if "centre" in hints:
        choices["centre"] = (0.0, 0.1)
    return [option(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def declared() -> set[Row]:
    return {
        (release.what, f"{slot} = {rule}", "yes" if release.covered else "no", release.event)
        for slot, rules in SLOTS.items()
        for rule, option in rules.items()
        for variant in variants(option)
        for release in variant.releases()
    }


def test_the_table_is_what_the_options_declare() -> None:
    assert table() - OUTSIDE_RECIPES == declared()
    assert table() >= OUTSIDE_RECIPES


def test_a_new_release_would_be_noticed() -> None:
    """The planted twin: an option that reveals something more must break the agreement."""
    extra = Release("loss", False, "sent in the clear")
    assert {*declared(), (extra.what, "assign = by-loss", "no", "")} != table() - OUTSIDE_RECIPES


def test_what_is_covered_has_an_event_and_nothing_else_has() -> None:
    assert all((covered == "yes") == bool(event) for _, _, covered, event in declared())
