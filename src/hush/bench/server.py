"""The server's arithmetic: noise estimation, against the textbook way and against a plain mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.bench.timing import best
from hush.recipes import estimate
from hush.seeds import rng


def measure() -> dict[str, float]:
    """RPCA against fixed-penalty ADMM with an SVD in float64, and both estimators against a mean of 11 M parameters."""
    small = _updates(20, 28_938)
    naive = best({"naive": lambda: naive_rpca(small, 60), "ours": lambda: estimate.rpca(small)}, turns=1)
    large = _updates(20, 11_181_642)
    weights = torch.full((20,), 1 / 20)
    seconds = best(
        {
            "mean": lambda: weights @ large,
            "pairwise": lambda: estimate.inverse(estimate.pairwise(large)).float() @ large,
            "rpca": lambda: estimate.inverse(estimate.rpca(large)).float() @ large,
        },
        turns=2,
    )
    return {
        "server.rpca.seconds": naive["ours"],
        "server.rpca_naive_over_ours_60_iterations": naive["naive"] / naive["ours"],
        "server.resnet18.pairwise_over_mean": seconds["pairwise"] / seconds["mean"],
        "server.resnet18.rpca_over_mean": seconds["rpca"] / seconds["mean"],
    }


def naive_rpca(updates: Tensor, iterations: int) -> Tensor:
    """Principal component pursuit as the textbook has it; it takes about 1,000 iterations to converge."""
    m = updates.double().T
    p, n = m.shape
    sparsity, mu = 1 / math.sqrt(max(p, n)), p * n / (4 * float(m.abs().sum()))
    s, y = torch.zeros_like(m), torch.zeros_like(m)
    for _ in range(iterations):
        u, sigma, v = torch.linalg.svd(m - s + y / mu, full_matrices=False)
        low = (u * (sigma - 1 / mu).clamp_min(0)) @ v
        rest = m - low + y / mu
        s = rest.sign() * (rest.abs() - sparsity / mu).clamp_min(0)
        y = y + mu * (m - low - s)
    return s.square().sum(0)


def _updates(n: int, p: int) -> Tensor:
    generator = rng(0, "bench", "server", p)
    scale = torch.from_numpy(10 ** generator.uniform(-2, 0, n)).float()
    drawn = torch.from_numpy(generator.standard_normal((n, p), dtype="float32"))
    return drawn.mul_(scale[:, None]).add_(0.01)
