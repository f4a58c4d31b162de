"""Clusters of clients, found in their updates: a mixture of round Gaussians in a plane (RC-DPFL).

All of it is post-processing of noised updates, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Scale = Literal["centred", "standardised"]

_TRIES = 10


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture with equal shares.

    Attributes:
        soft: How likely each client is of each cluster, clients x clusters.
        overlap: The largest overlap of two clusters, from 0 (far apart) to 1 (the same).
    """

    soft: Tensor
    overlap: float


def plane(updates: Tensor, scale: Scale = "centred", dimensions: int = 2) -> Tensor:
    """The updates by their principal directions, each direction stretched to [0, 1].

    `standardised` first gives every coordinate the same variance, as RC-DPFL's code does; where most coordinates hold
    little but noise, that buries the signal.
    """
    rows = updates.double()
    rows = rows - rows.mean(0)
    if scale == "standardised":
        deviation = rows.square().mean(0).sqrt()
        rows = rows / torch.where(deviation > 0, deviation, 1.0)
    # The Gram matrix has the same principal directions, and is clients x clients.
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = slice(-min(dimensions, len(rows)), None)
    found = (vectors[:, kept] * values[kept].clamp_min(0).sqrt()).flip(1)
    # A direction has no sign of its own: the entry of largest size is made positive.
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    span = found.amax(0) - found.amin(0)
    stretched: Tensor = (found - found.amin(0)) / torch.where(span > 0, span, 1.0)
    return stretched


def fitted(points: Tensor, clusters: int, seed: int, most: int = 0) -> Mixture:
    """The mixture of so many clusters; where `clusters` is 0, of the number up to `most` that suits best."""
    if clusters:
        return _fit(points, min(clusters, len(points)), seed)[0]
    tries = [_fit(points, number, seed) for number in range(1, min(most, len(points) - 1) + 1)]
    return min(tries, key=lambda found: found[1])[0]


def sampled_rounds(overlap: float, rounds: int) -> int:
    """E_c: until which round clusters are drawn, floor((1 - overlap) * rounds / 2), and at least 2."""
    return max(2, math.floor((1 - overlap) * rounds / 2))


def _fit(points: Tensor, clusters: int, seed: int) -> tuple[Mixture, float]:
    """The mixture, and its Bayesian information criterion (less is better)."""
    from sklearn.mixture import GaussianMixture

    if clusters == 1:
        spread = max(float(points.var(0, correction=0).mean()), 1e-6)
        count, axes = points.shape
        likelihood = -0.5 * count * axes * (math.log(2 * math.pi * spread) + 1)
        return Mixture(torch.ones(count, 1, dtype=torch.float64), 0.0), (axes + 1) * math.log(count) - 2 * likelihood
    # The variance floor is a share of the plane, so that a cluster of one client does not win by being a point.
    model = GaussianMixture(
        clusters, covariance_type="spherical", init_params="k-means++", n_init=_TRIES, reg_covar=1e-4,
        random_state=seed, tol=1e-6, max_iter=500,
    )  # fmt: skip
    model.fit(points.numpy())
    criterion = float(model.bic(points.numpy()))
    model.weights_ = np.full(clusters, 1 / clusters)
    order = np.argsort(-np.bincount(model.predict(points.numpy()), minlength=clusters), kind="stable")
    soft = torch.from_numpy(model.predict_proba(points.numpy())[:, order])
    centres, radii = torch.from_numpy(model.means_), torch.from_numpy(model.covariances_).sqrt()
    pairs = [(a, b) for a in range(clusters) for b in range(a)]
    overlaps = [_overlap(float((centres[a] - centres[b]).norm()), float(max(radii[a], radii[b]))) for a, b in pairs]
    return Mixture(soft, max(overlaps)), criterion


def _overlap(distance: float, radius: float) -> float:
    """Of two round Gaussians of one radius: twice the mass of one beyond the middle between them."""
    return math.erfc(distance / (2 * math.sqrt(2) * radius))


def drawn(soft: Tensor, uniforms: Tensor) -> list[int]:
    """A cluster for each client: the first at which the running sum of its probabilities reaches its uniform."""
    reached = soft.cumsum(1) >= uniforms[:, None]
    reached[:, -1] = True
    return reached.int().argmax(1).tolist()


def kmeans(updates: Tensor, clusters: int, seed: int) -> list[int]:
    """Labels by k-means on the updates."""
    from sklearn.cluster import KMeans

    if len(updates) <= clusters:
        return list(range(len(updates)))
    found = KMeans(clusters, n_init=_TRIES, random_state=seed).fit_predict(updates.double().numpy())
    return [int(label) for label in found]


def matched(labels: list[int], before: list[int], clusters: int) -> list[int]:
    """The labels renamed so that as many clients as possible keep the one they had."""
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((clusters, clusters))
    for new, old in zip(labels, before, strict=True):
        common[new, old] += 1
    rows, columns = linear_sum_assignment(-common)
    names = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return [names[label] for label in labels]
