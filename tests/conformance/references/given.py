"""Small problems with known answers, and draws to hand in: three clients, one-dimensional bowls, batches, noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.toy import Array, Client

D, C = 3, 2
P = C * (D + 1)
PLACES = toy.tensors(D, C)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def three(clip: float = math.inf, z: float = 0.0, sizes: tuple[int, ...] = (4, 6, 8), seed: int = 1) -> list[Client]:
    """Clients with data of their own, and a nominal batch of two."""
    r = rng(seed)
    return [Client(r.normal(size=(n, D)) + i, r.integers(0, C, n), 2.0, clip, z) for i, n in enumerate(sizes)]


def drawn(rounds: int, steps: int, clients: list[Client], noise: bool, seed: int = 2) -> tuple[list[Any], list[Any]]:
    """Batches of about two rows (also empty ones), and noise, by round, client and step."""
    r = rng(seed)
    batches = [
        [[list(np.flatnonzero(r.random(c.size) < 2 / c.size)) for _ in range(steps)] for c in clients]
        for _ in range(rounds)
    ]
    noises = [[[r.normal(size=P) if noise else None for _ in range(steps)] for _ in clients] for _ in range(rounds)]
    return batches, noises


def quadratic(theta: Array, x: Array, y: Array) -> Array:
    """Gradients of a/2 ||theta - x||^2, the curvature a being the label."""
    return y[:, None] * (theta - x)


def bowls(curvatures: tuple[float, ...], centres: tuple[float, ...]) -> list[Client]:
    return [Client(np.array([[b]]), np.array([a]), 1.0) for a, b in zip(curvatures, centres, strict=True)]


def whole(rounds: int, steps: int, clients: int) -> tuple[list[Any], list[Any]]:
    """The only row of each bowl in every step, and no noise."""
    return [[[[0]] * steps] * clients] * rounds, [[[None] * steps] * clients] * rounds
