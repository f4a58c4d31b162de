"""Robust PCA: principal component pursuit of a tall matrix, a few columns at a time within the cache.

min ||L||_* + ||S||_1 / sqrt(max(p, n)) with L + S = M, by alternating directions, over-relaxed, with a growing penalty
mu. With Z = Y / mu the steps are A = M - S + Z and L = shrunk(A) = A - D A, where D is n x n and comes from the Gram
matrix of A; then R = M - L + Z splits into its clamped part C, which is the next Z but for the growth g, and the rest,
the next S. Relaxed by r, L is r L + (1 - r) (M - S), so that M - R = (1 - r D) A - (2 - r) Z, and the next A is
M - R + (1 + 1 / g) C: only A and C are kept, and an iteration is one product and three sums.

Columns meet in the Gram matrix alone. Early on, where it need not be exact, it is that of a few columns, which go
ahead; then the others follow through all those iterations at once, without leaving the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_CACHED = 1 << 17  # entries of M per block
_RELAXED = 1.8  # over-relaxation: fewer iterations to the exact solution
_AHEAD = 6  # one column in this many is processed first, in runs of 64
_RUN = 64
_ALONE = 26.0  # the penalty up to which these columns are processed alone
_FEWEST = 16_384  # minimum number of columns to process first: fewer would mislead the others
_BLIND = 12  # iterations before convergence is checked
_ASKED = 4  # convergence is checked on one block in this many

Step = tuple[Tensor, float]  # the factor of A, and the bound of C


def sparse_energies(M: Tensor, top: float, growth: float, tolerance: float, iterations: int) -> Tensor:
    """Squared norms of the rows of the sparse part of M / top.

    Args:
        M: (n, p).
        top: Its spectral norm.
        growth: Factor of the penalty from an iteration to the next. At first it is one: larger, and the noisiest
            clients are never found.
        tolerance: Stop when ||M - L - S|| is below this part of ||M||.
        iterations: Most iterations.

    Returns:
        (n,) in float64.
    """
    n, p = M.shape
    blocks = [part / top for part in M.split(p if M.is_cuda else max(1, _CACHED // n), 1)]
    enough = (tolerance * math.hypot(*(float(m.norm()) for m in blocks))) ** 2
    A, C, pool = [m.clone() for m in blocks], [torch.zeros_like(m) for m in blocks], _BufferPool()
    steps, done = _leading_iterations(M, top, growth, iterations, pool) or [_step(_gram(blocks), 1.0, p)], 0
    while True:
        G, moved, seen, done = M.new_zeros(n, n), 0.0, 0, done + len(steps)
        for i, (m, a, c) in enumerate(zip(blocks, A, C, strict=True)):
            asked = len(steps) == 1 and done > _BLIND and i % _ASKED == 0
            before = c / growth if asked else c
            C[i] = _iterated(m, a, c, steps, growth, pool)
            if asked:
                moved, seen = moved + float(before.sub_(C[i]).square_().sum()), seen + m.shape[1]
            G.addmm_(a, a.T)
        if done >= iterations or (seen and moved * p <= enough * seen):
            break
        steps = [_step(G, growth**done, p)]
    energies = torch.zeros(n, dtype=torch.float64, device=M.device)
    for m, a, c in zip(blocks, A, C, strict=True):
        rest = m.sub_(a).add_(c, alpha=1 + 1 / growth)
        energies += torch.ops.aten.softshrink.out(rest, steps[-1][1], out=rest).square_().sum(1)
    return energies


class _BufferPool:
    """A free block of each width, which is still in the cache and therefore written to next."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def like(self, c: Tensor) -> Tensor:
        """Return a free block of the same width."""
        kept = self._kept.get(c.shape[1])
        return torch.empty_like(c) if kept is None else kept

    def put(self, block: Tensor) -> None:
        """Mark this block as free."""
        self._kept[block.shape[1]] = block


def _gram(blocks: Sequence[Tensor]) -> Tensor:
    G = blocks[0].new_zeros(len(blocks[0]), len(blocks[0]))
    for m in blocks:
        G.addmm_(m, m.T)
    return G


def _step(G: Tensor, mu: float, p: int) -> Step:
    """Return the iteration with penalty mu, from the Gram matrix of A."""
    w, V = torch.linalg.eigh(G.to(torch.float64))
    removed = (mu * w.clamp_min(0).sqrt()).clamp_min(1).reciprocal()
    T = ((V * (1 - _RELAXED * removed)) @ V.T).to(G.dtype)
    return T, 1 / (mu * math.sqrt(max(p, len(G))))


def _iterated(m: Tensor, a: Tensor, c: Tensor, steps: Sequence[Step], growth: float, pool: _BufferPool) -> Tensor:
    """Apply iterations to some columns: `a` is updated in place, and the new C is returned; `c` becomes free."""
    other = pool.like(c)
    for T, bound in steps:
        c.addmm_(T, a, beta=-(2 - _RELAXED) / growth)
        torch.sub(m, c, out=other).clamp_(-bound, bound)
        torch.add(c, other, alpha=1 + 1 / growth, out=a)
        c, other = other, c
    pool.put(other)
    return c


def _leading_iterations(M: Tensor, top: float, growth: float, iterations: int, pool: _BufferPool) -> list[Step]:
    """Return the first iterations, computed on a part of the columns; none if there are too few columns."""
    p = M.shape[1]
    most = min(iterations, math.ceil(math.log(_ALONE) / math.log(growth))) if growth > 1 else 0
    if M.is_cuda or p < _AHEAD * _FEWEST or most < 2:
        return []
    m = M[:, : p - p % _RUN].unflatten(1, (-1, _RUN))[:, ::_AHEAD].flatten(1) / top
    a, c, part = m.clone(), torch.zeros_like(m), p / m.shape[1]
    steps: list[Step] = []
    for k in range(most):
        steps.append(_step(a @ a.T * part, growth**k, p))
        c = _iterated(m, a, c, steps[-1:], growth, pool)
    return steps
