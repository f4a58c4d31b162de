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
    """1 / (sigma_i^2 + s R tau^2), s a hundredth of the parameters and at least 1.

    tau^2 is from the pairs of mean updates, noise taken off, the surest pairs first.
    """
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
        return inverse(energies + max(1.0, updates.shape[1] / 100) * rounds * max(0.0, 0.5 * top / bottom))

    return weight


def averaged(models: Sequence[Array], share: float) -> list[Array]:
    """The averages over recent rounds: the newest of t models has weight 1 / max(1, share t), the older the rest."""
    newest = [1 / max(1.0, share * t) for t in range(1, len(models) + 1)]
    weights = [[new * np.prod([1 - later for later in newest[at + 1 : t]]) for at, new in enumerate(newest[:t])]
               for t in range(1, len(models) + 1)]  # fmt: skip
    return [np.average(models[: len(each)], axis=0, weights=each) for each in weights]
