"""Measures: their units, how far a value is from print, and what guessing gives."""

from __future__ import annotations

from typing import Any

import pytest

from hush.data.datasets import load
from hush.reproduce import entries, entry
from hush.reproduce.measures import CLASSES, COUNT, LOSS, NOISE, POINTS, TRAFFIC, Unit, gap, guessing, unit


@pytest.mark.parametrize(
    ("metric", "measure", "found"),
    [
        ("accuracy", "value", POINTS),
        ("groups", "accuracy minority", POINTS),
        ("fairness", "F_acc", POINTS),
        ("fairness", "F_loss", LOSS),
        ("fairness", "max accuracy gap", POINTS),
        ("clean-loss", "value", LOSS),
        ("clean-loss", "accuracy (%)", POINTS),
        ("loss-gap", "test accuracy", POINTS),
        ("bytes", "value", POINTS),
        ("bytes", "uplink MiB", TRAFFIC),
        ("first-round-noise", "value", NOISE),
        ("tail-accuracy", "rounds T", COUNT),
        ("client-spread", "accuracy of the smallest client", POINTS),
    ],
)
def test_units(metric: str, measure: str, found: Unit) -> None:
    assert unit(metric, measure) == found


def value(ours: float, printed: float | None) -> dict[str, Any]:
    return {"ours": ours, "printed": printed}


def test_the_gap_is_in_points_or_relative() -> None:
    assert gap("accuracy", "value", value(80.0, 84.0)) == pytest.approx(4.0)
    assert gap("first-round-noise", "value", value(103.0, 100.0)) == pytest.approx(3.0)
    assert gap("fairness", "F_loss", value(0.45, 0.5)) == pytest.approx(10.0)
    assert gap("accuracy", "value", value(80.0, None)) is None


def test_guessing_follows_the_data_of_the_cell() -> None:
    content = {"metric": "accuracy", "config": {"data": {"name": "mnist"}}}
    assert guessing(content, {"settings": {}}, "value") == 13.0
    assert guessing(content, {"settings": {"data.name": "imdb"}}, "value") == 53.0
    assert guessing(content, {"settings": {"data": {"name": "emnist47"}}}, "value") == pytest.approx(100 / 47 + 3)
    assert guessing({**content, "metric": "fairness"}, {"settings": {}}, "max accuracy gap") is None
    assert guessing({**content, "metric": "clean-loss"}, {"settings": {}}, "value") is None


def test_the_numbers_of_classes_are_those_of_the_data() -> None:
    assert load("digits", root=None).classes == CLASSES["digits"]
    assert load("synthetic", root=None, clients=2, samples=20).classes == CLASSES["synthetic"]
    names = {
        entry(name).configured(cell, entry(name).modes[0]).data.name for name in entries() for cell in entry(name).cells
    }
    assert names <= set(CLASSES)


def test_times_of_another_machine_are_not_judged() -> None:
    value = {"ours": 0.001, "printed": 0.35}
    assert gap("projection-seconds", "value", value) is None
    assert gap("loss", "value", value) is not None
