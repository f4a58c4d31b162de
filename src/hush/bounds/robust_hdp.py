"""Robust-HDP's bound (Malekmohammadi et al. 2024, theorem 3.2): the least squared gradient norm over the rounds.

It holds for any weights, so for all recipes that add weighted updates of local steps. Psi_sigma and Psi_p are those of
equation 54 in its proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hush.bounds.bound import Bound, Condition


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants of theorem 3.2.

    Attributes:
        steps: Each client's local steps per round, E_i.
        shares: The weight of each client in the loss, lambda_i.
        weights: The weight of each client in the aggregate of each round, w_i; that of an absent client is zero.
        smoothness: The Lipschitz constant of every gradient, beta.
        lipschitz: The Lipschitz constant of every client's loss, L_0.
        dissimilarity: How far the gradients of two clients are apart at most, sigma.
        variances: Of each client's noisy gradient, sigma_i^2: of its batches and its noise, over all parameters.
        lr: The local step size.
        gap: The loss at the start above its minimum.
    """

    steps: Sequence[int]
    shares: Sequence[float]
    weights: Sequence[Sequence[float]]
    smoothness: float
    lipschitz: float
    dissimilarity: float
    variances: Sequence[float]
    lr: float
    gap: float

    @property
    def from_noise(self) -> float:
        """Psi_sigma: what variance and heterogeneity add."""
        total, fourth = sum(self.steps), sum(each**4 for each in self.steps)
        third = sum(each**3 * own for each, own in zip(self.steps, self.variances, strict=True))
        second = sum(each**2 * own for each, own in zip(self.steps, self.variances, strict=True))
        drift = 6 * self.smoothness**2 * self.lr**2 * (1 + total) * (2 * fourth * self.dissimilarity**2 + third / 3)
        return drift + self.smoothness * self.lr * second

    @property
    def from_weights(self) -> float:
        """Psi_p: what weights add that are not those of the loss, and unequal numbers of steps; a mean over rounds."""
        return sum(map(self._from_weights, self.weights)) / len(self.weights)

    def _from_weights(self, weights: Sequence[float]) -> float:
        mean = sum(weight * each for weight, each in zip(weights, self.steps, strict=True))
        off = sum(
            each**2 * (weight - share) ** 2
            for each, weight, share in zip(self.steps, weights, self.shares, strict=True)
        )
        uneven = sum(share**2 for share in self.shares) * sum((each - mean) ** 2 for each in self.steps)
        return 8 * self.lipschitz**2 / 3 * (len(self.steps) * off + uneven)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The step sizes for which the theorem holds."""
        total, fourth = sum(self.steps), sum(each**4 for each in self.steps)
        return (
            Condition("local step size", self.lr, 1 / (6 * self.smoothness * max(self.steps))),
            Condition("local step size", self.lr, 1 / (12 * self.smoothness * math.sqrt((1 + total) * fourth))),
        )


def least_gradient(setting: Setting, rounds: Sequence[int]) -> Bound:
    """Return the bound on the least expected squared norm of the gradient before any of the first E rounds."""
    factor = 12 / (11 * min(setting.steps) - 7)
    constant = setting.from_noise + setting.from_weights
    return Bound(
        theorem="Malekmohammadi et al. 2024 (Robust-HDP), theorem 3.2",
        quantity="least squared norm of the gradient over the rounds",
        rounds=tuple(rounds),
        values=tuple(factor * (setting.gap / (count * setting.lr) + constant) for count in rounds),
        conditions=setting.conditions,
    )
