"""PFA's bound (Liu et al. 2022, theorem 3): the mean squared norm of the projected gradient over the steps.

As printed, the noise of the updates enters with the square of the step size alone. The variance of the mean of K noisy
steps adds L eta sigma / K as that of its batches does, so that for small steps the printed bound is too low: a
quadratic shows it. `printed = False` adds the term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hush.bounds.bound import Bound

CAVEAT = (
    "As printed it lacks the noise in the term of first order of the step size, and its condition (7) has constants "
    "that the paper does not define, so that it is not checked."
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants of theorem 3.

    Attributes:
        steps: Local steps between aggregations, tau.
        clients: The number of clients of a round, K.
        smoothness: The Lipschitz constant of the gradient, L.
        variance: The variance of one row's gradient, kappa^2.
        batch: The batch size, B.
        noise: The mean variance of the noise of a step, summed over the parameters, sigma bar.
        lr: The step size, eta.
        gap: The loss at the start above its minimum.
    """

    steps: int
    clients: int
    smoothness: float
    variance: float
    batch: int
    noise: float
    lr: float
    gap: float


def mean_gradient(setting: Setting, rounds: Sequence[int], printed: bool = True) -> Bound:
    """Return the bound on the mean squared norm of the projected gradient after these numbers of rounds."""
    count, rate = setting.clients, setting.lr * setting.smoothness
    spread = setting.variance / setting.batch
    drift = rate**2 * (setting.steps + 1) * (count + 2) / count * (spread + setting.noise)
    first = rate / count * (spread + (0.0 if printed else setting.noise))
    return Bound(
        theorem="Liu et al. 2022 (PFA), theorem 3" + ("" if printed else ", with the noise in its last term"),
        quantity="mean squared norm of the projected gradient over the steps",
        rounds=tuple(rounds),
        values=tuple(setting.gap / (setting.lr * setting.steps * each) + drift + first for each in rounds),
        caveat=CAVEAT if printed else "",
    )
