"""Wording and escaping of numbers and texts on a page. All text from files is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from hush.text import printable

NONE = "–"
_LONGEST = 1 << 20


def safe(value: object) -> str:
    """Return text escaped for HTML, without control or bidirectional characters."""
    lines = (printable(line, _LONGEST) for line in str(value).split("\n"))
    return html.escape("\n".join(lines), quote=True)


def capital(words: str) -> str:
    """Return words that begin a title."""
    return f"{words[:1].upper()}{words[1:]}"


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number with a few significant digits."""
    if value is None or math.isnan(value):
        return NONE
    return "∞" if math.isinf(value) else f"{value:.{digits}g}"


def times(value: float) -> str:
    """Return a factor with three significant digits, or whole from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def between(values: Sequence[float]) -> str:
    """Return the range of some numbers."""
    low, high = figure(min(values), 3), figure(max(values), 3)
    return low if low == high else f"{low} to {high}"


def count(number: int, thing: str) -> str:
    """Return a count with its noun, in the plural if needed."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
