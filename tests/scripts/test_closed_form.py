"""The measured table of the closed form: the page shows the file, and what it says holds in the file."""

from __future__ import annotations

import json
import statistics

from scripts.closed_form import ARMS, EPSILONS, RESULTS, SEEDS, table
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")


def test_the_page_shows_what_was_measured() -> None:
    found = json.loads(RESULTS.read_bytes())
    assert "\n".join(table(found)) in PAGE
    assert found["seeds"] == list(SEEDS)
    assert set(found["accuracy"]) == set(ARMS)
    assert all(len(runs) == len(SEEDS) for arm in found["accuracy"].values() for runs in arm.values())


def test_more_budget_is_more_accuracy() -> None:
    found = json.loads(RESULTS.read_bytes())["accuracy"]
    for arm in ARMS:
        means = [statistics.fmean(found[arm][f"{epsilon:g}"]) for epsilon in EPSILONS]
        assert means == sorted(means)
