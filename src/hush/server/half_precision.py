"""Half precision: models and updates as 16-bit numbers with a common exponent, so that half as much is sent.

Rounding an update that was released is post-processing, and a client trains on the model as it was sent, so rounding
costs no privacy and no bias: the update is what was added to the rounded model. A number keeps 11 bits, relative to
itself down to 2^-29 of the largest one. Simulations round in the same places, and so compute what a federation does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LARGEST = 65_504.0  # of a 16-bit number
_WIDE = 120  # a larger power of two is computed in float64
_TOP = 15  # the exponent of the largest number after scaling


def halved(vector: Tensor) -> tuple[Tensor, int]:
    """Return an update as 16-bit numbers, and the exponent of two by which they are multiplied."""
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    if not math.isfinite(largest) or largest == 0.0:
        return vector.half(), 0
    part, exponent = math.frexp(largest)
    # So that numbers which were rounded before, the largest up to a power of two, are not rounded again.
    exponent -= _TOP + (part == 0.5)
    return _times(vector, -exponent).half(), exponent


def restored(half: Tensor, exponent: int) -> Tensor:
    """Return the update, float32, exactly."""
    return _times(half.float(), exponent)


def _times(vector: Tensor, exponent: int) -> Tensor:
    """Return float32 numbers times a power of two, exactly where the result is a normal number."""
    if abs(exponent) < _WIDE:
        return vector * 2.0**exponent
    return (vector.double() * 2.0**exponent).float()


def rounded(vector: Tensor) -> Tensor:
    """Return an update as it is after it was sent."""
    return restored(*halved(vector))


def rounded_models(models: Tensor) -> Tensor:
    """Return models as they are after they were sent: float32, with the values of 16-bit numbers."""
    return models.clamp(-_LARGEST, _LARGEST).half().to(torch.float32)
