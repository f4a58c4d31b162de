"""RC-DPFL's bounds (Malekmohammadi et al. 2024, lemmas 4.1 and 4.2): the noise of an update, the overlap of clusters.

Theorem 4.3, on the rate at which the mixture is found, has no constants, and nothing to compute.
"""

from __future__ import annotations

import math


def update_variance(
    *, epochs: int, rows: int, batch: int, lr: float, parameters: int, clip: float, multiplier: float
) -> float:
    """Return equation 2: the variance of a client's update, over all parameters, where every gradient is clipped."""
    return epochs * rows * lr**2 * parameters * clip**2 * multiplier**2 / batch**3


def overlap(distance: float, variance: float, parameters: int) -> float:
    """Return lemma 4.2: the overlap of two clusters' updates, 2 Q(sqrt(p) Delta / (2 sigma)).

    Args:
        distance: Between the means of the two clusters.
        variance: Of an update, over all parameters.
        parameters: Of the model.
    """
    return math.erfc(math.sqrt(parameters) * distance / (2 * math.sqrt(2 * variance)))
