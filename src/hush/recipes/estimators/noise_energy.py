"""Noise energy of each client's update, estimated from the updates alone.

The updates U (n clients x p parameters) consist of signals that the clients partly share, and of independent noise. Two
estimators of the noise energies sigma_i^2 (the expected squared norms of the noise) are available:

* `pairwise` needs only the n x n Gram matrix. With one common signal, the expectation of D_ij = ||u_i - u_j||^2 is
  sigma_i^2 + sigma_j^2. With low-rank signals, the expectation of U U'/p is B B' + diag(sigma^2/p), a factor model. The
  estimator selects between the two by fit.
* `rpca` is principal component pursuit as in Robust-HDP, in a faster implementation: the noise is the part of the
  matrix that is not low-rank.

`inverse` gives the weights that minimise the variance of the aggregate. Differences that cancel are computed in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.recipes.context import Rows, Spaced

_BLOCK = 1 << 17  # entries of U converted to float64 at a time
_MANY = 1 << 17  # entries of M above which one iteration is expensive
_RUN = 1024  # columns in each contiguous run, where not all columns are used
_SHORT = 64  # the same if fewer columns are used: still several cache lines
COLUMNS = Spaced(1 << 19, _RUN)  # columns of U that are sufficient to estimate energies within a fifth
FEW_COLUMNS = Spaced(200_000, _SHORT)  # the same for `rpca`
_TOGETHER = 128  # clients whose energies are estimated from each other
_GROUP_COLUMNS = 1 << 16  # columns that are used where there are several such groups: energies to 0.6 percent
_RIDGE = 1e-13  # relative to the largest diagonal entry of the Gram matrix: identical updates make it singular
_FLOOR = 1e-10  # smallest estimate, relative to the largest
_TINY = 1e-300
_HALF = 0.5  # relative to the noise of the plan: estimates for honest clients are larger
_SPREAD = 3.0  # prior standard deviation of the log energies around their mean
_ROUNDS = 50
_RANKS = 8  # maximum number of factors; each reduces the information about the noise
_PACE, _SLOW_PACE = (1.2, 4e-4), (1.05, 2e-4)  # growth factor of the penalty, and stopping tolerance
_CACHED_ENTRIES = 1 << 17  # entries of M per block
_RELAXED = 1.8  # over-relaxation: fewer iterations to the exact solution
_LEADING = 6  # one column in this many is processed first, in runs of 64
_LEADING_RUN = 64
_LEADING_PENALTY = 26.0  # the penalty up to which these columns are processed alone
_FEWEST_LEADING = 16_384  # minimum number of columns to process first: fewer would mislead the others
_UNCHECKED = 12  # iterations before convergence is checked
_CHECKED = 4  # convergence is checked on one block in this many

Iteration = tuple[Tensor, float]  # the factor of A, and the bound of C


def inverse(estimates: Tensor) -> Tensor:
    """Return weights proportional to 1/estimate that sum to one. Zeros share all weight equally."""
    smallest = estimates.min()
    weights = smallest / estimates if smallest > 0 else (estimates <= 0).to(estimates.dtype)
    return weights / weights.sum()


def quiet(estimates: Tensor, planned: Tensor) -> tuple[Tensor, Tensor]:
    """Raise estimates that are far below what the client's plan produces, and return which ones were raised.

    Estimators have a common scale error: the median over clients of the estimate divided by the planned noise.
    Estimates below half of the planned noise times this factor are set to that value.
    """
    known = planned > 0
    if not bool(known.any()):
        return estimates, torch.zeros_like(known)
    least = (estimates[known] / planned[known]).median() * planned
    below = known & (estimates < _HALF * least)
    return torch.where(below, least.to(estimates.dtype), estimates), below


def pairwise(U: Tensor, parameters: int | None = None) -> Tensor:
    """Estimate the noise energies of the rows of U from the Gram matrix alone.

    The first estimate is the least-squares solution of D_ij = sigma_i^2 + sigma_j^2 with weights 1/D_ij. It is kept if
    one common signal explains the differences between clients. Otherwise a factor model is fitted by maximum
    likelihood, with as many factors as the data require. A weak prior on the log energies regularises the fit.

    Args:
        U: Updates, (n, p); rows are clients. If there are millions of columns, evenly spaced runs of them are used.
        parameters: How many columns there are, if U is a sample of them.

    Returns:
        Estimates (n,) in float64, positive. A row of zeros gets the largest estimate of the other rows, so that a
        client that sends zeros does not receive all the weight.
    """
    used, p = COLUMNS.of(U), parameters or U.shape[1]
    G = _gram(used)
    nonzero = G.diagonal() > 0
    energies = _energies(G[nonzero][:, nonzero], used.shape[1]) * (p / max(1, used.shape[1]))
    return _filled(energies, nonzero).to(U.device)


def rpca(
    U: Tensor,
    *,
    growth: float | None = None,
    tolerance: float | None = None,
    iterations: int = 200,
    rows: int = FEW_COLUMNS.most,
    parameters: int | None = None,
) -> Tensor:
    """Estimate the noise energies of the rows of U as Robust-HDP does: squared norms of the sparse part of M = U'.

    Principal component pursuit, min ||L||_* + ||S||_1 / sqrt(max(p, n)) subject to L + S = M, by over-relaxed
    alternating directions with a growing penalty. Singular values are thresholded using the eigenvectors of the n x n
    Gram matrix. With slow growth the weights are within one percent of the exact solution; with fast growth they differ
    more, mostly for the clients with the most noise.

    Args:
        U: Updates, (n, p); rows are clients.
        growth: Factor of the penalty per iteration; 1.2, or less if iterations are cheap.
        tolerance: Stop when ||M - L - S|| / ||M|| is below it; 4e-4, or less if iterations are cheap.
        iterations: Maximum number of iterations.
        rows: Approximate maximum number of rows of M to use, in evenly spaced runs of 64. The energies are rescaled.
        parameters: How many rows of M there are, if U is a sample of them.

    Returns:
        Estimates (n,) in float64. A row of zeros gets the largest estimate of the other rows.
    """
    n, p = U.shape[0], parameters or U.shape[1]
    sub = Spaced(rows, _SHORT).of(U)
    M = sub.to(torch.promote_types(U.dtype, torch.float32))
    G = _gram(M)
    nonzero = G.diagonal() > 0
    if not bool(nonzero.any()):
        return torch.zeros(n, dtype=torch.float64, device=U.device)
    top = float(torch.linalg.eigvalsh(G)[-1].sqrt())
    pace = _PACE if M.numel() > _MANY else _SLOW_PACE
    used = M if bool(nonzero.all()) else M[nonzero.to(M.device)]
    energies = _sparse_energies(used, top, growth or pace[0], tolerance or pace[1], iterations)
    return _filled(energies.cpu() * (top**2 * p / sub.shape[1]), nonzero).to(U.device)


def estimated(rows: Rows, estimate: Callable[[Tensor, int], Tensor], columns: Spaced) -> Tensor:
    """Return the estimates of all rows from a sample of their columns; `estimate` also receives the number of columns.

    Many clients are divided into groups, every so many-th of them into one, and estimated group by group: a hundred
    others tell what is noise as well as a thousand, and time grows with the number of clients in place of its square.
    """
    (n, p), groups = rows.shape, -(-len(rows) // _TOGETHER)
    if groups == 1:
        return estimate(rows.columns(columns), p)
    fewer = Spaced(min(columns.most, _GROUP_COLUMNS), _SHORT, columns.first)
    found = torch.zeros(n, dtype=torch.float64)
    for group in range(groups):
        own = torch.arange(group, n, groups)
        found[own] = estimate(rows.take(own).columns(fewer), p).double().cpu()
    return found


def _sparse_energies(M: Tensor, top: float, growth: float, tolerance: float, iterations: int) -> Tensor:
    """Return the squared norms of the rows of the sparse part of M / top.

    min ||L||_* + ||S||_1 / sqrt(max(p, n)) with L + S = M, by alternating directions, over-relaxed, with a growing
    penalty mu. With Z = Y / mu the steps are A = M - S + Z and L = shrunk(A) = A - D A, where D is n x n and comes from
    the Gram matrix of A; then R = M - L + Z splits into its clamped part C, which is the next Z but for the growth g,
    and the rest, the next S. Relaxed by r, L is r L + (1 - r) (M - S), so that M - R = (1 - r D) A - (2 - r) Z, and the
    next A is M - R + (1 + 1 / g) C: only A and C are kept, and an iteration is one product and three sums.

    Columns meet in the Gram matrix alone. Early on, where it need not be exact, it is that of a few columns, which go
    ahead; then the others follow through all those iterations at once, without leaving the cache.

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
    blocks = [part / top for part in M.split(p if M.is_cuda else max(1, _CACHED_ENTRIES // n), 1)]
    enough = (tolerance * math.hypot(*(float(m.norm()) for m in blocks))) ** 2
    A, C, pool = [m.clone() for m in blocks], [torch.zeros_like(m) for m in blocks], _BufferPool()
    steps, done = _leading_iterations(M, top, growth, iterations, pool) or [_iteration(_block_gram(blocks), 1.0, p)], 0
    while True:
        G, moved, seen, done = M.new_zeros(n, n), 0.0, 0, done + len(steps)
        for i, (m, a, c) in enumerate(zip(blocks, A, C, strict=True)):
            checked = len(steps) == 1 and done > _UNCHECKED and i % _CHECKED == 0
            before = c / growth if checked else c
            C[i] = _iterated(m, a, c, steps, growth, pool)
            if checked:
                moved, seen = moved + float(before.sub_(C[i]).square_().sum()), seen + m.shape[1]
            G.addmm_(a, a.T)
        if done >= iterations or (seen and moved * p <= enough * seen):
            break
        steps = [_iteration(G, growth**done, p)]
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


def _block_gram(blocks: Sequence[Tensor]) -> Tensor:
    G = blocks[0].new_zeros(len(blocks[0]), len(blocks[0]))
    for m in blocks:
        G.addmm_(m, m.T)
    return G


def _iteration(G: Tensor, mu: float, p: int) -> Iteration:
    """Return the iteration with penalty mu, from the Gram matrix of A."""
    w, V = torch.linalg.eigh(G.to(torch.float64))
    removed = (mu * w.clamp_min(0).sqrt()).clamp_min(1).reciprocal()
    T = ((V * (1 - _RELAXED * removed)) @ V.T).to(G.dtype)
    return T, 1 / (mu * math.sqrt(max(p, len(G))))


def _iterated(m: Tensor, a: Tensor, c: Tensor, steps: Sequence[Iteration], growth: float, pool: _BufferPool) -> Tensor:
    """Apply iterations to some columns: `a` is updated in place, and the new C is returned; `c` becomes free."""
    other = pool.like(c)
    for T, bound in steps:
        c.addmm_(T, a, beta=-(2 - _RELAXED) / growth)
        torch.sub(m, c, out=other).clamp_(-bound, bound)
        torch.add(c, other, alpha=1 + 1 / growth, out=a)
        c, other = other, c
    pool.put(other)
    return c


def _leading_iterations(M: Tensor, top: float, growth: float, iterations: int, pool: _BufferPool) -> list[Iteration]:
    """Return the first iterations, computed on a part of the columns; none if there are too few columns."""
    p = M.shape[1]
    most = min(iterations, math.ceil(math.log(_LEADING_PENALTY) / math.log(growth))) if growth > 1 else 0
    if M.is_cuda or p < _LEADING * _FEWEST_LEADING or most < 2:
        return []
    m = M[:, : p - p % _LEADING_RUN].unflatten(1, (-1, _LEADING_RUN))[:, ::_LEADING].flatten(1) / top
    a, c, part = m.clone(), torch.zeros_like(m), p / m.shape[1]
    steps: list[Iteration] = []
    for k in range(most):
        steps.append(_iteration(a @ a.T * part, growth**k, p))
        c = _iterated(m, a, c, steps[-1:], growth, pool)
    return steps


def _filled(energies: Tensor, nonzero: Tensor) -> Tensor:
    """Fill in the energies of clients that sent zeros."""
    out = torch.full(nonzero.shape, _TINY, dtype=torch.float64)
    if bool(nonzero.any()):
        out[nonzero] = energies
        out[~nonzero] = energies.max()
    return out


def _gram(U: Tensor) -> Tensor:
    """Return U U' in float64 on the CPU, computed in blocks of columns."""
    n, p = U.shape
    G = torch.zeros(n, n, dtype=torch.float64, device=U.device)
    width = max(1, _BLOCK // max(n, 1))
    for start in range(0, p, width):
        block = U[:, start : start + width].to(torch.float64)
        G.addmm_(block, block.T)
    return G.cpu()


def _energies(G: Tensor, p: int) -> Tensor:
    n = len(G)
    energy = G.diagonal()
    if n < 2:
        return energy
    if n == 2:
        # One difference cannot be split: use the norms too, down to the error that chance makes in the scalar product.
        return (energy - G[0, 1]).clamp_min(float(energy.prod().div(p).sqrt())).clamp_min(_TINY)
    scale = energy.max() / p
    S = G / (p * scale) + _RIDGE * torch.eye(n, dtype=G.dtype)
    d = _least_squares(S, p)
    # With few clients, or few parameters for each, there is nothing to learn loadings from.
    if n > 3 and p >= 4 * n:
        d = _refined(S, p, d)
    return (d * (p * scale)).clamp_min(_TINY)


def _least_squares(S: Tensor, p: int) -> Tensor:
    """Variances from D_ij = d_i + d_j, every equation divided by D_ij: normal equations, scaled to a unit diagonal."""
    n = len(S)
    energy = S.diagonal()
    D = (energy[:, None] + energy - 2 * S).clamp_min(_RIDGE).fill_diagonal_(math.inf)
    R = D.reciprocal()
    W = R.square()
    A = W + W.sum(1).diag()
    s = A.diagonal().rsqrt()
    x = torch.linalg.solve(A * s[:, None] * s + 1e-12 * torch.eye(n, dtype=S.dtype), R.sum(1) * s) * s
    # Chance can make a small variance negative; the distance to the nearest client tells how small it may be.
    return torch.maximum(x, D.min(1).values / (p + 1))


def _refined(S: Tensor, p: int, start: Tensor) -> Tensor:
    """Variances by the simplest model that explains S, or by the best: one common signal (the start), or factors."""
    fit = _fit(S, p, 0, start.log())
    if fit.explains:
        return start
    smc = -torch.linalg.inv(S).diagonal().log()
    chosen = 0
    for rank in range(1, min(len(S) // 3, _RANKS) + 1):
        other = _fit(S, p, rank, smc)
        if other.explains or other.score < fit.score:
            fit, chosen = other, rank
        elif 0 < chosen < rank - 1:
            break
        if fit.explains:
            break
    return fit.mean.clamp_min(float(fit.mean.max()) * _FLOOR)


@dataclass(frozen=True)
class _Fit:
    """A fitted model: variances (posterior means), deviance from the saturated model and the freedom left to it."""

    mean: Tensor
    deviance: float
    freedom: float
    parameters: int

    @property
    def score(self) -> float:
        """The Bayesian information criterion, up to a constant: lower is better."""
        return self.deviance - math.log(self.parameters) * self.freedom

    @property
    def explains(self) -> bool:
        """Whether chance leaves such a deviance: a chi-squared quantile at 2.5 deviations (Wilson and Hilferty)."""
        if self.freedom <= 0:
            return True
        unit = 2 / (9 * self.freedom)
        return self.deviance <= self.freedom * (1 - unit + 2.5 * math.sqrt(unit)) ** 3


def _fit(S: Tensor, p: int, rank: int, x: Tensor) -> _Fit:
    """Damped Newton steps on the log variances x; rank 0 is one signal common to all, else a factor model of that rank.

    In coordinates scaled by exp(-x/2) both models explain some directions by signal and leave a projector P on the
    others, where the scaled Gram matrix should be the identity: the gradient is diag(P (I - S) P), the Fisher
    information P * P (entrywise).
    """
    n = len(S)
    known = max(rank, 1)
    freedom = ((n - known) ** 2 - (n + known)) / 2
    eye = torch.eye(n, dtype=S.dtype)
    prior = (eye - 1 / n) * (2 / (p * _SPREAD**2))
    best = _saturated(S, rank) + n - known
    damping = 1e-4
    value, t, V = _value(S, rank, x)
    penalty = float(x @ prior @ x) / 2
    for _ in range(_ROUNDS):
        gradient = ((1 - t) * V.square()).sum(1) + prior @ x
        information = (V @ V.T).square() + prior
        step = torch.linalg.solve(information + damping * eye, -gradient)
        y = x + step * min(1.0, 2 / float(step.abs().max().clamp_min(_TINY)))
        new, new_t, new_V = _value(S, rank, y)
        new_penalty = float(y @ prior @ y) / 2
        gain = p * (value + penalty - new - new_penalty)
        if not gain >= 0:
            damping *= 10
            if damping > 1e3:
                break
            continue
        x, value, penalty, t, V = y, new, new_penalty, new_t, new_V
        damping = max(damping / 10, 1e-9)
        # A model far from the data is not worth polishing.
        if gain < 1e-3 * max(1.0, p * (value - best) - freedom):
            break
    spread = torch.linalg.inv(((V @ V.T).square() + prior) * (p / 2)).diagonal().clamp_min(0)
    # An uncertain energy counts with its spread: trusting a client too much costs more than trusting it too little.
    return _Fit(x.exp() * (1 + spread).sqrt(), p * (value - best), freedom, p)


def _saturated(S: Tensor, rank: int) -> float:
    """The log-determinant of the Gram matrix, or of its differences between clients."""
    logdet = torch.linalg.slogdet(S).logabsdet
    return float(logdet if rank else logdet + torch.linalg.inv(S).sum().clamp_min(_TINY).log())


def _value(S: Tensor, rank: int, x: Tensor) -> tuple[float, Tensor, Tensor]:
    """Minus twice the log-likelihood a parameter, and the unexplained spectrum of the scaled Gram matrix."""
    r = torch.exp(-x / 2)
    W = S * r[:, None] * r
    if rank:
        t, V = torch.linalg.eigh(W)
        signal, t, V = t[-rank:], t[:-rank], V[:, :-rank]
        return float(x.sum() + signal.log().sum() + t.sum()), t, V
    size = r.norm()
    v = r / size
    W = W - torch.outer(v, v @ W)
    W = W - torch.outer(W @ v, v)
    # Moved below all others, the common direction is the first eigenvector.
    t, V = torch.linalg.eigh(W - (1 + W.diagonal().sum()) * torch.outer(v, v))
    t, V = t[1:], V[:, 1:]
    return float(x.sum() + 2 * size.log() + t.sum()), t, V
