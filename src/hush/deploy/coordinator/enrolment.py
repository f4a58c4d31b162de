"""Enrolment on the coordinator's side: declarations of members are checked. An invalid one excludes its sender only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from hush.config import Config
from hush.data import budgets
from hush.deploy.shared.roster import BUDGET, IMPACT, RosterEntry
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.recipes import Recipe
from hush.recipes.slots.clusters import Oracle
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT, Impact
from hush.types import HushError, Relation, Unit

_FIELDS = ("epsilon", "delta", "relation", "samples", "unit", "factor", "group", "noised")
_MOST_ROWS = 1 << 40
_MOST_GROUPS = 1 << 16


def facts_of(message: Message, name: str, run: str) -> tuple[RosterEntry, str]:
    """Return a member's declaration and the head of its ledger, or raise a `HushError`."""
    answered_run, answered_name, head, *rest = messages.want(message, "run", "name", "head", *_FIELDS)
    if (answered_run, answered_name) != (run, name) or not isinstance(head, str) or len(head) > 200:
        raise HushError("enrolment answer: for another run or member")
    found = dict(zip(_FIELDS, rest, strict=True))
    for key, good in {
        "epsilon": _number(found["epsilon"], 0, math.inf), "delta": _number(found["delta"], 0, 1),
        "relation": found["relation"] in get_args(Relation), "samples": _is_integer(found["samples"], 1, _MOST_ROWS),
        "unit": found["unit"] in get_args(Unit),
        "factor": found["factor"] is None or found["factor"] == 0 or _number(found["factor"], 0, 1, closed=True),
        "group": found["group"] is None or _is_integer(found["group"], 0, _MOST_GROUPS),
        "noised": _noised(found["noised"]),
    }.items():  # fmt: skip
        if not good:
            raise HushError(f"facts: {key} is {found[key]!r:.60}, which is not possible")
    return RosterEntry(name=name, **found), head


def check_asked(recipe: Recipe, fact: RosterEntry) -> None:
    """Raise a `HushError` if a member declared what the recipe does not use, or omitted what it needs."""
    assign, weight = recipe.assign, recipe.weight
    if (fact.group is not None) != isinstance(assign, Oracle):
        raise HushError(
            "enrolment answer: a true cluster that the recipe does not use, or none although the recipe needs one"
        )
    if fact.group is not None and fact.group >= assign.models:
        raise HushError(f"enrolment answer: true cluster {fact.group}; the recipe has 0 to {assign.models - 1}")
    if fact.factor is not None and not (isinstance(weight, Impact) and not weight.factors):
        raise HushError("enrolment answer: an impact factor that the recipe does not use")


def check_rows(fact: RosterEntry, most: float) -> None:
    """Raise a `HushError` if a member declares more rows than `max_rows` of the federation."""
    if fact.samples > most:
        raise HushError(f"enrolment answer: {fact.samples} rows, more than max_rows = {most:g} (federation.toml)")


def fitting(config: Config, facts: Sequence[RosterEntry]) -> tuple[list[RosterEntry], dict[str, str]]:
    """Return the members that can take part together, and why others cannot: too few rows, or mismatched factors."""
    factors = [fact for fact in facts if fact.factor is not None]
    kept, out = list(facts), dict[str, str]()
    if 0 < len(factors) < len(facts):
        # Impact factors come from all members or from none; the majority decides.
        wanted = 2 * len(factors) >= len(facts)
        words = "no impact factor (enrol.factor), although the other members declare one" if wanted else (
            "an impact factor (enrol.factor), although the other members declare none"
        )  # fmt: skip
        out = {fact.name: words for fact in facts if (fact.factor is not None) != wanted}
        kept = [fact for fact in facts if fact.name not in out]
    while kept:
        batches = budgets.batch_sizes(config.local.batch_size, len(kept), config.seed)
        short = {
            fact.name: f"a batch size of {batch} is larger than this member supports"
            for fact, batch in zip(kept, batches, strict=True)
            if batch > fact.samples and COUNT not in fact.noised
        }
        if not short:
            break
        out |= short
        kept = [fact for fact in kept if fact.name not in short]
    return kept, out


def _number(value: Any, low: float, high: float, closed: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return low < value < high or (closed and value == high)


def _is_integer(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _noised(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= {COUNT, BUDGET, IMPACT, CENTRE}
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value.values())
        and all(_number(each, 0, math.inf) for pair in value.values() for each in pair)
    )
