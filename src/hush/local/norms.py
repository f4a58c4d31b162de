"""Norms of many short or long rows at once, never too small.

Guarantees:
    - A norm is at least the true one and at most 1e-5 larger (float32 rows), or exact to float64's rounding.

Edge cases:
    - Rows whose squares overflow float32, and rows of NaN or Inf, take the exact way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_STRETCH = 64  # squares that are summed in float32


def squares(rows: Tensor, exact: bool) -> Tensor:
    """Squared norms along the last axis (examples x width), in float64 if `exact`.

    Otherwise in the type of the rows, and `bounded` must make up for the rounding. A processor converts slowly, so
    rows are read once, in float32; only sums over stretches of them are float64.
    """
    if exact:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
        return norms.square_()
    width = rows.shape[1]
    whole = width // _STRETCH * _STRETCH
    # Squares below the smallest number vanish: as much is added for each.
    lost = width * torch.finfo(rows.dtype).tiny
    if not whole:
        return rows.square().sum(1).add_(lost)
    stretches: Tensor = rows[:, :whole].unflatten(1, (-1, _STRETCH))
    total = stretches.square().sum(2).sum(1, dtype=torch.float64).add_(lost)
    return total if whole == width else total.add_(rows[:, whole:].square().sum(1))


def bounded(total: Callable[[bool], Tensor], like: Tensor) -> Tensor:
    """Norms in float64 from sums of squares, or of products of two of them, of numbers like those of `like`.

    Args:
        total: The sums, exact or not.
        like: Any tensor of the type and on the device of the numbers.
    """
    if like.is_cuda or like.dtype == torch.float64:
        return total(True).sqrt_()
    quick = total(False).to(torch.float64)
    # A sum of n numbers is wrong by at most n roundings of half eps each; a product of two sums by twice that.
    norms = quick.mul_(1.0 + (_STRETCH + 8) * torch.finfo(like.dtype).eps).sqrt_()
    finite = norms.isfinite()
    return norms if bool(finite.all()) else torch.where(finite, norms, total(True).sqrt_())
