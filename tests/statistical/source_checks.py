"""Checks of the sources that every release draws from: tails up to 5 deviations, rates down to 1e-6, independence.

Each has a false-alarm probability of at most `RARE` on correct code.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats

from hush.privacy import noise
from hush.privacy.source import Source
from tests.statistical.release_harness import RARE, Finding, product_p, tails_p

# Of so many numbers 17 are beyond 5 deviations, so that none is improbable enough.
DRAWS = 30_000_000
AT_ONCE = 1_000_000
RATES = (1e-6, 1e-5, 2.0**-16, 3e-4, 0.01)
ROWS = 40_000_000
OPENED: dict[str, Callable[[int], Source]] = {
    "seeded": lambda number: noise.Seeded(7, number, 1),
    "secure": lambda number: noise.Secure(),
}


def source_tails() -> Finding:
    """Of 30 million numbers of each source as many are beyond 3, 4 and 5 deviations as of normal ones."""
    worst, figures = 1.0, []
    for open_source in OPENED.values():
        source, beyond, draws = open_source(0), {3: 0, 4: 0, 5: 0}, 0
        while draws < DRAWS:
            drawn = source.normal(AT_ONCE, torch.float32).abs()
            far, draws = drawn[drawn > 3], draws + AT_ONCE
            beyond = {k: n + int((far > k).sum()) for k, n in beyond.items()}
            # A first look after a million, a last one at the end: half of the false alarms each.
            if draws in (AT_ONCE, DRAWS):
                worst = min(worst, 2 * tails_p(beyond, draws))
            if worst < RARE:
                break
        figures.append(f"{beyond[3] / draws / (2 * stats.norm.sf(3)):.2f} and {beyond[5]}")
    wanted = DRAWS * 2 * stats.norm.sf(5)
    return Finding(
        worst > RARE, f"beyond 3 standard deviations {' or '.join(figures)} beyond 5 (planned 1.00 and {wanted:.0f})"
    )


def source_streams() -> Finding:
    """Numbers and rows of two sources are independent, as are those of successive draws of one source."""
    worst, p = 0.0, 1.0
    for open_source in OPENED.values():
        first, second = open_source(0), open_source(1)
        a, b, again = (s.normal(100_000, torch.float64).numpy() for s in (first, second, first))
        pairs = [a * b, a * again]
        # Of two independent batches at rate 1/2, a row is in both or in neither half of the time.
        signs = [_signs(source, 100_000) for source in (first, second, first)]
        # Of few rows, several batches are drawn ahead: the second, third and fourth at a time.
        ahead = [_signs(first, 5_000) for _ in range(4)]
        p = min(p, *map(product_p, pairs))
        for one, other in ((signs[0], signs[1]), (signs[0], signs[2]), (ahead[1], ahead[2]), (ahead[1], ahead[3])):
            size, alike = len(one), int((one == other).sum())
            p = min(p, 2 * stats.binom.cdf(min(alike, size - alike), size, 0.5))
            worst = max(worst, abs(2 * alike / size - 1))
        worst = max(worst, *(abs(float(pair.mean())) for pair in pairs))
    return Finding(bool(p > RARE), f"correlation {worst:.2f} between two sources, or two draws of one")


def _signs(source: Source, size: int) -> np.ndarray:
    """One for the rows of a batch at rate 1/2, minus one for the others."""
    found = np.full(size, -1.0)
    found[source.chosen(size, 0.5).numpy()] = 1.0
    return found


def sampling_rates() -> Finding:
    """Rows enter at the planned rate, from 0.01 down to one in a million."""
    found = []
    for open_source in OPENED.values():
        for number, rate in enumerate(RATES):
            source, draws = open_source(number), max(1, min(ROWS, math.ceil(4000 / rate)) // AT_ONCE)
            entered = sum(len(source.chosen(AT_ONCE, rate)) for _ in range(draws))
            tried = AT_ONCE * draws
            p = 2 * min(stats.binom.cdf(entered, tried, rate), stats.binom.sf(entered - 1, tried, rate))
            found.append((float(p), entered / (tried * rate), rate))
    p, ratio, rate = min(found)
    return Finding(p > RARE, f"at rate {rate:.2g} rows are sampled {ratio:.2f} times as often as planned")


SOURCE_CHECKS: dict[str, Callable[[], Finding]] = {
    check.__name__: check for check in (source_tails, source_streams, sampling_rates)
}
