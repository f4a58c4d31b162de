"""The privacy promise and the code agree about what is released."""

from __future__ import annotations

import json
import re

from hush.types import Release
from tests.support.declarations import Row, declared
from tests.support.paths import ROOT

PROMISE = ROOT / "docs" / "privacy-promise.md"
OUTSIDE_RECIPES = {
    ("test accuracy per client", "simulation", "no", ""),
    ("the noise itself", "noise = seeded", "no", ""),
    ("privacy plan", "local.lr = auto", "no", ""),
    ("evaluation on held-out rows", "evaluation.share above 0", "yes", "gaussian"),
    ("evaluation of candidates", "sweep within the budget", "yes", "gaussian"),
}


def table() -> set[Row]:
    section = PROMISE.read_text().split("## What a client releases")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (yes|no) \| ([a-z-]*) ?\| [^|]+ \|([^|]*)\|$", section, re.MULTILINE)
    assert len(rows) == len(set(rows)) == section.count("\n| ") - 1 >= 8
    audits = json.loads((ROOT / "results" / "audits.json").read_text())["settings"]
    for what, _, covered, _, audit in rows:
        assert (what in audits[audit.strip()]["releases"]) if covered == "yes" else not audit.strip(), what
    return {(what, choice.partition(",")[0], covered, event) for what, choice, covered, event, _ in rows}


def test_the_table_is_what_the_options_declare() -> None:
    assert table() - OUTSIDE_RECIPES == declared()
    assert table() >= OUTSIDE_RECIPES


def test_a_new_release_would_be_noticed() -> None:
    """The planted twin: an option that reveals something more must break the agreement."""
    extra = Release("loss", False, "sent in the clear")
    assert {*declared(), (extra.what, "assign = by-loss", "no", "")} != table() - OUTSIDE_RECIPES


def test_what_is_covered_has_an_event_and_nothing_else_has() -> None:
    assert all((covered == "yes") == bool(event) for _, _, covered, event in declared())
