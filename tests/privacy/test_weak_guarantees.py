"""Guarantees that mean next to nothing are said to, in the terminal, the result, the plan and the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hush import api
from hush.callbacks import Callback, RunStart
from hush.config import parse
from hush.engines.setup import prepare
from hush.privacy.weak_guarantees import LARGE_DELTA, LARGE_EPSILON, gathered, warnings_of
from hush.report import write
from hush.server.run_directory import RunDir
from hush.terminal import show_plan, show_preview

WEAK: dict[str, tuple[dict[str, Any], str]] = {
    "delta": ({"budgets": 2.0, "delta": 0.5}, "delta 0.5"),
    "rows": ({"budgets": 2.0, "delta": 5e-3}, "not below 1/n"),
    "epsilon": ({"budgets": 1e9}, "epsilon 1e+09"),
}


def config(privacy: dict[str, Any]) -> dict[str, Any]:
    return {"rounds": 1, "data": {"clients": 2, "sizes": [300, 400]}, "privacy": privacy}


@pytest.mark.parametrize("kind", WEAK)
def test_a_run_says_that_its_guarantee_means_little(kind: str, tmp_path: Path) -> None:
    privacy, words = WEAK[kind]
    said: list[tuple[str, ...]] = []

    class Listener(Callback):
        def on_run_start(self, start: RunStart) -> None:
            said.append(start.warnings)

    result = api.simulate(config(privacy), out=tmp_path / "run", callbacks=[Listener()])
    assert any(words in text for text in result.warnings)
    assert said == [result.warnings]
    assert all(any(words in text for text in card.warnings) for card in result.guarantees)
    kept = RunDir(tmp_path / "run").finished()
    assert kept is not None
    assert kept.warnings == result.warnings
    assert kept.guarantees[0].warnings == result.guarantees[0].warnings
    write(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<strong>Warning:</strong>" in page
    assert words in page


def test_an_ordinary_run_warns_of_nothing() -> None:
    assert prepare(parse(config({"budgets": 2.0}))).warnings() == ()
    assert prepare(parse({**config({"budgets": 2.0}), "recipe": {"name": "fedavg"}})).warnings() == ()


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [
        (2.0, 0.5, "Warning: delta 0.5"),
        (2.0, 2e-3, "Warning: delta 0.002 is not below 1/n"),
        (1e6, 1e-5, "Warning: epsilon 1e+06"),
        (2.0, 1e-5, ""),
    ],
)
def test_a_plan_warns(epsilon: float, delta: float, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = api.plan(epsilon=epsilon, delta=delta, samples=1000, batch=50, rounds=2)
    assert bool(found["warnings"]) == bool(words)
    show_plan(found)
    shown = capsys.readouterr().out
    assert ("Warning" in shown) == bool(words)
    assert words in shown


def test_a_preview_warns(capsys: pytest.CaptureFixture[str]) -> None:
    show_preview(api.preview(config({"budgets": 2.0, "delta": 0.5})))
    assert "Warning: clients 0, 1: delta 0.5" in capsys.readouterr().out


def test_the_limits() -> None:
    assert warnings_of(LARGE_EPSILON, 1e-6, 1000) == ()
    assert warnings_of(math.inf, 0.5, 1000) == ()
    assert len(warnings_of(LARGE_EPSILON + 1, LARGE_DELTA, 1000)) == 2
    assert warnings_of(1.0, 1e-3, 999) == ()
    assert len(warnings_of(1.0, 1e-3, 1000)) == 1
    assert warnings_of(1.0, 1e-3) == (), "without a number of rows, there is nothing to compare with"
    assert gathered((client, ("a",) if client else ()) for client in range(8)) == (
        "clients 1, 2, 3, 4, 5 and 2 more: a",
    )
