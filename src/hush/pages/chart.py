"""The chart record: what a chart shows, independently of how it is drawn.

Texts are not yet escaped. Numbers that are not finite are left out when the chart is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log", "round", "category", "blank"]
Kind = Literal["line", "points", "bars", "ticks", "cells", "words"]
COLOURS = 8  # colours of the style sheet, c0 to c7
STEPS = 6  # colours of an ordered scale, r0 (strict) to r5 (loose)
QUIET, ALERT = "quiet", "alert"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis.

    Attributes:
        title: What is on it.
        scale: `linear`; `log` for positive numbers; `round` for whole rounds from 1; `category` for `categories`;
            `blank` for 0 to 1 without ticks.
        percent: Whether numbers are fractions, shown in percent.
        from_zero: Whether a linear axis includes zero.
        categories: Names; coordinates on this axis are positions in them.
    """

    title: str = ""
    scale: Scale = "linear"
    percent: bool = False
    from_zero: bool = False
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one kind.

    Attributes:
        kind: `line`; `points`; `bars` from the bottom; `ticks`, short horizontal marks; `cells`, coloured by `values`;
            `words`, the labels themselves.
        name: In the legend, the table and the tooltip.
        x: Coordinates.
        y: Coordinates.
        low: The lower ends of a band behind a line, or of whiskers at points and bars; empty where there are none.
        high: Their upper ends.
        labels: A name for each point, such as the client's.
        values: Of cells: what the colour stands for. NaN is an empty cell.
        alerts: Positions of bars that stand out.
        colour: A class of the style sheet: c0 to c7, r0 to r5, `quiet` or `alert`.
        dash: Whether the line is dashed.
        symbol: The shape of points, a number.
        listed: Whether it is in the legend, the table and the tooltips.
    """

    kind: Kind = "line"
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    values: Sequence[float] = ()
    alerts: Sequence[int] = ()
    colour: str = "c0"
    dash: bool = False
    symbol: int = 0
    listed: bool = True


@dataclass(frozen=True)
class Rule:
    """A dashed horizontal reference line; `start` is where it begins, as a fraction of the width."""

    value: float
    words: str = ""
    start: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with its texts.

    Attributes:
        key: Unique on the page.
        title: Its heading.
        words: How to read it.
        meaning: What it says, in one sentence computed from its numbers; also its text alternative.
        x: The horizontal axis.
        y: The vertical axis.
        series: What is drawn; a chart without any shows only its texts.
        rules: Reference lines.
        legend: Whether to list the series.
        height: In pixels.
        wide: Whether it takes a full row.
    """

    key: str
    title: str
    words: str
    meaning: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    series: Sequence[Series] = ()
    rules: Sequence[Rule] = ()
    legend: bool = False
    height: int = 300
    wide: bool = False


def numbered(position: int) -> str:
    """Return the colour of the n-th of several series without an order."""
    return f"c{position % COLOURS}"


def ordered(position: int, of: int) -> str:
    """Return the colour of the n-th of several series in an order, such as budgets from strict to loose."""
    return f"r{round(position * (STEPS - 1) / max(of - 1, 1))}"


def finite(values: Sequence[float]) -> list[float]:
    """Return the finite numbers."""
    return [value for value in values if math.isfinite(value)]


def scaled(title: str, values: Sequence[float], times: float = 10.0, *, percent: bool = False) -> Axis:
    """Return an axis from 0, or a logarithmic one if the largest value exceeds the smallest by more than `times`."""
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > times
    return (
        Axis(title=title, scale="log", percent=percent) if wide else Axis(title=title, from_zero=True, percent=percent)
    )
