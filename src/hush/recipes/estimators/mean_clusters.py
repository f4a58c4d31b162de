"""Clusters of clients from the noisy means of their inputs, as many as there is evidence for.

This is post-processing of means that are released with noise and has no privacy cost.

The noise of a mean is known: v_i in each of d numbers. Clients are divided in two, and each part again. A division
counts if two tests hold for the squared distance D^2 of the centroids A and B of the two parts, in which means count by
1 / v_i:

1. Noise alone does not explain it. Of means that differ by noise alone, D^2 / (v_A + v_B) has d degrees of freedom, v_A
   and v_B the variances of the centroids. The division is the best of 2^(n-1), so what is compared is the bound of
   Laurent and Massart (2000) at x = n log 2 + `_EVIDENCE` (a union bound): d + 2 sqrt(d x) + 2 x.
2. Differences among all clients do not explain it. D^2 less its noise is at least `_SEPARATION` times the squared
   distance of two clients of one cluster, less its noise, in the clusters that the two parts end up in. Where clients
   differ without clusters, by their labels for instance, the latter is about as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_EVIDENCE = 7.0  # the probability of dividing clients that are alike is below exp(-7), a thousandth
_PER_CLIENT = math.log(2)  # each client doubles the number of divisions
_SEPARATION = 4.0  # halves of one normal distribution in a line are 3.5 apart in this measure, in more dimensions less
_FEWEST = 2  # clients of a cluster
_PASSES = 30


def clusters(means: Tensor, variances: Tensor, most: int) -> list[int]:
    """Return the cluster of each client; the first is the one whose clients know most, by the sum of 1 / variance.

    Args:
        means: The noisy mean of each client, n x d.
        variances: The variance of the noise in each of its numbers, (n,).
        most: How many clusters there may be. If more are found, those that are nearest to each other are joined.
    """
    points, precision = means.double(), variances.double().reciprocal()
    found = _parts(points, precision, torch.arange(len(points)))
    while len(found) > most:
        found = _joined(points, precision, found)
    found.sort(key=lambda part: -float(precision[part].sum()))
    labels = torch.zeros(len(points), dtype=torch.int64)
    for number, part in enumerate(found):
        labels[part] = number
    return [int(label) for label in labels]


def _parts(points: Tensor, precision: Tensor, part: Tensor) -> list[Tensor]:
    """Return the clusters among some clients: all of them as one, or those of the two sides of a division."""
    sides = _divided(points[part], precision[part])
    if sides is None:
        return [part]
    found = [each for side in (part[sides], part[~sides]) for each in _parts(points, precision, side)]
    return found if _separate(points[part], precision[part], sides, _within(points, precision, found)) else [part]


def _joined(points: Tensor, precision: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts with the two nearest of them in one."""
    centroids = torch.stack([precision[part] @ points[part] / precision[part].sum() for part in parts])
    apart = torch.cdist(centroids, centroids).fill_diagonal_(torch.inf)
    first, second = divmod(int(apart.argmin()), len(parts))
    rest = [part for number, part in enumerate(parts) if number not in (first, second)]
    return [*rest, torch.cat([parts[first], parts[second]])]


def _divided(points: Tensor, precision: Tensor) -> Tensor | None:
    """Return who is on one side of the best division in two, or None if noise alone explains it."""
    if len(points) < 2 * _FEWEST:
        return None
    tries = [_settled(points, precision, start) for start in _starts(points, precision)]
    sides = max(tries, key=lambda each: _between(points, precision, each))
    fewest = min(int(sides.sum()), int((~sides).sum()))
    return sides if fewest >= _FEWEST and _beyond_noise(points, precision, sides) else None


def _starts(points: Tensor, precision: Tensor) -> Sequence[Tensor]:
    """Return divisions by the sign along each of the leading directions of the whitened means."""
    share = precision / precision.sum()
    rows = (points - share @ points) * precision.sqrt()[:, None]
    # The n x n Gram matrix has the same directions; with many clients and few numbers each, d x d is smaller.
    if len(rows) <= rows.shape[1]:
        along = torch.linalg.eigh(rows @ rows.T).eigenvectors[:, -_DIRECTIONS:]
    else:
        along = rows @ torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -_DIRECTIONS:]
    return [side > 0 for side in along.T]


_DIRECTIONS = 3


def _settled(points: Tensor, precision: Tensor, sides: Tensor) -> Tensor:
    """Let each client move to the side whose other clients are nearer, until nobody does."""
    for _ in range(_PASSES):
        if not bool(sides.any()) or bool(sides.all()):
            return sides
        distances = torch.stack([_distances(points, precision, part) for part in (~sides, sides)])
        moved = distances[1] < distances[0]
        if bool((moved == sides).all()):
            break
        sides = moved
    return sides


def _distances(points: Tensor, precision: Tensor, part: Tensor) -> Tensor:
    """Return how far each client is from the centroid of the others of a part, squared, less the centroid's noise."""
    weights = precision * part
    total = weights.sum()
    centroid = weights @ points / total
    # Without the client itself: its deviation from the centroid grows by this factor, and so does its variance.
    others = (total - weights).clamp_min(1e-12 * float(total))
    apart: Tensor = (points - centroid).square().sum(1) * (total / others).square() - points.shape[1] / others
    return torch.where(others <= 1e-9 * total, torch.inf, apart)


def _between(points: Tensor, precision: Tensor, sides: Tensor) -> float:
    """Return the squared distance of the two centroids over the variance of its noise."""
    if not bool(sides.any()) or bool(sides.all()):
        return 0.0
    centroids, noise = _centroids(points, precision, sides)
    return float((centroids[1] - centroids[0]).square().sum()) / noise


def _centroids(points: Tensor, precision: Tensor, sides: Tensor) -> tuple[Tensor, float]:
    """Return both centroids and the sum of the variances of their noise."""
    weights = torch.stack([precision * ~sides, precision * sides])
    totals = weights.sum(1)
    return weights @ points / totals[:, None], float(totals.reciprocal().sum())


def _beyond_noise(points: Tensor, precision: Tensor, sides: Tensor) -> bool:
    """Return whether noise alone does not explain a division."""
    width, x = points.shape[1], len(points) * _PER_CLIENT + _EVIDENCE
    return _between(points, precision, sides) > width + 2 * math.sqrt(width * x) + 2 * x


def _separate(points: Tensor, precision: Tensor, sides: Tensor, within: float) -> bool:
    """Return whether two sides are far apart, compared with the clients of one cluster."""
    centroids, noise = _centroids(points, precision, sides)
    apart = float((centroids[1] - centroids[0]).square().sum()) - noise * points.shape[1]
    return apart >= _SEPARATION * within


def _within(points: Tensor, precision: Tensor, parts: Sequence[Tensor]) -> float:
    """Return the squared distance of two clients of the same part less its noise, on average and at least 0."""
    spread = left = 0.0
    for part in parts:
        weights = precision[part]
        total = weights.sum()
        own = points[part] - weights @ points[part] / total
        # With the precision as weights, noise adds the width for each client but one, and a spread of s adds s times
        # what is left of the precision.
        spread += float(weights @ own.square().sum(1)) - (len(part) - 1) * points.shape[1]
        left += float(total - weights.square().sum() / total)
    return max(0.0, 2 * spread / left) if left > 0 else 0.0
