"""PADPFL (Talaei and Izadi 2024): impact factors, the proximal local problem, noise at clients and at the server."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.toy import Array, Client, Gradients, Rows


def schedule(first: Sequence[float], changes: Sequence[Sequence[float]]) -> list[Array]:
    """p^(t+1) = p^(t) + alpha^(t) with sum of alpha zero (eq. 51): the factors of every round."""
    factors = [np.array(first, dtype=np.float64)]
    for change in changes:
        factors.append(factors[-1] + np.array(change, dtype=np.float64))
    for p in factors:
        if abs(p.sum() - 1) > 1e-9 or (p < -1e-12).any():
            raise ValueError("impact factors are at least zero and sum to one (eq. 2)")
    return factors


def spread(p: Array, present: Sequence[int]) -> Array:
    """The share of missing clients spread over those present (section III.B), in proportion to their own.

    The paper does not say how to spread it. All zero if those present had nothing.
    """
    out = np.zeros_like(p)
    total = sum(p[i] for i in present)
    for i in present:
        out[i] = p[i] / total if total > 0 else 0.0
    return out


def gaussian_constant(delta: float) -> float:
    """c = sqrt(2 ln(1.25 / delta))."""
    return math.sqrt(2 * math.log(1.25 / delta))


def client_deviation(B: float, R: float, smallest: int, epsilon: float, delta: float) -> float:
    """sigma_C = 2 B R c / (min m_i epsilon) (eq. 8), the same for all clients."""
    return 2 * B * R * gaussian_constant(delta) / (smallest * epsilon)


def server_deviation(p: Array, B: float, R: float, T: float, smallest: int, epsilon: float, delta: float) -> float:
    """sigma_S of theorem 1 (eq. 13): zero when T <= R sqrt(sum p^2) / max p."""
    if R * math.sqrt(float((p**2).sum())) / p.max() >= T:
        return 0.0
    root = math.sqrt(T**2 * float(p.max()) ** 2 - R**2 * float((p**2).sum()))
    return 2 * B * gaussian_constant(delta) * root / (smallest * epsilon)


def proximal(
    x: Array,
    client: Client,
    batches: Sequence[Rows],
    noises: Sequence[Array | None],
    lr: float,
    mu: float,
    gradients: Gradients = toy.gradients,
) -> Array:
    """The local model after SGD on l_i(y) + mu/2 ||y - x||^2 (eq. 4); the proximal term is added after the noise."""
    y = x
    for rows, noise in zip(batches, noises, strict=True):
        y = y - lr * (toy.noised(y, client, rows, noise, gradients) + mu * (y - x))
    return y


def run(
    x: Array,
    clients: Sequence[Client],
    factors: Sequence[Array],
    present: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    lr: float,
    mu: float,
    server_noises: Sequence[Array | None] | None = None,
    server: Sequence[float] | None = None,
    gradients: Gradients = toy.gradients,
) -> list[Array]:
    """Sound PADPFL: DP-SGD at every client, x = sum p_i x_i (eq. 3), `server[t]` times a draw added. Model by round.

    FedProx is the same with an infinite clip, no noise and p_i = N_i / N.
    """
    models = []
    for t, ids in enumerate(present):
        p = spread(factors[t], ids)
        if p.sum() > 0:
            local = [p[i] * proximal(x, clients[i], batches[t][i], noises[t][i], lr, mu, gradients) for i in ids]
            x = sum(local, np.zeros_like(x))
            draw = server_noises[t] if server_noises is not None else None
            if draw is not None and server is not None:
                x = x + server[t] * draw
        models.append(x)
    return models


def run_faithful(
    x: Array,
    clients: Sequence[Client],
    factors: Sequence[Array],
    present: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    client_noises: Sequence[Sequence[Array]],
    server_noises: Sequence[Array],
    lr: float,
    mu: float,
    B: float,
    R: float,
    T: float,
    epsilon: float,
    delta: float,
    gradients: Gradients = toy.gradients,
) -> list[Array]:
    """As printed: exact local steps, weights clipped to norm B, noise of eq. (8) on them, of eq. (13) on their mean."""
    smallest = min(client.size for client in clients)
    sigma_client = client_deviation(B, R, smallest, epsilon, delta)
    models = []
    for t, ids in enumerate(present):
        p = spread(factors[t], ids)
        if p.sum() > 0:
            total = np.zeros_like(x)
            for i in ids:
                y = x
                for rows in batches[t][i]:
                    g = gradients(y, clients[i].x[list(rows)], clients[i].y[list(rows)]).mean(axis=0)
                    y = y - lr * (g + mu * (y - x))
                total = total + p[i] * (toy.clip_flat(y, B) + sigma_client * client_noises[t][i])
            sigma_server = server_deviation(p, B, R, T, smallest, epsilon, delta)
            x = total + sigma_server * server_noises[t]
        models.append(x)
    return models
