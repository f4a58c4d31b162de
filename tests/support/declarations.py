"""What the options of recipes declare to release, read off the options themselves."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from typing import Any, Literal

from hush.recipes import SLOTS

Row = tuple[str, str, str, str]


def choices(option: Any) -> dict[str, tuple[Any, ...]]:
    """The values of each setting that changes what is released: named choices, and whether there is a share at all."""
    hints = typing.get_type_hints(option)
    names = [field.name for field in dataclasses.fields(option)]
    found = {name: typing.get_args(hints[name]) for name in names if typing.get_origin(hints[name]) is Literal}
    if "every" in names:
        found["share"] = (0.0, 0.1)
    if "centre" in names:
        found["centre"] = (0.0, 0.1)
    if "warm" in names:
        found["warm"] = (0, 2)
    if "copies" in names:
        found["copies"] = (1, 3)
    return found


def variants(option: Any) -> list[Any]:
    """The option with every combination of its choices."""
    named = choices(option)
    return [option(**dict(zip(named, values, strict=True))) for values in itertools.product(*named.values())]


def single_changes(option: Any) -> list[Any]:
    """The option as it is by default, and with each single choice changed."""
    usual, changed = option(), []
    for name, values in choices(option).items():
        had = getattr(usual, name)
        # Of a share it matters only whether there is one.
        changed += [option(**{name: v}) for v in values if v != had and (isinstance(v, str) or bool(v) != bool(had))]
    return [usual, *changed]


def declared() -> set[Row]:
    """What, choice, covered, event: a row for each release of each option."""
    return {
        (release.what, f"{slot} = {rule}", "yes" if release.covered else "no", release.event)
        for slot, rules in SLOTS.items()
        for rule, option in rules.items()
        for variant in variants(option)
        for release in variant.releases()
    }
