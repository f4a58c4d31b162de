"""A run whose clients have no budget left says so, wherever it is looked at."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.recipes import RECIPES

FALSE = (
    "does not estimate noise",
    "no noise was added",
    "Private against the server",
    "Not private",
    "No privacy",
    "contain secure noise",
    "Within budget",
    "send their updates",
    "There is no privacy guarantee",
)


def raw(recipe: str, **privacy: Any) -> dict[str, Any]:
    """Ledgers of a lifetime that affords no round stand for ledgers that are spent."""
    return {
        "rounds": 5,
        "data": {"clients": 4},
        "privacy": {"budgets": [1.0, 1.0, 2.0, 2.0], "lifetime": 0.001, "noise": "secure", **privacy},
        "local": {"batch_size": 32},
        "recipe": {"name": recipe},
    }


def text_of(page: Path) -> str:
    """The words of a report, without its scripts and styles."""
    body = page.read_text().partition("<body")[2]
    body = re.sub(r"<(script|style).*?</\1>", " ", body, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


@pytest.mark.parametrize("recipe", RECIPES)
def test_spent_budgets_are_said_for_every_recipe(tmp_path: Path, recipe: str) -> None:
    with pytest.raises(hush.NothingTrainedError, match="none of the 4 clients could afford a round") as caught:
        hush.simulate(raw(recipe), out=tmp_path / "run", ledgers=tmp_path / "ledgers")
    assert caught.value.result.out_of_budget == {0: 1, 1: 1, 2: 1, 3: 1}
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["trained"] is False and "nothing was trained" in written["ended"]
    page = text_of(tmp_path / "run" / "report.html")
    assert "Nothing was trained: all budgets are exhausted" in page
    assert "All scores on this page are those of the initial model" in page
    assert [words for words in FALSE if words in page] == []
    if recipe == "hush":
        with pytest.raises(hush.HushError, match=r"none of the 4 clients could afford a round, so nothing was trained"):
            hush.measure(tmp_path / "run")
        with pytest.raises(hush.NothingTrainedError):
            hush.simulate(raw(recipe), out=tmp_path / "run", ledgers=tmp_path / "ledgers", resume=True)


def test_clients_that_are_spent_are_named(tmp_path: Path) -> None:
    some = raw("robust-hdp", lifetime=[0.001, 3.0, 3.0, 0.001])
    result = hush.simulate(some, out=tmp_path / "run", ledgers=tmp_path / "ledgers")
    assert result.trained and result.out_of_budget == {0: 1, 3: 1}
    page = text_of(tmp_path / "run" / "report.html")
    assert "2 of 4 clients ran out of budget: client 0 from round 1 on, client 3 from round 1 on." in page
    assert hush.simulate(some, out=tmp_path / "run", ledgers=tmp_path / "ledgers", resume=True) == result


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")
def test_the_command_fails_when_nothing_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hush.cli.main import main

    def status(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["hush", "run", "run.toml", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code

    (tmp_path / "run.toml").write_text("rounds = 2\n[data]\nclients = 2\n[privacy]\nlifetime = [0.001, 0.001]\n")
    monkeypatch.chdir(tmp_path)
    assert status("--ledgers", "ledgers", "--out", "out") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "hush: error: all budgets are exhausted: none of the 2 clients could afford a round" in printed.err
    assert status("--set", "privacy.lifetime=[0.001, 1.0]", "--ledgers", "others", "--out", "partly") == 0
    assert "1 of 2 clients ran out of budget: client 0 from round 1 on." in capsys.readouterr().out
