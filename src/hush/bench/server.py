"""Server benchmark: noise estimation, compared with a textbook implementation and with a plain mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.bench.findings import Findings
from hush.bench.timing import best, fair_clock, peak
from hush.recipes.estimators import noise_energy
from hush.seeds import rng

_CLIENTS = 20
_SMALL, _LARGE, _ROWS = 28_938, 11_181_642, 200_000
_CLOSE = 0.01
_MOST = 1500  # iterations of the textbook implementation that are followed
_EVERY = 50
_TIMED = 5
_LED, _WHOLE, _AHEAD = 18, 6, 6  # iterations of RPCA in the cache and of the whole, about; one column in so many leads


def measure() -> Findings:
    """Measure RPCA against fixed-penalty ADMM with a float64 SVD, and both estimators against a mean of 11 M values."""
    return rpca_over_naive(updates(_CLIENTS, _SMALL)) | _over_mean(updates(_CLIENTS, _LARGE))


def rpca_over_naive(small: Tensor, most: int = _MOST) -> Findings:
    """Return the seconds until the textbook's weights are within one percent of ours (in total), over our seconds."""
    clock, word = fair_clock()
    rivals = {"naive": lambda: Naive(small, svd=True).run(_TIMED), "ours": lambda: noise_energy.rpca(small)}
    seconds = best(rivals, turns=5, clock=clock)
    each = seconds["naive"] / _TIMED
    path = naive_iterations(small, noise_energy.inverse(noise_energy.rpca(small)), most)
    needed, apart, _ = path[-1]
    in_sum = next((done for done, _, total in path if total <= _CLOSE), needed)
    end = (
        "every weight equals ours to within 1 percent"
        if apart <= _CLOSE
        else f"one weight is still {apart:.0%} off: it needs more"
    )
    note = (
        f"The baseline takes {in_sum:,} iterations of {1e3 * each:.0f} ms (SVD in float64, {_TIMED} of them timed; the "
        f"path was followed through the Gram matrix, which gives the same iterates) until the absolute differences of "
        f"its weights from ours sum to one percent. After {needed:,}, {end}.{word}"
    )
    return Findings(
        {"server.rpca.seconds": seconds["ours"], "server.rpca_naive_over_ours": in_sum * each / seconds["ours"]},
        {"server.rpca_naive_over_ours": note},
    )


class Naive:
    """Textbook principal component pursuit: alternating directions with a fixed penalty, in float64."""

    def __init__(self, updates: Tensor, svd: bool) -> None:
        self._m = updates.double().T
        p, n = self._m.shape
        self._sparsity, self._mu = 1 / math.sqrt(max(p, n)), p * n / (4 * float(self._m.abs().sum()))
        self._s, self._y, self._svd = torch.zeros_like(self._m), torch.zeros_like(self._m), svd

    def run(self, iterations: int) -> Tensor:
        """Run this many further iterations; returns the energies of the sparse part."""
        m, mu = self._m, self._mu
        for _ in range(iterations):
            low = self._shrunk(m - self._s + self._y / mu)
            rest = m - low + self._y / mu
            self._s = rest.sign() * (rest.abs() - self._sparsity / mu).clamp_min(0)
            self._y = self._y + mu * (m - low - self._s)
        return self._s.square().sum(0)

    def _shrunk(self, a: Tensor) -> Tensor:
        if self._svd:
            u, sigma, v = torch.linalg.svd(a, full_matrices=False)
            low: Tensor = (u * (sigma - 1 / self._mu).clamp_min(0)) @ v
            return low
        w, v = torch.linalg.eigh(a.T @ a)
        sigma = w.clamp_min(1e-300).sqrt()
        kept: Tensor = (v * ((sigma - 1 / self._mu).clamp_min(0) / sigma)) @ v.T
        return a @ kept


def naive_iterations(small: Tensor, ours: Tensor, most: int) -> list[tuple[int, float, float]]:
    """Return iterations of the textbook implementation, and the distance of its weights from ours: maximum and sum."""
    naive, path = Naive(small, svd=False), []
    for done in range(_EVERY, most + 1, _EVERY):
        weights = noise_energy.inverse(naive.run(_EVERY))
        gap = (weights - ours).abs()
        path.append((done, float((gap / ours).max()), float(gap.sum())))
        if path[-1][1] <= _CLOSE:
            break
    return path


def _over_mean(large: Tensor) -> Findings:
    weights = torch.full((_CLIENTS,), 1 / _CLIENTS)
    clock, word = fair_clock()
    seconds = best(
        {
            "mean": lambda: weights @ large,
            "pairwise": lambda: noise_energy.inverse(noise_energy.pairwise(large)).float() @ large,
            "rpca": lambda: noise_energy.inverse(noise_energy.rpca(large, rows=_ROWS)).float() @ large,
        },
        turns=10,
        clock=clock,
    )
    fastest = peak("cpu")
    product, moved = 2 * _CLIENTS**2 * _ROWS / fastest, 4 * _CLIENTS * _ROWS
    rate = 4 * large.numel() / seconds["mean"]
    led = _LED * product * (1 + 2 / _AHEAD) + 3 * moved / rate
    whole = _WHOLE * (2 * product + 5 * moved / rate)
    note = (
        f"The mean reads 0.9 GB once, {seconds['mean']:.3f} s. Of RPCA's iterations about {_LED} are one product of "
        f"{product * fastest / 1e9:.2f} GFLOP within the cache, led by one column in {_AHEAD}: {1e3 * led:.0f} ms at "
        f"{fastest / 1e9:.0f} GFLOP/s (measured on large matrices); about {_WHOLE} are two products and move "
        f"{5 * moved / 1e6:.0f} MB at the mean's own rate: {1e3 * whole:.0f} ms. So "
        f"{1 + (led + whole) / seconds['mean']:.1f} times the mean would be the least.{word}"
    )
    return Findings(
        {
            "server.resnet18.pairwise_over_mean": seconds["pairwise"] / seconds["mean"],
            "server.resnet18.rpca_over_mean": seconds["rpca"] / seconds["mean"],
            "server.resnet18.mean_seconds": seconds["mean"],
        },
        {"server.resnet18.rpca_over_mean": note, "server.resnet18.pairwise_over_mean": word.strip()}
        if word
        else {"server.resnet18.rpca_over_mean": note},
    )


def updates(n: int, p: int) -> Tensor:
    """Updates with one common signal and noise over two decades."""
    generator = rng(0, "bench", "server", p)
    scale = torch.from_numpy(10 ** generator.uniform(-2, 0, n)).float()
    drawn = torch.from_numpy(generator.standard_normal((n, p), dtype="float32"))
    return drawn.mul_(scale[:, None]).add_(0.01)
