"""Rank correlation, and how to say it in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_FEWEST = 4


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's correlation, or None for fewer than four points or a constant."""
    if len(x) < _FEWEST or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return statistics.correlation(_ranks(x), _ranks(y))


def strength(correlation: float) -> str:
    """Return an adverb for a rank correlation."""
    size = abs(correlation)
    if size < 0.3:
        return "hardly"
    return ("closely" if size > 0.7 else "loosely") + (", inversely" if correlation < 0 else "")


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of theirs."""
    listed = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(listed)))}
    last = {value: place for place, value in enumerate(listed)}
    return [(first[value] + last[value]) / 2 for value in values]
