"""DP-SCAFFOLD's bound (Noble et al. 2022, theorem C.1, convex): the mean gap of the loss over the rounds.

The theorem is stated up to a constant factor. Its lemma C.7 has all constants: summed over the rounds it gives the
bound here. With control variates from a warm start, the lag of the variates is zero at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hush.bounds.bound import Bound, Condition


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants of lemma C.7.

    Attributes:
        steps: Local steps, K.
        share: The share of the users in a round, l.
        users: The number of users, M.
        smoothness: The Lipschitz constant of every user's gradient, nu.
        variance: The variance of a batch's gradient, varsigma^2 / (s R).
        noise: The variance of the noise of a step, summed over the parameters, Sigma_g^2.
        lr: The local step size, eta_l.
        server_lr: The global step size, eta_g.
        distance: From the first model to a minimiser, D_0.
        lag: The mean squared distance from the first model of the points at which the variates were taken.
        convexity: The strong convexity of every user's loss, mu.
    """

    steps: int
    share: float
    users: int
    smoothness: float
    variance: float
    noise: float
    lr: float
    distance: float
    server_lr: float = 1.0
    lag: float = 0.0
    convexity: float = 0.0

    @property
    def rate(self) -> float:
        """The effective step size of a round, eta tilde."""
        return self.steps * self.lr * self.server_lr

    @property
    def start(self) -> float:
        """What the lemma follows, at the start: the squared distance, and the lag with its factor."""
        return self.distance**2 + 27 * self.smoothness**2 * self.rate**2 * self.lag / self.share

    @property
    def added(self) -> float:
        """What a round adds to it at most."""
        seen = self.share * self.users
        return 10 * self.rate**2 / (self.steps * seen) * (1 + seen / self.server_lr**2) * (self.variance + self.noise)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The step sizes for which the lemma holds."""
        passes = self.steps * self.server_lr
        found = [
            Condition("local step size", self.lr, self.share ** (2 / 3) / (24 * self.smoothness * passes)),
            Condition("one over the global step size", 1 / self.server_lr, 1.0),
        ]
        if self.convexity > 0:
            found.append(Condition("local step size", self.lr, self.share / (54 * self.convexity * passes)))
        return tuple(found)


def mean_gap(setting: Setting, rounds: Sequence[int]) -> Bound:
    """Return the bound on the mean of F(x^t) - F(x^*) over the models before each of the first T rounds."""
    values = [2 * setting.start / (setting.rate * count) + 2 * setting.added / setting.rate for count in rounds]
    return Bound(
        theorem="Noble et al. 2022, theorem C.1 (convex), with the constants of lemma C.7",
        quantity="mean over the rounds of the training loss above its minimum",
        rounds=tuple(rounds),
        values=tuple(values),
        conditions=setting.conditions,
    )


def squared_distance(setting: Setting, rounds: Sequence[int]) -> Bound:
    """Return the bound on the squared distance to the minimiser after T rounds, for strongly convex losses."""
    kept = 1 - setting.convexity * setting.rate / 2
    values = [
        kept**count * setting.start + setting.added * (1 - kept**count) / (1 - kept) if kept < 1 else float("inf")
        for count in rounds
    ]
    return Bound(
        theorem="Noble et al. 2022, lemma C.7 (strongly convex), summed",
        quantity="squared distance to the minimiser",
        rounds=tuple(rounds),
        values=tuple(values),
        conditions=setting.conditions,
    )
