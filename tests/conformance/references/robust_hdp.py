"""Robust-HDP (Malekmohammadi et al. 2024): Algorithm 1, its RPCA (Algorithm 3) and its baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.conformance.references import toy
from tests.conformance.references.toy import Array, Client, Gradients, Rows

Weigh = Callable[[Array, Sequence[int]], Array]


def shrink(A: Array, tau: float) -> Array:
    """S_tau: every entry moved towards zero by tau."""
    return np.sign(A) * np.maximum(np.abs(A) - tau, 0.0)


def threshold(A: Array, tau: float) -> Array:
    """D_tau: the same for the singular values."""
    U, s, V = np.linalg.svd(A, full_matrices=False)
    return U @ np.diag(shrink(s, tau)) @ V


def rpca(M: Array, mu: float | None = None, tolerance: float = 1e-9, iterations: int = 50_000) -> tuple[Array, Array]:
    """M = L + S by principal component pursuit with alternating directions and a fixed mu (Algorithm 3).

    Line 22 prints D(M - S - Y/mu); the sign of Y/mu there is a slip (Candes et al. have a plus), and is corrected here.

    Args:
        M: A column a client (p x n).
        mu: The penalty; p n / (4 sum|M|) unless given, as Candes et al. have it.
        tolerance: Stop when ||M - L - S|| and the last move of S are both below this part of ||M||.
        iterations: Most iterations.
    """
    p, n = M.shape
    lam = 1 / np.sqrt(max(p, n))
    mu = p * n / (4 * np.abs(M).sum()) if mu is None else mu
    S = np.zeros_like(M)
    Y = np.zeros_like(M)
    L = np.zeros_like(M)
    enough = tolerance * np.linalg.norm(M)
    for _ in range(iterations):
        before = S
        L = threshold(M - S + Y / mu, 1 / mu)
        S = shrink(M - L + Y / mu, lam / mu)
        Y = Y + mu * (M - L - S)
        if np.linalg.norm(M - L - S) <= enough and np.linalg.norm(S - before) <= enough:
            return L, S
    raise RuntimeError("RPCA did not converge")


def rpca_energies(updates: Array, rows: int | None = None) -> Array:
    """||S_i||^2 for every client; `updates` has a row a client.

    With `rows`, section 3.6: Q blocks of that many parameters, the last of them at the end; their estimates, each times
    Q, are averaged.
    """
    M = updates.T
    rows = len(M) if rows is None else rows
    Q = len(M) // rows
    starts = [q * rows for q in range(Q)]
    if Q > 1:
        starts[-1] = len(M) - rows
    estimates = [Q * (rpca(M[a : a + rows])[1] ** 2).sum(axis=0) for a in starts]
    return np.mean(estimates, axis=0)


def pairwise_energies(updates: Array) -> Array:
    """sigma_i^2 from D_ij = ||u_i - u_j||^2 = sigma_i^2 + sigma_j^2, every equation divided by D_ij, by least squares.

    Needs three clients or more. Nothing keeps an estimate positive.
    """
    n = len(updates)
    rows, values = [], []
    for i in range(n):
        for j in range(i + 1, n):
            D = float(((updates[i] - updates[j]) ** 2).sum())
            row = np.zeros(n)
            row[i] = row[j] = 1 / D
            rows.append(row)
            values.append(1.0)
    return np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]


def inverse(energies: Array) -> Array:
    """Line 10: weights in proportion to 1/sigma_i^2."""
    return (1 / energies) / (1 / energies).sum()


def by_rpca(updates: Array, ids: Sequence[int]) -> Array:
    return inverse(rpca_energies(updates))


def by_pairs(updates: Array, ids: Sequence[int]) -> Array:
    return inverse(pairwise_energies(updates))


def by_share(shares: Sequence[float]) -> Weigh:
    """Weights in proportion to given numbers: epsilons (WeiAvg, Algorithm 2) or data sizes (DPFedAvg, FedAvg)."""

    def weight(updates: Array, ids: Sequence[int]) -> Array:
        mine = np.array([shares[i] for i in ids], dtype=np.float64)
        return mine / mine.sum()

    return weight


def once(weight: Weigh) -> Weigh:
    """The weights of the first round for ever (the authors' code); every round must have the same clients."""
    kept: list[Array] = []

    def first(updates: Array, ids: Sequence[int]) -> Array:
        if not kept:
            kept.append(weight(updates, ids))
        return kept[0]

    return first


def run(
    theta: Array,
    clients: Sequence[Client],
    sampled: Sequence[Sequence[int]],
    batches: Sequence[Sequence[Sequence[Rows]]],
    noises: Sequence[Sequence[Sequence[Array | None]]],
    lr: float,
    weight: Weigh,
    gradients: Gradients = toy.gradients,
) -> list[Array]:
    """Algorithm 1: the model after each round. `batches[e][i][k]` are the rows of client i in step k of round e.

    `weight` makes it Robust-HDP, WeiAvg or DPFedAvg. "Minimum epsilon" is DPFedAvg with clients whose z answers to the
    smallest budget; FedAvg without privacy is DPFedAvg with an infinite clip and no noise.
    """
    models = []
    for e, ids in enumerate(sampled):
        updates = np.array([toy.dp_sgd(theta, clients[i], batches[e][i], noises[e][i], lr, gradients) for i in ids])
        w = weight(updates, ids)
        theta = theta + sum(w[j] * updates[j] for j in range(len(ids)))
        models.append(theta)
    return models
