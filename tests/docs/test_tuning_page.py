"""docs/tuning.md shows what was measured."""

from __future__ import annotations

import json

from scripts import price_of_tuning
from tests.support.paths import ROOT

STORED = json.loads(price_of_tuning.RESULTS.read_text())


def test_the_table_is_that_of_the_results() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    assert "\n".join(price_of_tuning.table(STORED)) in page
    assert STORED["config"] == price_of_tuning.CONFIG
    assert STORED["grids"] == {name: list(rates) for name, rates in price_of_tuning.GRIDS.items()}


def test_no_budget_was_exceeded_and_more_candidates_need_more_noise() -> None:
    runs = STORED["runs"]
    assert all(0.95 < run["most_spent"] <= 1.0 for each in runs.values() for run in each)
    ratios = [runs[name][0]["noise_ratio"] for name in ("2", "4", "8")]
    assert ratios == sorted(ratios)
    assert all(ratio < 1.1 * int(name) ** 0.5 for name, ratio in zip(("2", "4", "8"), ratios, strict=True))
