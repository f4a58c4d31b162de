"""The generated tables of docs/recipes.md: all options with their settings, and all pairs of them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import typing
from collections.abc import Iterator
from typing import Any, Literal

from hush.recipes import SLOTS, Recipe
from hush.recipes.check import check
from hush.types import HushError, Member, Policy

# Who the clients are matters for a few refusals: budgets that stand out, two true clusters, enough rounds.
MEMBERS = [
    Member(client=c, policy=Policy(5.0 if c > 8 else 0.5, 1e-4), samples=100, batch=10, group=c % 2) for c in range(12)
]
ROUNDS = 16

OPTIONS_HEAD = """
## All options
Each slot accepts any of its options, by name or as a table with settings. The table lists the settings and their
defaults, generated from the code.

| slot | option | description | settings |
|---|---|---|---|
"""

PAIRS_HEAD = """
## All pairs
Which options can be combined, with the other slots at their defaults: {pairs} pairs, of which {refused} are refused
before training. The numbers refer to the reasons below, which are the error messages.

| option | protect | local | assign | project | weight | step |
|---|---|---|---|---|---|---|
"""

CHANGED_HEAD = """
With one setting changed from its default, these combinations are refused as well:

| option | with | reason |
|---|---|---|
"""

PAIRS_TAIL = """
Settings are also checked against the clients: more clusters than clients, fewer models than true clusters for the
oracle, `k` above the rank of the public updates, impact factors that do not sum to one, and warm-up rounds or a switch
that leave no round for training or for the choice. Each is a one-line error that names the key.
"""


def toml(option: Any) -> str:
    """An option as a config names it: its rule, and the settings that differ from its defaults."""
    usual = type(option)()
    changed = [
        f"{field.name} = {json.dumps(getattr(option, field.name))}"
        for field in dataclasses.fields(option)
        if getattr(option, field.name) != getattr(usual, field.name)
    ]
    return f"{{ {', '.join([f'rule = {json.dumps(option.rule)}', *changed])} }}" if changed else json.dumps(option.rule)


def options() -> str:
    """Every option of every slot."""
    rows = [
        f"| `{slot}` | `{rule}` | {_first(option)} | {_settings(option)} |"
        for slot, rules in SLOTS.items()
        for rule, option in rules.items()
    ]
    return OPTIONS_HEAD + "\n".join(rows) + "\n"


def _first(option: Any) -> str:
    """The first paragraph of its docstring."""
    return " ".join((inspect.getdoc(option) or "").split("\n\n")[0].split())


def _settings(option: Any) -> str:
    return ", ".join(f"`{f.name} = {_shown(getattr(option(), f.name))}`" for f in dataclasses.fields(option)) or "none"


def _shown(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return toml(value)
    return "not given" if value is None else json.dumps(value)


def refusal(*choices: tuple[str, Any]) -> str | None:
    """Why a recipe with these choices, and defaults in the other slots, is refused, or None."""
    try:
        check(dataclasses.replace(Recipe(), **dict(choices)), MEMBERS, ROUNDS)
    except HushError as error:
        return str(error)
    return None


def pairs() -> str:
    """Every pair of options of different slots."""
    everything = [(slot, rule, option()) for slot, rules in SLOTS.items() for rule, option in rules.items()]
    reasons: list[str] = []
    total = refused = 0
    rows = []
    for slot, rule, option in everything:
        cells = [f"`{rule}`"]
        for other, rules in SLOTS.items():
            if other == slot:
                cells.append("")
                continue
            noted = []
            for name, partner in rules.items():
                total += 1
                if (why := refusal((slot, option), (other, partner()))) is not None:
                    refused += 1
                    if why not in reasons:
                        reasons.append(why)
                    noted.append(f"`{name}` ({reasons.index(why) + 1})")
            cells.append(f"not {', '.join(noted)}" if noted else "all")
        rows.append(f"| {' | '.join(cells)} |")
    # Each pair was met from both of its ends.
    head = PAIRS_HEAD.format(pairs=total // 2, refused=refused // 2)
    listed = "\n".join(f"{number}. `{_key(why)}`: {_why(why)}" for number, why in enumerate(reasons, 1))
    return f"{head}{chr(10).join(rows)}\n\n{listed}\n{CHANGED_HEAD}{chr(10).join(_changed())}\n{PAIRS_TAIL}"


def _changed() -> Iterator[str]:
    """A row for each refusal that a single changed setting causes."""
    for (slot, rules), (other, others) in itertools.permutations(SLOTS.items(), 2):
        for option in rules.values():
            for variant in variants(option):
                for partner in others.values():
                    if refusal((slot, option()), (other, partner())) is None and (
                        why := refusal((slot, variant), (other, partner()))
                    ):
                        yield f"| `{slot} = {toml(variant)}` | `{other} = {toml(partner())}` | {_why(why)} |"


def variants(option: Any) -> Iterator[Any]:
    """The option with one setting changed, for each setting that has named values."""
    kinds = typing.get_type_hints(option)
    for field in dataclasses.fields(option):
        kind = kinds[field.name]
        named = typing.get_args(kind) if typing.get_origin(kind) is Literal else (True, False) if kind is bool else ()
        for value in named:
            if value != getattr(option(), field.name):
                yield option(**{field.name: value})


def _key(why: str) -> str:
    return why.partition(": ")[0]


def _why(why: str) -> str:
    return why.partition(": ")[2]
