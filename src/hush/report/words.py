"""How numbers and texts look on a page. Whatever comes from a file passes through here before it becomes HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

NONE = "–"


def safe(value: object) -> str:
    """Text that means nothing to a browser but itself."""
    return html.escape(str(value), quote=True)


def percent(fraction: float | None) -> str:
    """A fraction as a percentage."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.1f}%"


def figure(value: float | None, digits: int = 4) -> str:
    """A number to a few significant digits."""
    if value is None or math.isnan(value):
        return NONE
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def between(values: Sequence[float]) -> str:
    """The range of some numbers."""
    low, high = figure(min(values), 3), figure(max(values), 3)
    return low if low == high else f"{low} to {high}"


def count(number: int, thing: str) -> str:
    """A number of things, in the plural where it is due."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
