"""docs/first-minutes.md is what the script makes of the results and the programs, and Hush's program runs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from scripts import first_minutes as script
from tests.support.paths import ROOT

RESULTS = json.loads(script.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_up_to_date() -> None:
    hint = "run python -m scripts.first_minutes"
    assert (ROOT / "docs" / "first-minutes.md").read_text(encoding="utf-8") == script.page(RESULTS), hint


def test_lines_are_counted_without_comments_and_docstrings() -> None:
    assert script.code_lines("hush") == {"train.py": 5}
    assert 10 < script.code_lines("flower")["task.py"] < 20


def test_every_program_kept_its_budgets() -> None:
    """In what it printed: each client spent at most, and nearly, what it allows."""
    for name, entry in RESULTS["programs"].items():
        assert len(entry["seconds"]) == script.REPEATS
        spent = [line.split() for line in entry["says"] if "of" in line or line[0].isdigit()]
        pairs = [(float(w[1]), float(w[2])) if w[0].isdigit() else (float(w[-3]), float(w[-1])) for w in spent]
        assert [budget for _, budget in pairs] == [1.0, 2.0, 4.0], name
        assert all(0.97 * budget < epsilon <= budget for epsilon, budget in pairs), name


def test_the_output_of_each_is_understood() -> None:
    log = "x INFO - client 0: accuracy 0.1, epsilon 0.100 of 1.0\nclient 1: epsilon 0.2 of 2.0\n" + (
        "x INFO - client 0: accuracy 0.2, epsilon 0.900 of 1.0\n"
    )
    assert script.says(log) == ["client 0: accuracy 0.2, epsilon 0.900 of 1.0", "client 1: epsilon 0.2 of 2.0"]


@pytest.mark.slow
def test_the_program_of_hush_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runpy.run_path(str(script.PROGRAMS / "with_hush" / "train.py"))["result"]
    assert result.guarantees["epsilon_budget"] == (1.0, 2.0, 4.0)
    assert all(0 < spent <= budget for spent, budget in zip(
        result.guarantees["epsilon_spent"], result.guarantees["epsilon_budget"], strict=True
    ))  # fmt: skip
