"""Checks of numbers that should be standard normal and independent; each has a false-alarm probability of `RARE`.

`drawn` draws that many numbers. At the end are ways to draw wrongly, which the checks must notice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from tests.statistical.release_harness import RARE, product_p, tails_p

Drawn = Callable[[int], np.ndarray]
ENOUGH = 30_000_000  # of which 17 are beyond 5 deviations, so that none is improbable enough
_AT_ONCE = 1 << 20


def chi_square(drawn: Drawn, draws: int) -> bool:
    """Whether a thousand equally likely bins are filled alike."""
    edges = stats.norm.ppf(np.linspace(0, 1, 1001)[1:-1])
    counts = np.zeros(1000)
    for size in _parts(draws):
        counts += np.bincount(np.searchsorted(edges, drawn(size)), minlength=1000)
    return bool(stats.chisquare(counts).pvalue > RARE)


def tails(drawn: Drawn, draws: int, furthest: int = 5) -> bool:
    """Whether as many are beyond 3, 4 and 5 deviations as of normal numbers."""
    beyond = dict.fromkeys(range(3, furthest + 1), 0)
    for size in _parts(draws):
        far = np.abs(drawn(size))
        far = far[far > 3]
        beyond = {k: count + int((far > k).sum()) for k, count in beyond.items()}
    return tails_p(beyond, draws) > RARE


def independence(drawn: Drawn, other: Drawn, draws: int) -> bool:
    """Whether two sources, two draws of one, and near numbers of a draw are uncorrelated, as are their squares."""
    a, again, b = drawn(draws), drawn(draws), other(draws)
    pairs = [(a, again), (a, b), (a[::2], a[1::2]), (a[: draws // 2], a[draws // 2 :][: draws // 2])]
    p = min(product_p((x * y).astype(np.float64)) for x, y in pairs)
    # The mean of so many products of two independent numbers of variance 2 is nearly normal.
    squares = [np.mean((x**2 - 1) * (y**2 - 1)) * np.sqrt(len(x)) / 2 for x, y in pairs]
    return bool(min(p, *(float(2 * stats.norm.sf(abs(z))) for z in squares)) > RARE)


def clamped(drawn: Drawn, most: float) -> Drawn:
    """No number beyond so many deviations."""
    return lambda size: drawn(size).clip(-most, most)


def coarse(drawn: Drawn) -> Drawn:
    """Probabilities of 12 bits: the furthest number is at 3.7 deviations."""
    return lambda size: stats.norm.ppf((np.floor(stats.norm.cdf(drawn(size)) * 4096) + 0.5) / 4096)


def repeated(drawn: Drawn) -> Drawn:
    """The same numbers in every draw, as under a key and a count that do not change."""
    kept: dict[int, np.ndarray] = {}
    return lambda size: kept.setdefault(size, drawn(size))


def scaled(drawn: Drawn) -> Drawn:
    """A hundredth too small."""
    return lambda size: 0.99 * drawn(size)


def _parts(draws: int) -> list[int]:
    return [min(_AT_ONCE, draws - begin) for begin in range(0, draws, _AT_ONCE)]
