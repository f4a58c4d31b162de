"""Statistics of a privacy audit: lower bounds on epsilon from scores.

An audit acts as the adversary. It trains with and without its own canary rows, scores what was released, and measures
how well the scores distinguish the two. Differential privacy limits this; an adversary that exceeds the limit refutes
the claim.

Guarantees:
    `two_datasets` and `one_run` assume nothing about the mechanism or the scores: if it is (epsilon, delta)-private,
    the bound exceeds epsilon with probability at most 1 - confidence, whatever the scores.
    `two_datasets`: a third of the runs (`choosing`) selects the test, the others evaluate it, with Clopper-Pearson
    bounds on both error rates.
    `one_run`: theorem 5.2 of Steinke, Nasr and Jagielski (2023, arXiv:2305.08846), including its delta term. Several
    numbers of guesses are tried, and the confidence is divided between them.
    `if_gaussian` assumes normal scores of equal variance, and is an approximation: additional information, not a bound.

Edge cases:
    Uninformative scores give 0. With n evaluating rows no bound can exceed about log(n).
    A NaN score counts as lower than every number, because being NaN is observable, too. `if_gaussian` requires finite
    scores; with fewer than two of a kind it returns 0.
    Equal scores are ordered by position, which carries no information about inclusion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hush.privacy.accounting import gaussian
from hush.types import HushError, Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FEWEST_GUESSES = 8
_HUGE = 1e30
_RIDGE = 1e-7


@dataclass(frozen=True)
class _Test:
    """Guess "from the more likely dataset" if `scores @ weights` is above the threshold."""

    weights: Array
    threshold: float
    likelier: int


def two_datasets(absent: Array, present: Array, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from repeated runs on two neighbouring datasets.

    Args:
        absent: Scores of the runs on the first dataset, a row each. Column 0 is the adversary's best score; further
            columns, if any, are raw observations, of which a linear discriminant is tried as well.
        present: The same for the second dataset.
        delta: The delta of the claim.
        confidence: Confidence level, such as 0.95.
    """
    check(delta, confidence)
    worlds = [_table(absent), _table(present)]
    if min(len(world) for world in worlds) < 4:
        raise HushError("audit: at least 4 runs on each dataset are needed")
    choose = [world[choosing(len(world))] for world in worlds]
    judge = [world[~choosing(len(world))] for world in worlds]
    best, _ = max(_tests(choose, delta, confidence), key=lambda pair: pair[1])
    hits = [int((world @ best.weights > best.threshold).sum()) for world in judge]
    a, b = best.likelier, 1 - best.likelier
    return float(_ratio(np.array(hits[a]), len(judge[a]), np.array(hits[b]), len(judge[b]), delta, confidence))


def choosing(runs: int) -> NDArray[np.bool_]:
    """Which runs select the test. Everything that an adversary estimates from runs must come from these alone."""
    chosen: NDArray[np.bool_] = np.arange(runs) % 3 == 0
    return chosen


def one_run(scores: Array, included: NDArray[np.bool_], delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from canaries that were each included with probability 1/2.

    Args:
        scores: One per canary; higher means more likely included.
        included: Which canaries were included.
        delta: The delta of the claim.
        confidence: Confidence level, such as 0.95.
    """
    check(delta, confidence)
    ranked = np.asarray(included)[np.argsort(np.nan_to_num(scores, nan=-_HUGE), kind="stable")]
    count = len(ranked)
    sides = [half for half in (count // 2 >> k for k in range(count.bit_length())) if 2 * half >= _FEWEST_GUESSES]
    failure = (1.0 - confidence) / max(1, len(sides))
    right = [(2 * k, int(ranked[-k:].sum()) + int((~ranked[:k]).sum())) for k in sides]
    return max((_refuted(count, guesses, correct, delta, failure) for guesses, correct in right), default=0.0)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the maximum probability of this many correct guesses under (epsilon, delta)-privacy."""
    from scipy.stats import binom

    if not 0 <= correct <= guesses <= canaries:
        raise HushError(f"audit: {correct} correct of {guesses} guesses about {canaries} canaries is impossible")
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    pure = float(binom.sf(correct - 1, guesses, accuracy))
    if delta == 0.0 or correct == 0:
        return min(1.0, pure)
    near = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    worst = float(np.max(near / np.arange(1, correct + 1)))
    return min(1.0, pure + 2.0 * canaries * delta * worst)


def if_gaussian(absent: Array, present: Array, delta: float, confidence: float) -> float:
    """Return the epsilon of the Gaussian mechanism with the separation of these scores, assuming normal scores."""
    from scipy.special import ndtri

    check(delta, confidence)
    a, b = np.asarray(absent, dtype=np.float64), np.asarray(present, dtype=np.float64)
    if min(len(a), len(b)) < 2:
        return 0.0
    degrees = len(a) + len(b) - 2
    spread = math.sqrt(max(0.0, float((a.var() * len(a) + b.var() * len(b)) / degrees)))
    if not 0.0 < spread < math.inf:
        return math.inf if spread == 0.0 and a.mean() != b.mean() else 0.0
    found = abs(float(b.mean() - a.mean())) / spread
    error = math.sqrt(1.0 / len(a) + 1.0 / len(b) + found**2 / (2.0 * degrees))
    separation = found - float(ndtri(0.5 + 0.5 * confidence)) * error
    return gaussian.epsilon_of(1.0 / separation, delta) if separation > 0.0 else 0.0


def log_likelihood(x: Array, rate: float, steps: int, noise: float, relation: Relation = "add-remove") -> Array:
    """Return the log likelihood ratio of the sum of `steps` noisy steps, with against without a canary of norm 1.

    Args:
        x: The sum projected onto the canary, in units of the clipping norm.
        rate: Probability that a step samples the canary.
        steps: Steps in the sum.
        noise: Standard deviation of a step's noise, in units of the clipping norm.
        relation: Under `replace-one` the canary adds -1 where it is replaced.
    """
    from scipy.special import logsumexp
    from scipy.stats import binom

    taken = np.arange(steps + 1.0)
    shares = binom.logpmf(taken, steps, rate)
    taken, shares = taken[shares > -60.0], shares[shares > -60.0]
    variance = steps * noise**2

    def present(value: Array) -> Array:
        ratio: Array = logsumexp(shares + (value[..., None] - 0.5 * taken) * (taken / variance), axis=-1)
        return ratio

    return present(x) - present(-x) if relation == "replace-one" else present(x)


def check(delta: float, confidence: float) -> None:
    """Raise a `HushError` for an impossible delta or confidence."""
    if not 0.0 <= delta < 1.0:
        raise HushError(f"delta: found {delta!r}; accepted: a number from 0 up to, but below, 1")
    if not 0.5 <= confidence < 1.0:
        raise HushError(f"confidence: found {confidence!r}; accepted: a number from 0.5 up to, but below, 1")


def _refuted(canaries: int, guesses: int, correct: int, delta: float, failure: float) -> float:
    """Return the largest epsilon at which this many correct guesses are too improbable."""
    low, high = 0.0, 1.0
    if p_value(canaries, guesses, correct, low, delta) >= failure:
        return 0.0
    while high < 1e3 and p_value(canaries, guesses, correct, high, delta) < failure:
        low, high = high, 2.0 * high
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        refuted = p_value(canaries, guesses, correct, middle, delta) < failure
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _tests(worlds: list[Array], delta: float, confidence: float) -> Iterator[tuple[_Test, float]]:
    """Thresholds on each score, from either side and for either dataset, with the bound that each would give."""
    for weights in _directions(worlds):
        for likelier in (0, 1):
            high, low = (np.sort(worlds[world] @ weights) for world in (likelier, 1 - likelier))
            false = np.unique(np.geomspace(1, len(low), 200).astype(int)) - 1
            edges = low[len(low) - 1 - false]
            above = np.searchsorted(high, edges, side="right")
            true = len(high) - above
            # The midpoint to the next score, so that a wide gap is split in its middle.
            cuts = np.where(true > 0, 0.5 * (edges + high[np.minimum(above, len(high) - 1)]), edges)
            bounds = _ratio(true, len(high), false, len(low), delta, confidence)
            best = int(np.argmax(bounds))
            yield _Test(weights, float(cuts[best]), likelier), float(bounds[best])


def _directions(worlds: list[Array]) -> Iterator[Array]:
    """The given score and the linear discriminant of all columns, each with both signs."""
    columns = worlds[0].shape[1]
    given = np.zeros(columns)
    given[0] = 1.0
    found = [given]
    if columns > 1:
        gap = worlds[1].mean(0) - worlds[0].mean(0)
        inner = np.concatenate([world - world.mean(0) for world in worlds])
        scale = np.sqrt(inner.var(0) + gap**2)
        scale[scale == 0.0] = 1.0
        covariance = (inner / scale).T @ (inner / scale) / len(inner)
        # The ridge admits a direction without noise, instead of dividing by zero.
        found.append(np.linalg.solve(covariance + _RIDGE * np.eye(columns), gap / scale) / scale)
    for weights in found:
        yield weights
        yield -weights


def _ratio(
    true: NDArray[np.int_], trues: int, false: NDArray[np.int_], falses: int, delta: float, confidence: float
) -> Array:
    """The epsilon implied by two exact one-sided bounds on the rates, 0 if none."""
    from scipy.special import betaincinv

    failure = 0.5 * (1.0 - confidence)
    least = np.where(true > 0, betaincinv(np.maximum(true, 1), trues - true + 1, failure), 0.0)
    most = np.where(false < falses, betaincinv(false + 1, np.maximum(falses - false, 1), 1.0 - failure), 1.0)
    return np.log(np.maximum((least - delta) / most, 1.0))


def _table(scores: Array) -> Array:
    table = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
    return table[:, None] if table.ndim == 1 else table
