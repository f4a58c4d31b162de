"""Calibration: the least noise, or the most steps, for a cost that falls with noise and grows with steps.

Guarantees:
    What is returned was itself evaluated and costs at most the target. `least_noise` is within 0.1 % of the least
    where the cost falls at least as fast as the noise grows. `most_steps` is exact for a monotone cost.

Edge cases:
    A cost of 0 or infinity says which way to go but not how far: the search then halves or doubles.
    `least_noise` does not go below `floor`, and gives up with None above `ceiling`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TOLERANCE = 1e-3
_TRIES = 200


def least_noise(
    cost: Callable[[float], float], target: float, guess: float, *, floor: float, ceiling: float
) -> float | None:
    """The least noise whose cost is at most `target`: a secant on logarithms inside a bracket."""
    too_little, enough = 0.0, math.inf
    slope, last = 1.3, (0.0, 0.0)
    noise = min(max(guess, floor), ceiling)
    for tries in range(_TRIES):
        spent = cost(noise)
        if spent > target:
            too_little = noise
            if noise >= ceiling:
                return None
        else:
            enough = noise
            if noise <= floor or spent >= target * (1.0 - _TOLERANCE):
                return enough
        if enough < too_little * (1.0 + _TOLERANCE):
            return enough
        if 0.0 < spent < math.inf:
            if last[0] not in (0.0, noise):
                slope = max(0.3, math.log(last[1] / spent) / math.log(noise / last[0]))
            last = (noise, spent)
            # Aim between the two accepted bounds, so that a near miss is accepted.
            step = (spent / (target * (1.0 - 0.5 * _TOLERANCE))) ** (1.0 / slope)
        else:
            step = 2.0 if spent > target else 0.5
        noise = min(max(noise * min(max(step, 0.25), 4.0), floor), ceiling)
        # A strongly curved cost can mislead the secant method: bisect after a few attempts.
        if not too_little < noise < enough or (tries > 6 and 0.0 < too_little < enough < math.inf):
            noise = math.sqrt(too_little * enough)
    return None


def most_steps(cost: Callable[[int], float], target: float, guess: float, *, most: int) -> int:
    """The largest number of steps up to `most` whose cost is at most `target`; 0 if not even one is."""
    affordable, beyond = (0, 0.0), (most + 1, math.inf)
    steps = min(max(round(guess), 1), most)
    while beyond[0] - affordable[0] > 1:
        spent = cost(steps)
        if spent <= target:
            affordable = (steps, spent)
        else:
            beyond = (steps, spent)
        steps = min(max(_between(affordable, beyond, target), affordable[0] + 1), beyond[0] - 1)
    return affordable[0]


def _between(low: tuple[int, float], high: tuple[int, float], target: float) -> int:
    """Return where a power law through two costs meets the target, or an outward step if one of them is not known."""
    if low[1] == 0.0:
        return max(low[0], high[0] // 4)
    if high[1] == math.inf:
        return round(low[0] * max(2.0, min(16.0, (target / low[1]) ** 2)))
    share = math.log(target / low[1]) / math.log(high[1] / low[1])
    # Kept away from the ends, because a curved cost would otherwise converge slowly from one side.
    return round(low[0] * math.pow(high[0] / low[0], min(max(share, 0.02), 0.98)))
