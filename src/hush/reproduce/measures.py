"""Measures of the tables: their units, how close to a published value counts as reproduced, and what guessing gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hush.reproduce.files import with_keys

CLASSES: Mapping[str, int] = {
    "digits": 10, "mnist": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100, "emnist47": 47, "imdb": 2,
    "synthetic": 10, "dp-scaffold-users": 10,
}  # fmt: skip
GUESSING = 3.0  # points of accuracy above that of guessing that are not distinguished from it


@dataclass(frozen=True)
class Unit:
    """The unit of a measure.

    Attributes:
        words: What the tolerance is in.
        tolerance: The largest difference from a published value that counts as reproduced.
        relative: Whether the tolerance is in percent of the published value.
        one_seed: How far apart two values of one seed must be for their order to be decided.
    """

    words: str
    tolerance: float
    relative: bool = False
    one_seed: float = 0.0


# The middle standard deviation of the 190 accuracies that were run with three seeds is 0.69 points: two cells of one
# seed differ by chance by less than 1.9 points in 19 of 20 cases.
POINTS = Unit("points", 3.0, one_seed=2.0)
NOISE = Unit("%", 3.0, relative=True)
LOSS = Unit("% of the loss", 10.0, relative=True, one_seed=0.02)
TRAFFIC = Unit("% of the traffic", 10.0, relative=True)
SECONDS = Unit("% of the time", 10.0, relative=True)
COUNT = Unit("rounds", 1.0)

_ACCURACIES = ("accuracy", "tail-accuracy", "accuracy-curve", "groups", "client-spread", "clustering")
_SHARES = ("first-round-clusters", "first-round-directions")


def unit(metric: str, measure: str) -> Unit:
    """Return the unit of a measure of a metric; `value` is the name of the only one."""
    if measure == "rounds T":
        return COUNT
    if measure == "uplink MiB":
        return TRAFFIC
    if metric in ("first-round-noise", "planned-noise", "first-round-weights"):
        return NOISE
    if metric == "projection-seconds":
        return SECONDS
    if metric in _SHARES:
        return POINTS
    accuracy = "accuracy" in measure or measure == "F_acc" or (metric == "bytes" and measure == "value")
    return POINTS if metric in _ACCURACIES or accuracy else LOSS


def gap(metric: str, measure: str, value: Mapping[str, Any]) -> float | None:
    """Return how far a value is from the published one, in its unit.

    None if nothing is published, or if it is the time that another machine took.
    """
    found = unit(metric, measure)
    if value["printed"] is None or found is SECONDS:
        return None
    scale = 100 / abs(float(value["printed"])) if found.relative and value["printed"] else 1.0
    return abs(scale * (float(value["ours"]) - float(value["printed"])))


def guessing(content: Mapping[str, Any], cell: Mapping[str, Any], measure: str) -> float | None:
    """Return the accuracy in percent below which a cell's model is no better than guessing; None if no accuracy.

    `content` is a reproduction, or what there is of one: its `metric` and `config`.
    """
    metric = content["metric"]
    accuracy = metric in _ACCURACIES[:4] or "accuracy" in measure or (metric == "bytes" and measure == "value")
    if not accuracy or measure in ("max accuracy gap",):
        return None
    config = with_keys(content["config"], cell.get("settings", {}))
    classes = CLASSES.get(str(config.get("data", {}).get("name")))
    return None if classes is None else 100 / classes + GUESSING
