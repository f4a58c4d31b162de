"""Adaptive clipping by a quantile (Andrew et al. 2021), on the norms of one batch or cohort."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def noisy_fraction(
    norms: Sequence[float], clip: float, count: float, deviation: float, draw: float, centred: bool = True
) -> float:
    """The noised share b of norms that are at most `clip`: (sum of b_i + deviation * draw) / count.

    With `centred`, 1/2 is taken from each b_i before the sum and given back after the division, so that one member
    moves the sum by 1/2 only and the number of members, where it is random, stays private: `count` is the expected
    number.
    """
    shift = 0.5 if centred else 0.0
    total = sum((1.0 if norm <= clip else 0.0) - shift for norm in norms)
    return (total + deviation * draw) / count + shift


def step(clip: float, fraction: float, quantile: float, rate: float) -> float:
    """C <- C exp(-rate (b - quantile)): the geometric update."""
    return clip * math.exp(-rate * (fraction - quantile))


def update_multiplier(z: float, deviation: float) -> float:
    """z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): noise on the sum that, with the count, costs what z alone would.

    `deviation` is sigma_b, the noise on the centred count, whose sensitivity is 1/2.
    """
    return (z**-2 - (2 * deviation) ** -2) ** -0.5


def run(
    norms: Sequence[Sequence[float]],
    clip: float,
    quantile: float,
    rate: float,
    count: float,
    deviation: float,
    draws: Sequence[float],
    centred: bool = True,
) -> list[float]:
    """The clip that is used in every round, the first being the given one, and the one after the last."""
    clips = [float(clip)]
    for here, draw in zip(norms, draws, strict=True):
        fraction = noisy_fraction(here, clips[-1], count, deviation, float(np.float64(draw)), centred)
        clips.append(step(clips[-1], fraction, quantile, rate))
    return clips
