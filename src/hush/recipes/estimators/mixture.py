"""A mixture of isotropic Gaussians in a plane, which finds clusters of clients from their updates (RC-DPFL).

This is post-processing of noisy updates and has no privacy cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Scale = Literal["centred", "standardised"]
Mixing = Literal["equal", "fitted"]

_TRIES = 10


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture.

    Attributes:
        soft: The probability of each cluster for each client, clients x clusters.
        overlap: The largest overlap of two clusters, from 0 (well separated) to 1 (identical).
    """

    soft: Tensor
    overlap: float


def plane(updates: Tensor, scale: Scale = "centred", dimensions: int = 2) -> Tensor:
    """Project the updates onto their principal directions, each rescaled to [0, 1].

    `standardised` first scales every coordinate to unit variance, as RC-DPFL's code does. If most coordinates contain
    mainly noise, this hides the signal.
    """
    rows = updates.double()
    rows = rows - rows.mean(0)
    if scale == "standardised":
        deviation = rows.square().mean(0).sqrt()
        rows = rows / torch.where(deviation > 0, deviation, 1.0)
    # The n x n Gram matrix has the same principal directions.
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = slice(-min(dimensions, len(rows)), None)
    found = (vectors[:, kept] * values[kept].clamp_min(0).sqrt()).flip(1)
    # The sign of a direction is arbitrary: make the entry with the largest magnitude positive.
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    span = found.amax(0) - found.amin(0)
    stretched: Tensor = (found - found.amin(0)) / torch.where(span > 0, span, 1.0)
    return stretched


def fitted(points: Tensor, clusters: int, seed: int, most: int = 0, mixing: Mixing = "equal") -> Mixture:
    """Fit a mixture with `clusters` components; if 0, the number up to `most` with the best score is chosen.

    `mixing`: with components of equal weight, or with their fitted weights.
    """
    if clusters:
        return _fit(points, min(clusters, len(points)), seed, mixing)[0]
    tries = [_fit(points, number, seed, mixing) for number in range(1, min(most, len(points) - 1) + 1)]
    return min(tries, key=lambda found: found[1])[0]


def sampled_rounds(overlap: float, rounds: int) -> int:
    """Return E_c: clusters are sampled until this round, floor((1 - overlap) * rounds / 2), and at least 2."""
    return max(2, math.floor((1 - overlap) * rounds / 2))


def _fit(points: Tensor, clusters: int, seed: int, mixing: Mixing) -> tuple[Mixture, float]:
    """Fit one mixture and return it with its Bayesian information criterion (lower is better)."""
    from sklearn.mixture import GaussianMixture

    if clusters == 1:
        spread = max(float(points.var(0, correction=0).mean()), 1e-6)
        count, axes = points.shape
        likelihood = -0.5 * count * axes * (math.log(2 * math.pi * spread) + 1)
        return Mixture(torch.ones(count, 1, dtype=torch.float64), 0.0), (axes + 1) * math.log(count) - 2 * likelihood
    # The variance floor is relative to the plane, so that a cluster of one client cannot win by having zero variance.
    model = GaussianMixture(
        clusters, covariance_type="spherical", init_params="k-means++", n_init=_TRIES, reg_covar=1e-4,
        random_state=seed, tol=1e-6, max_iter=500,
    )  # fmt: skip
    model.fit(points.numpy())
    criterion = float(model.bic(points.numpy()))
    if mixing == "equal":
        model.weights_ = np.full(clusters, 1 / clusters)
    order = np.argsort(-np.bincount(model.predict(points.numpy()), minlength=clusters), kind="stable")
    soft = torch.from_numpy(model.predict_proba(points.numpy())[:, order])
    centres, radii = torch.from_numpy(model.means_), torch.from_numpy(model.covariances_).sqrt()
    pairs = [(a, b) for a in range(clusters) for b in range(a)]
    overlaps = [_overlap(float((centres[a] - centres[b]).norm()), float(max(radii[a], radii[b]))) for a, b in pairs]
    return Mixture(soft, max(overlaps)), criterion


def _overlap(distance: float, radius: float) -> float:
    """The overlap of two isotropic Gaussians of equal radius: twice the mass of one beyond the midpoint."""
    return math.erfc(distance / (2 * math.sqrt(2) * radius))


def drawn(soft: Tensor, uniforms: Tensor) -> list[int]:
    """Sample a cluster for each client by inverting the cumulative distribution at its uniform number."""
    reached = soft.cumsum(1) >= uniforms[:, None]
    reached[:, -1] = True
    return reached.int().argmax(1).tolist()


def kmeans(updates: Tensor, clusters: int, seed: int) -> list[int]:
    """Return k-means labels of the updates."""
    from sklearn.cluster import KMeans

    if len(updates) <= clusters:
        return list(range(len(updates)))
    found = KMeans(clusters, n_init=_TRIES, random_state=seed).fit_predict(updates.double().numpy())
    return [int(label) for label in found]


def matched(labels: list[int], before: list[int], clusters: int) -> list[int]:
    """Permute the labels so that as many clients as possible keep their previous label."""
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((clusters, clusters))
    for new, old in zip(labels, before, strict=True):
        common[new, old] += 1
    rows, columns = linear_sum_assignment(-common)
    names = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return [names[label] for label in labels]
