"""A small convex problem (softmax regression) and the noised gradient that all five papers share.

A model is one flat vector: the weights W (classes x features) row by row, then the bias, as the parameters of a linear
layer flatten. A gradient function maps (theta, x, y) to a matrix with one row an example, so that other problems, such
as quadratics, can take the place of softmax regression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = Sequence[int]
Gradients = Callable[[Array, Array, NDArray[Any]], Array]
Losses = Callable[[Array, Array, NDArray[Any]], Array]


@dataclass(frozen=True)
class Client:
    """What one client owns: its data, its clip, its noise multiplier and the nominal batch size it divides by.

    `slack` is the part of the clip that is left for rounding: gradients are clipped to clip / (1 + slack).
    """

    x: Array
    y: NDArray[Any]
    divisor: float
    clip: float = float("inf")
    z: float = 0.0
    slack: float = 0.0

    @property
    def size(self) -> int:
        return len(self.y)


def unflatten(theta: Array, features: int) -> tuple[Array, Array]:
    """The weights (classes x features) and the bias (classes)."""
    classes = theta.size // (features + 1)
    return theta[: classes * features].reshape(classes, features), theta[classes * features :]


def tensors(features: int, classes: int) -> list[tuple[int, int]]:
    """Where each tensor begins and ends in the flat vector."""
    return [(0, classes * features), (classes * features, classes * (features + 1))]


def softmax(logits: Array) -> Array:
    e = np.exp(logits - logits.max())
    return e / e.sum()


def losses(theta: Array, x: Array, y: NDArray[Any]) -> Array:
    """Cross-entropy of every example."""
    W, b = unflatten(theta, x.shape[1])
    return np.array([-np.log(softmax(W @ row + b)[label]) for row, label in zip(x, y, strict=True)])


def gradients(theta: Array, x: Array, y: NDArray[Any]) -> Array:
    """The gradient of every example's loss, a row each."""
    W, b = unflatten(theta, x.shape[1])
    out = np.zeros((len(y), theta.size))
    for j, (row, label) in enumerate(zip(x, y, strict=True)):
        error = softmax(W @ row + b)
        error[label] -= 1
        out[j] = np.concatenate([np.outer(error, row).ravel(), error])
    return out


def hessian(theta: Array, x: Array, y: NDArray[Any]) -> Array:
    """The second derivative of the mean loss."""
    features = x.shape[1]
    W, b = unflatten(theta, features)
    classes = len(b)
    out = np.zeros((theta.size, theta.size))
    for row in x:
        p = softmax(W @ row + b)
        # Logit c moves with the weights of row c and with bias c.
        J = np.zeros((classes, theta.size))
        for c in range(classes):
            J[c, c * features : (c + 1) * features] = row
            J[c, classes * features + c] = 1
        out += J.T @ (np.diag(p) - np.outer(p, p)) @ J
    return out / len(y)


def accuracy(theta: Array, x: Array, y: NDArray[Any]) -> float:
    W, b = unflatten(theta, x.shape[1])
    return float(np.mean([int(np.argmax(W @ row + b)) == label for row, label in zip(x, y, strict=True)]))


def mean_loss(theta: Array, client: Client, l2: float = 0.0, losses: Losses = losses) -> float:
    """F_i: the mean loss of a client's data, and l2/2 times the squared norm of the model."""
    return float(losses(theta, client.x, client.y).mean() + l2 / 2 * theta @ theta)


def mean_gradient(theta: Array, client: Client, l2: float = 0.0, gradients: Gradients = gradients) -> Array:
    return gradients(theta, client.x, client.y).mean(axis=0) + l2 * theta


def minimum(clients: Sequence[Client], theta: Array, l2: float, iterations: int = 50) -> Array:
    """The minimiser of the plain mean of the F_i, by damped Newton steps; l2 makes it unique."""
    for _ in range(iterations):
        slope = np.mean([mean_gradient(theta, c, l2) for c in clients], axis=0)
        curve = np.mean([hessian(theta, c.x, c.y) for c in clients], axis=0) + l2 * np.eye(theta.size)
        step, length = np.linalg.solve(curve, slope), 1.0
        here = np.mean([mean_loss(theta, c, l2) for c in clients])
        while np.mean([mean_loss(theta - length * step, c, l2) for c in clients]) > here and length > 1e-6:
            length /= 2
        theta = theta - length * step
    return theta


def clip_flat(g: Array, bound: float) -> Array:
    """g / max(1, ||g|| / bound)."""
    return g / max(1.0, float(np.linalg.norm(g)) / bound)


def clip_tensors(g: Array, places: Sequence[tuple[int, int]], bounds: Sequence[float]) -> Array:
    """Every tensor clipped to a bound of its own."""
    return np.concatenate([clip_flat(g[a:b], bound) for (a, b), bound in zip(places, bounds, strict=True)])


def clipped_sum(each: Array, bound: float) -> Array:
    total = np.zeros(each.shape[1])
    for g in each:
        total = total + clip_flat(g, bound)
    return total


def clipped_sum_tensors(each: Array, places: Sequence[tuple[int, int]], bounds: Sequence[float]) -> Array:
    total = np.zeros(each.shape[1])
    for g in each:
        total = total + clip_tensors(g, places, bounds)
    return total


def noised(
    theta: Array, client: Client, rows: Rows, noise: Array | None, gradients: Gradients, divisor: float | None = None
) -> Array:
    """(sum of clipped gradients + clip * z * noise) / divisor: eq. (1) of Robust-HDP and of RC-DPFL.

    DP-SCAFFOLD writes (1/sR) sum + (2C/sR) N(0, sigma_g^2): the same with z = 2 sigma_g and divisor sR. The divisor is
    the nominal batch size, whatever the size of the batch that was drawn.
    """
    rows = list(rows)
    each = gradients(theta, client.x[rows], client.y[rows]) if rows else np.zeros((0, theta.size))
    total = clipped_sum(each, client.clip / (1.0 + client.slack))
    if noise is not None:
        total = total + client.clip * client.z * noise
    return total / (client.divisor if divisor is None else divisor)


def noised_tensors(
    theta: Array,
    client: Client,
    rows: Rows,
    noise: Array | None,
    gradients: Gradients,
    places: Sequence[tuple[int, int]],
    bounds: Sequence[float],
) -> Array:
    """The same with a clip, and noise in proportion to it, for every tensor (DP-SCAFFOLD as it was run)."""
    rows = list(rows)
    each = gradients(theta, client.x[rows], client.y[rows]) if rows else np.zeros((0, theta.size))
    total = clipped_sum_tensors(each, places, bounds)
    if noise is not None:
        scale = np.concatenate([np.full(b - a, bound) for (a, b), bound in zip(places, bounds, strict=True)])
        total = total + scale * client.z * noise
    return total / client.divisor


def median_norms(
    theta: Array, client: Client, rows: Rows, gradients: Gradients, places: Sequence[tuple[int, int]]
) -> list[float]:
    """The median over the examples of each tensor's gradient norm: DP-SCAFFOLD's clip (appendix D.1), not private."""
    each = gradients(theta, client.x[list(rows)], client.y[list(rows)])
    return [float(np.median([np.linalg.norm(g[a:b]) for g in each])) for a, b in places]


def dp_sgd(
    theta: Array,
    client: Client,
    batches: Sequence[Rows],
    noises: Sequence[Array | None],
    lr: float,
    gradients: Gradients = gradients,
    divisor: float | None = None,
) -> Array:
    """The update (local model minus global model) after one noised step for every batch."""
    y = theta
    for rows, noise in zip(batches, noises, strict=True):
        y = y - lr * noised(y, client, rows, noise, gradients, divisor)
    return y - theta
