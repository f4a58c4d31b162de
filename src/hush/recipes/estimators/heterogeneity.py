"""Heterogeneity of the clients: the variance of their updates beyond what noise explains.

A client's mean update over c rounds is its signal plus noise of energy e = sigma^2 / c, so two clients' means are on
average ||s_i - s_j||^2 + e_i + e_j apart. Half of what is left after the noise, averaged over pairs with weights 1 /
(e_i + e_j)^2, is the variance of the signals between clients. Noise alone makes a distance vary by 2 (e_i + e_j)^2 / p,
so with pairs as independent the average varies by 1 / (p sum of the weights of all ordered pairs); twice that is
counted, because pairs have clients in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.recipes.context import Strided

_COLUMNS, _FEWEST = 1 << 17, 1 << 10
_NUMBERS = 1 << 24  # of all clients' columns together
_CHUNK = 1 << 24  # numbers of the means that are in float64 at a time
_ERRORS = 2.0  # an interval of so many standard errors holds the truth in 19 of 20 cases
_FLOOR = 1e-9  # relative to the largest energy: without noise, all pairs have equal weight


def columns(parameters: int, clients: int) -> Strided:
    """Return which columns of the updates to keep a copy of for each client: evenly spaced, and few enough."""
    most = max(_FEWEST, min(_COLUMNS, _NUMBERS // max(1, clients)))
    return Strided(-(-parameters // most) or 1)


@dataclass(frozen=True)
class Difference:
    """The squared norm by which clients differ in one round, beyond their noise, and the error of the estimate."""

    estimate: float
    error: float

    def likely(self, usual: float) -> float:
        """Return the usual difference, or what is nearest to it within two standard errors of the estimate."""
        low, high = self.estimate - _ERRORS * self.error, self.estimate + _ERRORS * self.error
        return max(0.0, min(max(usual, low), high))


def difference(sums: Tensor, noise: Tensor, seen: Tensor) -> Difference:
    """Return the difference between clients, which may be estimated below 0; unknown if there are fewer than two.

    Args:
        sums: The sum of each client's updates, (n, columns).
        noise: The sum of the noise energies in them, (n,).
        seen: The number of updates in each sum, (n,).
    """
    known = (seen > 0).nonzero().flatten()
    if len(known) < 2:
        return Difference(0.0, math.inf)
    energy = noise[known] / seen[known].square()
    G = _gram_of_means(sums, known, seen)
    apart = G.diagonal()[:, None] + G.diagonal() - 2 * G
    both = energy[:, None] + energy
    weights = (both + _FLOOR * G.diagonal().max().clamp_min(1e-300)).pow(-2).fill_diagonal_(0.0)
    total = weights.sum()
    return Difference(
        float(0.5 * (weights * (apart - both)).sum() / total), float((2 / (max(1, sums.shape[1]) * total)).sqrt())
    )


def _gram_of_means(sums: Tensor, known: Tensor, seen: Tensor) -> Tensor:
    """Return the Gram matrix of the clients' means, some columns at a time."""
    if len(known) * sums.shape[1] <= _CHUNK:
        means = sums[known].double() / seen[known, None]
        return means @ means.T
    G = torch.zeros(len(known), len(known), dtype=torch.float64)
    for part in sums.split(max(1, _CHUNK // len(known)), dim=1):
        means = part[known].double() / seen[known, None]
        G.addmm_(means, means.T)
    return G
