"""What RC-DPFL's server does with the updates of round 1: features, a Gaussian mixture, its overlap; and k-means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.conformance.references.toy import Array


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture of spherical Gaussians, and the responsibilities pi_i of the points it was fitted to."""

    means: Array
    variances: Array
    shares: Array
    responsibilities: Array


def features(updates: Array, dimensions: int = 2, standardise: bool = True) -> Array:
    """Updates (a row a client) standardised (or only centred), reduced by PCA and scaled to [0, 1].

    The paper does not say what the mixture is fitted to; this is what its authors did later.

    A column without spread is left alone; so is a principal axis.
    """
    spread = updates.std(axis=0) if standardise else np.ones(updates.shape[1])
    scaled = (updates - updates.mean(axis=0)) / np.where(spread > 0, spread, 1)
    _, _, V = np.linalg.svd(scaled, full_matrices=False)
    reduced = scaled @ V[:dimensions].T
    low, high = reduced.min(axis=0), reduced.max(axis=0)
    return (reduced - low) / np.where(high > low, high - low, 1)


def farthest_first(points: Array, clusters: int) -> list[int]:
    """A deterministic k-means++: the point farthest from the mean, then each time the one farthest from all chosen."""
    chosen = [int(np.argmax(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    while len(chosen) < clusters:
        nearest = [min(float(((x - points[c]) ** 2).sum()) for c in chosen) for x in points]
        chosen.append(int(np.argmax(nearest)))
    return chosen


def _responsibilities(points: Array, means: Array, variances: Array, shares: Array) -> Array:
    d = points.shape[1]
    out = np.zeros((len(points), len(means)))
    for i, x in enumerate(points):
        square = ((x - means) ** 2).sum(axis=1)
        log = np.log(shares) - d / 2 * np.log(2 * np.pi * variances) - square / (2 * variances)
        out[i] = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    return out


def gmm(
    points: Array,
    clusters: int,
    start: Sequence[int] | None = None,
    floor: float = 1e-6,
    iterations: int = 1000,
    uniform: bool = True,
) -> Mixture:
    """Spherical mixture by EM, started at given points (`farthest_first` by default).

    The start variance is the mean squared distance to the nearest start point, for each coordinate. `floor` is added to
    every variance. With `uniform` the shares become equal before the responsibilities are read (the authors' later
    code).
    """
    d = points.shape[1]
    means = points[list(farthest_first(points, clusters) if start is None else start)].copy()
    nearest = [min(float(((x - m) ** 2).sum()) for m in means) for x in points]
    variances = np.full(clusters, np.mean(nearest) / d + floor)
    shares = np.full(clusters, 1 / clusters)
    for _ in range(iterations):
        r = _responsibilities(points, means, variances, shares)
        n = r.sum(axis=0) + 1e-300
        shares = n / n.sum()
        means = (r.T @ points) / n[:, None]
        for m in range(clusters):
            square = ((points - means[m]) ** 2).sum(axis=1)
            variances[m] = (r[:, m] * square).sum() / (n[m] * d) + floor
    if uniform:
        shares = np.full(clusters, 1 / clusters)
    return Mixture(means, variances, shares, _responsibilities(points, means, variances, shares))


def separation(mixture: Mixture, a: int, b: int) -> float:
    """Distance of two means over twice the larger standard deviation."""
    distance = float(np.linalg.norm(mixture.means[a] - mixture.means[b]))
    return distance / (2 * math.sqrt(max(mixture.variances[a], mixture.variances[b])))


def max_overlap(mixture: Mixture) -> float:
    """MPO: the largest overlap 2 Q(||mu_a - mu_b|| / (2 sigma)) of two components (eq. 16, section 4.2.3).

    The lemma has one sigma for both; where they differ the larger is taken. One component overlaps with nothing.
    """
    M = len(mixture.means)
    return max((math.erfc(separation(mixture, a, b) / math.sqrt(2)) for a in range(M) for b in range(a)), default=0.0)


def sampled_rounds(overlap: float, rounds: int) -> int:
    """E_c = floor((1 - MPO) E / 2)."""
    return math.floor((1 - overlap) * rounds / 2)


def best_count(points: Array, counts: Sequence[int]) -> int:
    """The number of clusters whose closest pair of components is farthest apart (the authors' later code)."""
    scores = []
    for M in counts:
        mixture = gmm(points, M)
        scores.append(min(separation(mixture, a, b) for a in range(M) for b in range(a)))
    return counts[int(np.argmax(scores))]


def kmeans(points: Array, clusters: int, start: Sequence[int] | None = None, iterations: int = 100) -> list[int]:
    """Lloyd's iterations from given points; a cluster that becomes empty keeps its centre."""
    centres = points[list(farthest_first(points, clusters) if start is None else start)].copy()
    labels = [0] * len(points)
    for _ in range(iterations):
        labels = [int(np.argmin(((x - centres) ** 2).sum(axis=1))) for x in points]
        for m in range(clusters):
            mine = [x for x, label in zip(points, labels, strict=True) if label == m]
            if mine:
                centres[m] = np.mean(mine, axis=0)
    return labels
