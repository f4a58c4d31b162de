"""The bar that a uniform number must stay below for a row to be chosen: one rule for every sampler, on every device.

Guarantees:
    - Of all numbers of 53 bits, a part of at most `rate` is below the bar, and less than 2^-53 less than that.

Edge cases:
    - A rate of 1 has a bar above every number: all rows are chosen.
"""

from __future__ import annotations

import math


def bar(rate: float) -> int:
    """What a uniform number of 53 bits must be below to be chosen at that rate, which counts rounded down."""
    return math.floor(math.ldexp(min(rate, 1.0), 53))
