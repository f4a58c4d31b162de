"""FedAdam (Reddi et al. 2021, Algorithm 2): Adam at the server, without bias correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.conformance.references.toy import Array


def run(
    x: Array,
    moves: Sequence[Array],
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    v: Array | None = None,
) -> list[Array]:
    """The model after each round, `moves[t]` being the mean update Delta_t of round t.

    m = beta1 m + (1 - beta1) Delta, v = beta2 v + (1 - beta2) Delta^2, x += lr m / (sqrt(v) + tau). m begins at zero
    and v at tau^2, the smallest start the paper allows.
    """
    m = np.zeros_like(x)
    v = np.full_like(x, tau**2) if v is None else v
    models = []
    for delta in moves:
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        x = x + lr * m / (np.sqrt(v) + tau)
        models.append(x)
    return models
