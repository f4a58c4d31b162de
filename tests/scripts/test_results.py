"""The summary of results: parts of an entry, every measure, undecided rankings and fitted settings are said."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hush.reproduce import entry
from scripts import results as script
from scripts.results_differences import differences
from scripts.results_front import verdict
from scripts.results_summary import HEADS, best_claims, fitted, line, reproduced_values, rounds_run


def result(name: str, **found: Any) -> dict[str, Any]:
    """The recorded result of an entry with the most cells, over the seeds asked for."""
    every = [c for c in script.loaded() if c["entry"] == name and all(c[key] == value for key, value in found.items())]
    return copy.deepcopy(max(every, key=lambda content: (len(content["cells"]), len(content["seeds"]))))


def summary_of(content: dict[str, Any]) -> dict[str, str]:
    return dict(zip(HEADS, line(content, "anchor"), strict=True))


def test_parts_of_an_entry_are_said() -> None:
    part = summary_of(result("robust-hdp/table-14"))
    assert (part["cells"], part["rounds"], part["seeds"]) == ("3 of 45", "3 of 200", "1")
    assert part["within tolerance"] == ""  # three rounds are not held against two hundred
    whole = summary_of(result("robust-hdp/table-12", mode="faithful", seeds=[0, 1, 2]))
    assert (whole["cells"], whole["rounds"]) == ("45", "200")


def test_every_measure_counts_and_not_only_the_first() -> None:
    content = result("rc-dpfl/table-3", seeds=[0, 1, 2])
    assert reproduced_values(content).startswith("14 of 30")
    worse = copy.deepcopy(content)
    for cell in worse["cells"]:
        value = cell["measures"]["accuracy minority"]
        value["ours"], value["runs"] = 0.0, [0.0, 0.0, 0.0]
    assert reproduced_values(worse) != reproduced_values(content)
    missed = "\n".join(differences([content], [content]))
    assert "| dp-fedavg eps=5 | accuracy minority | 64.04 | 35.34" in missed
    fairness = "\n".join(differences([result("rc-dpfl/table-4")], []))
    assert "| dp-fedavg eps=5 | F_acc | 20.81 | 40.63 |" in fairness


def test_a_best_algorithm_within_the_spread_is_undecided() -> None:
    content = result("robust-hdp/table-12", mode="faithful", seeds=[0, 1, 2])
    found = {one["order"]: one["verdict"] for one in best_claims(content)}
    assert len(found) == 9 and "undecided" in found.values()
    clear = copy.deepcopy(content)
    for cell in clear["cells"]:
        if cell["algorithm"] == "robust-hdp":
            cell["measures"]["value"]["runs"] = [99.0, 99.1, 99.2]
            cell["measures"]["value"]["ours"] = 99.1
    decided = {one["order"]: one["verdict"] for one in best_claims(clear)}
    assert {text: what for text, what in decided.items() if what == "holds"} == {
        text: "holds" for text in found if text.startswith("robust-hdp ")
    }


def test_fitted_settings_are_marked() -> None:
    assert summary_of(result("dp-scaffold/table-1"))["fitted"] == "eta_0"
    assert fitted(result("robust-hdp/table-12", mode="faithful"), entry("robust-hdp/table-12")) == ["steps per round"]
    assert fitted(result("robust-hdp/table-12", mode="sound"), entry("robust-hdp/table-12")) == []


def test_guessing_is_no_evidence() -> None:
    content = result("pfa/figure-4", seeds=[0])
    at_chance = {one["order"]: one["verdict"] for one in content["orders"] if one["order"].endswith("@ mixgauss1")}
    assert set(at_chance.values()) == {"undecided"}


def test_shortened_runs_prove_nothing_on_the_front_page() -> None:
    content = result("rc-dpfl/table-3", seeds=[0, 1, 2])
    assert verdict([content]) == "4 hold, 0 fail, 0 undecided"
    assert verdict([{**content, "changes": ["rounds=2"]}]) == "0 hold, 0 fail, 0 undecided"


@pytest.mark.parametrize(("changes", "found"), [([], (200, 200)), (["rounds=7", "rounds=3"], (3, 200))])
def test_rounds(changes: list[str], found: tuple[int, int]) -> None:
    content = {**result("rc-dpfl/table-3"), "changes": changes}
    assert rounds_run(content, entry("rc-dpfl/table-3")) == found


def part(*cells: str, seeds: tuple[int, ...] = (0,), **more: Any) -> dict[str, Any]:
    made = [
        {"algorithm": cell.partition(":")[0], "column": cell.partition(":")[2], "own": False, "measures": {}}
        for cell in cells
    ]
    return {
        "entry": "pfa/figure-7", "mode": "sound", "seeds": list(seeds), "changes": [], "cells": made,
        "command": f"hush reproduce {cells[0]}", "versions": {"hush": "1"}, **more,
    }  # fmt: skip


def test_parts_of_one_entry_are_put_together() -> None:
    one, other = part("pfa:cnn", versions={"hush": "1"}), part("weiavg:logreg", "pfa:logreg", versions={"hush": "2"})
    (whole,) = script.joined([one, other])
    assert [f"{cell['algorithm']}:{cell['column']}" for cell in whole["cells"]] == [
        "weiavg:logreg",
        "pfa:logreg",
        "pfa:cnn",
    ]
    assert whole["command"].split("`, `") == ["hush reproduce pfa:cnn", "hush reproduce weiavg:logreg"]
    assert whole["versions"] == {"hush": "1, 2"}
    assert len(one["cells"]) == 1


@pytest.mark.parametrize(
    "other",
    [
        part("pfa:cnn"),
        part("pfa:logreg", seeds=(0, 1)),
        part("pfa:logreg", changes=["rounds=3"]),
        part("x:y", mode="faithful"),
    ],
)
def test_other_runs_stay_apart(other: dict[str, Any]) -> None:
    assert len(script.joined([part("pfa:cnn"), other])) == 2
