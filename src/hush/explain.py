"""Explain a word: a recipe, an option, a config key, a name that a config can use, or a term of the glossary.

The texts are those of the documentation: docstrings, the sentences of the config reference, and `docs/glossary.md`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from hush.config_keys import config_keys
from hush.names import catalogue, hint
from hush.recipes import RECIPES, SLOTS, SUMMARIES
from hush.types import HushError

_KINDS = {
    "models": ("model", "model.name"),
    "tasks": ("task", "objective.task"),
    "losses": ("loss", "objective.loss"),
    "metrics": ("metric", "objective.metrics"),
    "datasets": ("dataset", "data.name"),
    "partitions": ("partition", "data.partition"),
    "budgets": ("distribution of budgets", "privacy.budgets"),
}


@dataclass(frozen=True)
class Explanation:
    """What a word means: its kind, a text, and named facts."""

    word: str
    kind: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()


def explain(word: str) -> list[Explanation]:
    """Return all meanings of a word.

    Raises:
        HushError: It has none; the message names words that are close.
    """
    wanted = _plain(word)
    found = [each for each in everything() if wanted in _words(each)]
    # The last part of a key is enough: clip for privacy.clip.
    found = found or [each for each in everything() if each.kind == "config key" and wanted == each.word.split(".")[-1]]
    if found:
        return found
    known = sorted({name for each in everything() for name in _words(each)})
    close = difflib.get_close_matches(wanted, known, 5, 0.6) or [name for name in known if wanted in name][:5]
    meant = f"; did you mean {', '.join(close)}?" if close else ""
    accepted = "recipes, options, config keys, names of hush list, and terms of the glossary"
    raise HushError(f"explain: nothing is known of {word!r}{meant}; accepted: {accepted}")


@cache
def everything() -> tuple[Explanation, ...]:
    """Return all that can be explained."""
    return (*_recipes(), *_options(), *_keys(), *_names(), *_terms())


def _recipes() -> Iterator[Explanation]:
    for name, words in SUMMARIES.items():
        options = RECIPES[name].options
        facts = [(slot, f"{_rule(slot, option)}: {hint(type(option))}") for slot, option in options.items()]
        yield Explanation(name, "recipe", words, (*facts, ("use", f'recipe.name = "{name}"')))


def _options() -> Iterator[Explanation]:
    for slot, rules in SLOTS.items():
        for rule, option in rules.items():
            facts = (("slot", slot), ("use", f'recipe.{slot} = "{rule}"'))
            yield Explanation(rule, "option", " ".join((option.__doc__ or "").split()), facts)


def _keys() -> Iterator[Explanation]:
    for key in config_keys():
        facts = (("accepts", key.accepts), ("default", key.default))
        yield Explanation(key.name, "config key", key.meaning, facts)


def _names() -> Iterator[Explanation]:
    listed = catalogue()
    for kind, (label, key) in _KINDS.items():
        for name, words in listed[kind].items():
            shown = f'["{name}"]' if kind == "metrics" else f'"{name}"'
            yield Explanation(name, label, words, (("use", f"{key} = {shown}"),))


def _terms() -> Iterator[Explanation]:
    text = files("hush").joinpath("glossary.md").read_text(encoding="utf-8")
    for term, meaning in re.findall(r"^\| ([^|]+?) \| (.+?) \|$", text, re.MULTILINE):
        if term not in ("term", "---"):
            yield Explanation(term, "term", meaning)


def _rule(slot: str, option: object) -> str:
    return next((rule for rule, kind in SLOTS[slot].items() if type(option) is kind), type(option).__name__)


def _words(each: Explanation) -> set[str]:
    """Return the words under which something is found: a term may be several, such as "client, member"."""
    return {_plain(each.word), *(_plain(part) for part in each.word.split(","))} if each.kind == "term" else {
        _plain(each.word)
    }  # fmt: skip


def _plain(word: str) -> str:
    return " ".join(word.lower().replace("`", "").split())
