"""Figures: common parts of all charts, namely the chart record, axes, colours, and escaped text."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.objective.metrics import Metric

COLOURS = ("#3b82c4", "#d9822b", "#2a9d8f", "#8b6fd1", "#cc5a7a", "#8a9a3b", "#4aa8cf", "#a9745b")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "x")
STRICT_TO_LOOSE = ("#7a5fc0", "#4d74c9", "#2f93b8", "#2a9d8f", "#6aa84f", "#c9a227")
MAIN, ALERT, QUIET = COLOURS[0], COLOURS[4], "#8a919c"


@dataclass(frozen=True)
class Chart:
    """A plotly figure with its title and caption. Texts are not yet escaped."""

    key: str
    title: str
    words: str
    data: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] | None = None
    height: int = 320
    wide: bool = False


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the common layout; the page adds the colours of its theme."""
    return {
        "margin": {"l": 56, "r": 16, "t": 10, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12.5},
        "dragmode": False,
        "hovermode": "closest",
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {"zeroline": False, "automargin": True, **x},
        "yaxis": {"zeroline": False, "automargin": True, **y},
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title, "standoff": 8, "font": {"size": 12.5}}, **more}


def number_format(metric: Metric) -> str:
    """Return how plotly prints a value of the metric."""
    return ".1%" if metric.percent else ".4~g"


def score_axis(metric: Metric, **more: Any) -> dict[str, Any]:
    """Return the axis of a metric."""
    return axis(metric.label, tickformat=".0%" if metric.percent else "~g", **more)


def log_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis for positive numbers, with few round ticks."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.1 + 0.06 * (high - low)
    low, high = low - room, high + room
    apart = math.ceil((high - low) / 6)
    leading = (1, 2, 5) if high - low < 3.2 else (1,)
    ticks = [(n, power) for power in range(math.floor(low), math.ceil(high) + 1, apart) for n in leading]
    ticks = [(n, power) for n, power in ticks if low <= math.log10(n) + power <= high]
    return axis(
        title,
        type="log",
        range=[low, high],
        tickvals=[n * 10.0**power for n, power in ticks],
        ticktext=[_tick(n, power) for n, power in ticks],
    )


def scale(title: str, values: Sequence[float], times: float = 10.0) -> dict[str, Any]:
    """Return an axis from 0, or a logarithmic one if the maximum exceeds the minimum by more than the given factor."""
    wide = min(values) > 0 and max(values) / min(values) > times
    return log_axis(title, values) if wide else axis(title, rangemode="tozero")


def round_axis(last: int) -> dict[str, Any]:
    """Return an axis of integer rounds."""
    steps = (base * 10**power for power in range(9) for base in (1, 2, 5))
    return axis("round", dtick=next(step for step in steps if last <= 10 * step), tick0=0, range=[0.5, last + 0.5])


def text(value: object) -> str:
    """Return a string escaped for plotly, whose labels interpret some HTML."""
    return html.escape(str(value), quote=False)


def finite(values: Sequence[float]) -> list[float]:
    """Return the finite numbers."""
    return [value for value in values if math.isfinite(value)]


def ramp(position: int, of: int) -> str:
    """Return the colour of the n-th strictest budget."""
    return STRICT_TO_LOOSE[round(position * (len(STRICT_TO_LOOSE) - 1) / max(of - 1, 1))]


def _tick(leading: int, power: int) -> str:
    if -3 <= power <= 4:
        return f"{leading * 10.0**power:g}"
    return f"10<sup>{power}</sup>" if leading == 1 else f"{leading}·10<sup>{power}</sup>"
