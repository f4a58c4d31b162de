"""PADPFL's bound (Talaei and Izadi 2024, lemma 2 and theorem 2): the loss above its minimum after T rounds.

Lemma 2 bounds what one round adds to the loss; it writes the loss where its proof has the norm of the gradient. Theorem
2 sums it up, with three slips. Where lambda_2 is below zero, as it must be for progress, it replaces the gradient's
norm by an upper bound, which turns the inequality round: the printed bound falls below zero after enough rounds. The
noise has a norm by its number of parameters, not of clients. Noise follows the fewest rows, not the most. `contracted`
sums up lemma 2 for strongly convex losses instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hush.bounds.bound import Bound, Condition

CAVEAT = (
    "As printed it bounds a negative term by the largest gradient, counts clients where parameters are meant, and "
    "takes the noise of the client with the most rows: it is no bound."
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants of lemma 2.

    Attributes:
        mu: The weight of the proximal term.
        inexactness: How far local problems are from solved, gamma: 0 is exact, 1 not at all.
        smoothness: The Lipschitz constant of every client's gradient, rho.
        dissimilarity: A, by which sum p_i |grad l_i| is at most A |grad L|.
        gap: The loss at the start above its minimum, Theta.
        nonconvexity: rho_-, zero for convex losses: the local problem is mu - rho_- convex.
        convexity: The strong convexity of the loss.
    """

    mu: float
    inexactness: float
    smoothness: float
    dissimilarity: float
    gap: float
    nonconvexity: float = 0.0
    convexity: float = 0.0

    @property
    def lambdas(self) -> tuple[float, float, float]:
        """lambda_2, lambda_1 and lambda_0."""
        bar, loose = self.mu - self.nonconvexity, 1 + self.inexactness
        reach = self.smoothness * loose / bar
        second = -1 / self.mu + self.dissimilarity / self.mu * (self.inexactness + reach)
        second += self.smoothness * self.dissimilarity**2 * loose**2 / (2 * bar**2)
        return second, 1 + self.dissimilarity * reach, self.smoothness / 2


def increment(setting: Setting, gradient: float, noise: float, noise_squared: float) -> float:
    """Return lemma 2: what a round adds to the expected loss at most.

    Args:
        setting: The constants.
        gradient: The norm of the gradient before the round.
        noise: The expected norm of the noise of the round, of clients and server together.
        noise_squared: Its expected square.
    """
    second, first, zeroth = setting.lambdas
    return second * gradient**2 + first * noise * gradient + zeroth * noise_squared


def printed(
    setting: Setting, rounds: Sequence[int], *, gradient: float, bound: float, largest: float, rows: int, clients: int,
    epsilon: float, delta: float,
) -> Bound:  # fmt: skip
    """Return theorem 2 as printed.

    Args:
        setting: The constants.
        rounds: Numbers of rounds T, each of which the noise is for.
        gradient: beta, the largest norm (of the gradient; the paper writes the loss).
        bound: B, the norm to which weights are cut.
        largest: The largest impact factor.
        rows: The most rows of a client (the paper's max m_i).
        clients: N.
        epsilon: The budget.
        delta: Of the budget.
    """
    second, first, zeroth = setting.lambdas
    constant = math.sqrt(2 * math.log(1.25 / delta))
    k1 = 2 * first * gradient * bound * constant * largest / rows * math.sqrt(2 * clients / math.pi)
    k0 = 4 * zeroth * bound**2 * constant**2 * largest**2 / rows**2
    values = [setting.gap + second * gradient**2 * t + k1 * t**2 / epsilon + k0 * t**3 / epsilon**2 for t in rounds]
    return Bound(
        theorem="Talaei and Izadi 2024 (PADPFL), theorem 2",
        quantity="training loss above its minimum",
        rounds=tuple(rounds),
        values=tuple(values),
        caveat=CAVEAT,
    )


def contracted(setting: Setting, rounds: Sequence[int], noise_squared: float) -> Bound:
    """Return lemma 2 summed up for a strongly convex loss, with noise of this expected squared norm in each round.

    A gradient's square is between 2 m and 2 rho times the gap, m the strong convexity; the noise is independent of the
    gradient, and its expected norm at most the root of `noise_squared`.
    """
    second, first, zeroth = setting.lambdas
    kept = 1 + 2 * setting.convexity * second
    values, gap, done = [], setting.gap, 0
    for count in sorted(rounds):
        for _ in range(count - done):
            cross = first * math.sqrt(noise_squared) * math.sqrt(2 * setting.smoothness * gap)
            gap = max(kept, 0.0) * gap + cross + zeroth * noise_squared
        done = count
        values.append(gap)
    return Bound(
        theorem="Talaei and Izadi 2024 (PADPFL), lemma 2, summed for strongly convex losses",
        quantity="training loss above its minimum",
        rounds=tuple(sorted(rounds)),
        values=tuple(values),
        conditions=(Condition("lambda_2", second, 0.0),),
    )
