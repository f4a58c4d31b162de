"""Statistics of a privacy audit: what an attack was seen to do, and the lower bounds on epsilon that follow.

An audit acts as the adversary. It trains with and without its own canary rows, scores what was released, and measures
how well the scores distinguish the two. Differential privacy limits this; an adversary that exceeds the limit refutes
the claim. What was seen is `Separation` (repeated runs on two data sets) or `Guesses` (many canaries at once). Both can
be compared with a limit on attacks (`TradeOff`), and give an epsilon that assumes nothing about the mechanism.

Guarantees:
    Each statement that `Separation` and `Guesses` make about an attack is wrong with probability at most 1 -
    confidence, all of them together, whatever the scores. So `refutes` is, and `epsilon` exceeds a true epsilon no
    more often.
    `two_datasets`: a quarter of the runs (`choosing`) selects the attacks, the others evaluate them. Half of the
    failure probability is for the accuracy of a guess, which has one exact bound over both data sets (Hoeffding 1956:
    successes of unequal trials are no more spread than those of equal ones); half is for one pair of rates in the
    tails, with Clopper-Pearson bounds on each.
    `one_run`: the probability of so many correct guesses is at most that of Theorem 16 of docs/proofs.md, and, for an
    epsilon alone, of theorem 5.2 of Steinke, Nasr and Jagielski (2023, arXiv:2305.08846), including its delta term. A
    number of guesses that is fixed beforehand has most of the failure probability; others share the rest. Of 16 or more
    runs, half of it is for the mean accuracy, whose bound uses that the runs are independent.
    `if_gaussian` assumes normal scores of equal variance, and is an approximation: additional information, not a bound.

Edge cases:
    Uninformative scores give 0. With n evaluating rows no bound can exceed about log(n).
    A NaN score counts as lower than every number, because being NaN is observable, too. `if_gaussian` requires finite
    scores; with fewer than two of a kind it returns 0.
    Equal scores are ordered by position, which carries no information about inclusion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hush.auditing.trade_off import TradeOff, possible
from hush.privacy.accounting import gaussian
from hush.types import HushError, Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FEWEST_GUESSES = 8
_MOST_GUESSES = 1024
_MAIN_SHARE = 0.8
_SEVERAL_RUNS = 16
_HUGE = 1e30
_RIDGE = 1e-7


@dataclass(frozen=True)
class _Test:
    """Guess "from the more likely dataset" if `scores @ weights` is above the threshold."""

    weights: Array
    threshold: float
    likelier: int

    def hits(self, world: Array) -> int:
        return int((world @ self.weights > self.threshold).sum())


@dataclass(frozen=True)
class Separation:
    """How well two data sets were distinguished, all of it with one confidence.

    Attributes:
        accuracy: A guess between the two is right at least so often.
        true: An attack far out in the tails detects one data set at least so often,
        false: and takes the other one for it at most so often.
    """

    accuracy: float
    true: float
    false: float

    def refutes(self, curve: TradeOff) -> bool:
        """Whether this is more than a curve allows."""
        return self.accuracy > curve.accuracy or self.true > curve.most_true(self.false)

    def epsilon(self, delta: float) -> float:
        """Return the largest epsilon that is refuted at `delta`, whatever the mechanism."""
        return max(_epsilon_of_accuracy(self.accuracy, delta), math.log(max(1.0, (self.true - delta) / self.false)))


@dataclass(frozen=True)
class Guesses:
    """How many guesses about canaries were right, for several numbers of guesses.

    Attributes:
        canaries: How many there were.
        counts: For each number of guesses how many were right, and the failure probability that is spent on it.
        accuracy: Over independent runs, a guess about every canary is right at least so often.
    """

    canaries: int
    counts: tuple[tuple[int, int, float], ...]
    accuracy: float = 0.0

    def refutes(self, curve: TradeOff) -> bool:
        """Whether so many right guesses are too improbable for a curve."""
        return self.accuracy > curve.accuracy or any(
            not possible(self.canaries, guesses, correct, curve, failure) for guesses, correct, failure in self.counts
        )

    def epsilon(self, delta: float) -> float:
        """Return the largest epsilon that is refuted at `delta`, whatever the mechanism."""
        counted = (_refuted(self.canaries, n, right, delta, failure) for n, right, failure in self.counts)
        return max(_epsilon_of_accuracy(self.accuracy, delta), *counted, 0.0)


def two_datasets(absent: Array, present: Array, delta: float, confidence: float) -> Separation:
    """Return how well repeated runs on two neighbouring datasets are distinguished.

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
    sizes = [len(world) for world in judge]
    failure = 0.5 * (1.0 - confidence)
    guess, tails = _best(choose, delta, failure)
    hits = [guess.hits(world) for world in judge]
    right = hits[guess.likelier] + sizes[1 - guess.likelier] - hits[1 - guess.likelier]
    # With unequal numbers of runs the plain sum is not the accuracy of a guess at even odds.
    accuracy = float(_least(np.array(right), sum(sizes), failure)) if sizes[0] == sizes[1] else 0.0
    hits = [tails.hits(world) for world in judge]
    a, b = tails.likelier, 1 - tails.likelier
    true = float(_least(np.array(hits[a]), sizes[a], 0.5 * failure))
    return Separation(accuracy, true, float(_most(np.array(hits[b]), sizes[b], 0.5 * failure)))


def choosing(runs: int) -> NDArray[np.bool_]:
    """Which runs select the test. Everything that an adversary estimates from runs must come from these alone."""
    chosen: NDArray[np.bool_] = np.arange(runs) % 4 == 0
    return chosen


def one_run(scores: Array, included: NDArray[np.bool_], confidence: float, expected: int | None = None) -> Guesses:
    """Return how many canaries, each included with probability 1/2, are guessed rightly by the most extreme scores.

    Args:
        scores: One per canary, higher if more likely included; for several independent runs a row each.
        included: Which canaries were included.
        confidence: Confidence level, such as 0.95.
        expected: The number of guesses that most is expected of, one of `guess_sizes`; it must not depend on the
            scores.
    """
    check(0.0, confidence)
    runs = np.atleast_2d(np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-_HUGE))
    truth = np.atleast_2d(np.asarray(included))
    failure, accuracy = 1.0 - confidence, 0.0
    if len(runs) >= _SEVERAL_RUNS:
        failure *= 0.5
        order = runs.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        accuracy = least_mean(((order >= runs.shape[1] // 2) == truth).mean(axis=1), failure)
    ranked = truth.ravel()[np.argsort(runs.ravel(), kind="stable")]
    sizes = guess_sizes(len(ranked))
    shares = {size: failure / len(sizes) for size in sizes}
    if expected in shares and len(sizes) > 1:
        shares = {size: (1.0 - _MAIN_SHARE) * failure / (len(sizes) - 1) for size in sizes}
        shares[expected] = _MAIN_SHARE * failure
    halves = {size: (ranked[-(size // 2) :], ranked[: size // 2]) for size in sizes}
    right = {size: int(above.sum()) + int((~below).sum()) for size, (above, below) in halves.items()}
    return Guesses(len(ranked), tuple((size, right[size], shares[size]) for size in sizes), accuracy)


def least_mean(values: Array, failure: float) -> float:
    """Return a lower bound on the mean of independent numbers in [0, 1], in their order; 0 if 1/2 is not exceeded.

    A bettor who bets on more than a mean, fairly if it is the true one, multiplies its money by 1 / failure with at
    most that probability (Ville's inequality). The stakes follow from the numbers before, as proposed by Waudby-Smith
    and Ramdas (2024, arXiv:2010.09686).
    """
    values = np.asarray(values, dtype=np.float64)
    counts = np.arange(1.0, len(values) + 1.0)
    # Before each number: the mean and the variance of those before it, and of one more of 1/2 with variance 1/4.
    means = np.append(0.5, (0.5 + np.cumsum(values)) / (counts + 1.0))[:-1]
    around = np.append(0.25, (0.25 + np.cumsum((values - means) ** 2)) / (counts + 1.0))[:-1]
    for supposed in np.arange(0.5, 1.0, 1e-3):
        gaps = means - supposed
        stakes = np.clip(gaps / (around + gaps**2), 0.0, 0.75 / supposed)
        if np.cumsum(np.log1p(stakes * (values - supposed))).max(initial=0.0) < -math.log(failure):
            return float(supposed) - 1e-3 if supposed > 0.5 else 0.0
    return 1.0 - 1e-3


def guess_sizes(canaries: int) -> list[int]:
    """Return the numbers of guesses that are tried: all canaries, and half as many each time; not very many."""
    halves = (canaries // 2 >> k for k in range(canaries.bit_length()))
    return [2 * half for half in halves if _FEWEST_GUESSES <= 2 * half <= _MOST_GUESSES]


def expected_correct(canaries: int, guesses: int, accuracy: float) -> int:
    """Return how many of the most extreme guesses are right in expectation, for normal scores distinguished with
    this accuracy.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    gap = 2.0 * float(ndtri(min(accuracy, 1.0 - 1e-9)))
    share = min(guesses / canaries, 1.0 - 1e-9)
    # Around the middle between the two means: the share of all scores beyond the threshold, on either side.
    edge = brentq(lambda t: ndtr(0.5 * gap - t) + ndtr(-0.5 * gap - t) - share, 0.0, 40.0 + gap)
    return round(guesses * float(ndtr(0.5 * gap - edge)) / share)


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


def _epsilon_of_accuracy(accuracy: float, delta: float) -> float:
    """The largest epsilon with which a guess at even odds cannot be right so often."""
    if accuracy >= 1.0:
        return math.inf
    return math.log(max(1.0, (accuracy - delta) / (1.0 - accuracy)))


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


def _best(worlds: list[Array], delta: float, failure: float) -> tuple[_Test, _Test]:
    """The most accurate test, and the one with the highest bound in the tails."""
    guesses, tails = [], []
    for test_of, accuracy, bound in _tests(worlds, delta, failure):
        guesses.append((float(accuracy.max()), test_of(int(accuracy.argmax()))))
        tails.append((float(bound.max()), test_of(int(bound.argmax()))))
    return max(guesses, key=lambda pair: pair[0])[1], max(tails, key=lambda pair: pair[0])[1]


def _tests(worlds: list[Array], delta: float, failure: float) -> Iterator[tuple[Callable[[int], _Test], Array, Array]]:
    """Thresholds on each score, from either side and for either dataset: the accuracy of each, and its bound."""
    for weights in _directions(worlds):
        for likelier in (0, 1):
            high, low = (np.sort(worlds[world] @ weights) for world in (likelier, 1 - likelier))
            false = np.unique(np.geomspace(1, len(low), 200).astype(int)) - 1
            edges = low[len(low) - 1 - false]
            above = np.searchsorted(high, edges, side="right")
            true = len(high) - above
            # The midpoint to the next score, so that a wide gap is split in its middle.
            cuts = np.where(true > 0, 0.5 * (edges + high[np.minimum(above, len(high) - 1)]), edges)
            accuracy = 0.5 + 0.5 * (true / len(high) - false / len(low))
            least, most = _least(true, len(high), 0.5 * failure), _most(false, len(low), 0.5 * failure)
            bounds = np.maximum((least - delta) / most, 0.0)
            yield partial(_test, weights, cuts, likelier), accuracy, bounds


def _test(weights: Array, cuts: Array, likelier: int, number: int) -> _Test:
    return _Test(weights, float(cuts[number]), likelier)


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


def _least(hits: NDArray[np.int_], trials: int, failure: float) -> Array:
    """The exact lower bound on a probability."""
    from scipy.special import betaincinv

    found: Array = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, failure), 0.0)
    return found


def _most(hits: NDArray[np.int_], trials: int, failure: float) -> Array:
    """The exact upper bound on a probability."""
    return 1.0 - _least(trials - hits, trials, failure)


def _table(scores: Array) -> Array:
    table = np.nan_to_num(np.asarray(scores, dtype=np.float64), nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
    return table[:, None] if table.ndim == 1 else table
