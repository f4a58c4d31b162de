"""Hush's own recipe: equal steps on centred rows, weights by noise and by difference, averaged models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.conformance.references.robust_hdp import Weigh, inverse, pairwise_energies
from tests.conformance.references.toy import Array, Client


def centred(clients: Sequence[Client], centre: Array, steps: int) -> list[Client]:
    """The clients with their rows counted from a centre, and one pass in that many steps."""
    return [replace(c, x=c.x - centre, divisor=float(-(-c.size // steps))) for c in clients]


def balanced(rounds: int, planned: Array, reach: float) -> Weigh:
    """1 / (sigma_i^2 + s R tau^2), s a hundredth of the parameters and at least 1.

    tau^2 is the usual difference, 0.003 of the squared reach, moved into the interval of two standard errors of the
    estimate: from the pairs of mean updates, noise taken off, the surest pairs first. Noise is as planned where the
    estimated one is within a quarter of that.
    """
    sums: dict[int, Array] = {}
    noise: dict[int, float] = {}
    seen: dict[int, int] = {}

    def weight(updates: Array, ids: Sequence[int]) -> Array:
        energies = pairwise_energies(updates)
        for row, i in enumerate(ids):
            close = abs(energies[row] - planned[i]) <= planned[i] / 4
            sums[i] = sums.get(i, 0.0) + updates[row]
            noise[i] = noise.get(i, 0.0) + (planned[i] if close else energies[row])
            seen[i] = seen.get(i, 0) + 1
        top, bottom = 0.0, 0.0
        largest = max(float((sums[i] / seen[i]) @ (sums[i] / seen[i])) for i in sums)
        for i in sums:
            for j in sums:
                if i != j:
                    apart = float(((sums[i] / seen[i] - sums[j] / seen[j]) ** 2).sum())
                    both = noise[i] / seen[i] ** 2 + noise[j] / seen[j] ** 2
                    surety = (both + 1e-9 * largest) ** -2
                    top, bottom = top + surety * (apart - both), bottom + surety
        size = updates.shape[1]
        estimate, error = 0.5 * top / bottom, np.sqrt(2 / (size * bottom))
        difference = max(0.0, float(np.clip(0.003 * reach**2, estimate - 2 * error, estimate + 2 * error)))
        return inverse(energies + max(1.0, size / 100) * rounds * difference)

    return weight


def averaged(models: Sequence[Array], share: float) -> list[Array]:
    """The averages over recent rounds: the newest of t models has weight 1 / max(1, share t), the older the rest."""
    newest = [1 / max(1.0, share * t) for t in range(1, len(models) + 1)]
    weights = [[new * np.prod([1 - later for later in newest[at + 1 : t]]) for at, new in enumerate(newest[:t])]
               for t in range(1, len(models) + 1)]  # fmt: skip
    return [np.average(models[: len(each)], axis=0, weights=each) for each in weights]
