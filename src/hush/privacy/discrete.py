"""Discrete Gaussian noise on the integers, sampled exactly without floating point, so that no low-order bits leak.

The rejection sampler of Canonne, Kamath and Steinke (2020, arXiv:2004.00010), on whole arrays of 64-bit integers.

Guarantees:
    - Every probability is a ratio of integers, met exactly by uniform integers: the output has exactly the discrete
      Gaussian distribution, given uniform words.
    - For integer sums, the moments that Renyi accounting needs at whole orders are exactly those of the continuous
      Gaussian of the same scale, with and without Poisson sampling: shifting the integers by an integer changes no
      normalising constant. For PLD, the difference is bounded by Theorem 7 of docs/proofs.md.

Edge cases:
    - `sigma` is an integer from 1 to `MOST_SIGMA`; beyond that the products would not fit 64 bits.
    - A candidate beyond 180 sigma is refused outright; it would be accepted with probability below exp(-16000).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hush.types import HushError

BITS = 62
MOST_SIGMA = 8192
Words = Callable[[int], Tensor]


def discrete_gaussian(size: int, sigma: int, words: Words) -> Tensor:
    """Independent integers with probability proportional to exp(-x^2 / (2 sigma^2)).

    Args:
        size: How many.
        sigma: The scale.
        words: Gives that many uniform int64 numbers in [0, 2**BITS).
    """
    if not 1 <= sigma <= MOST_SIGMA:
        raise HushError(f"discrete noise: found sigma {sigma}; accepted: 1 to {MOST_SIGMA}")
    t = sigma + 1
    found: list[Tensor] = []
    missing = size
    while missing > 0:
        y = _laplace(2 * missing + 16, t, words)
        y = y[y.abs() < 180 * sigma]
        top = (y.abs() * t - sigma**2) ** 2
        kept = y[_exp_coin(top, torch.full_like(top, 2 * sigma**2 * t**2), words)]
        found.append(kept)
        missing -= len(kept)
    return torch.cat(found)[:size] if found else torch.zeros(0, dtype=torch.int64)


def _laplace(size: int, t: int, words: Words) -> Tensor:
    """Some (at most `size`) discrete Laplace numbers of scale t."""
    u = _below(torch.full((size,), t, dtype=torch.int64), words)
    u = u[_exp_coin(u, torch.full_like(u, t), words)]
    v = torch.zeros_like(u)
    going = torch.ones_like(u, dtype=torch.bool)
    while bool(going.any()):
        rows = going.nonzero().flatten()
        ones = torch.ones(len(rows), dtype=torch.int64)
        hit = _small_exp_coin(ones, ones, words)
        v[rows[hit]] += 1
        going[rows[~hit]] = False
    x = u + t * v
    negative = _below(torch.full_like(x, 2), words) == 1
    keep = ~(negative & (x == 0))
    return torch.where(negative, -x, x)[keep]


def _exp_coin(top: Tensor, bottom: Tensor, words: Words) -> Tensor:
    """True with probability exp(-top / bottom)."""
    result = _small_exp_coin(top % bottom, bottom, words)
    whole = top // bottom
    while bool((alive := result & (whole > 0)).any()):
        rows = alive.nonzero().flatten()
        ones = torch.ones(len(rows), dtype=torch.int64)
        result[rows] = _small_exp_coin(ones, ones, words)
        whole[rows] -= 1
    return result


def _small_exp_coin(top: Tensor, bottom: Tensor, words: Words) -> Tensor:
    """True with probability exp(-top / bottom), for top <= bottom: the parity of a run of ever rarer coins."""
    odd = torch.ones_like(top, dtype=torch.bool)
    rows = torch.arange(len(top))
    k = 1
    while len(rows) > 0:
        hit = _below(bottom[rows] * k, words) < top[rows]
        rows = rows[hit]
        odd[rows] = ~odd[rows]
        k += 1
    return odd


def _below(high: Tensor, words: Words) -> Tensor:
    """Uniform integers in [0, high), by refusing the words of the incomplete last block."""
    limit = (2**BITS // high) * high
    drawn = words(len(high))
    while bool((again := drawn >= limit).any()):
        rows = again.nonzero().flatten()
        drawn[rows] = words(len(rows))
    return drawn % high
