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


def balanced(rounds: int) -> Weigh:
    """1 / (sigma_i^2 + 5 R tau^2): tau^2 from the pairs of mean updates, noise taken off, the surest pairs first."""
    sums: dict[int, Array] = {}
    noise: dict[int, float] = {}
    seen: dict[int, int] = {}

    def weight(updates: Array, ids: Sequence[int]) -> Array:
        energies = pairwise_energies(updates)
        for row, i in enumerate(ids):
            sums[i] = sums.get(i, 0.0) + updates[row]
            noise[i] = noise.get(i, 0.0) + energies[row]
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
        return inverse(energies + 5 * rounds * max(0.0, 0.5 * top / bottom))

    return weight


def averaged(models: Sequence[Array], decay: float) -> list[Array]:
    """The exponential average of the models so far, without the pull of its empty start."""
    out = []
    for t in range(1, len(models) + 1):
        weights = decay ** np.arange(t - 1, -1, -1.0)
        out.append(np.average(models[:t], axis=0, weights=weights))
    return out
