"""Clipping per-example gradients: upper bounds on their norms, clip factors, and sums with bounded rounding.

Guarantees:
    - A norm is at least the true one and at most 1e-5 larger (float32 rows), or exact up to float64's rounding.
    - factor * norm <= clip / (1 + SLACK) with room for the roundings of a product: each number of a gradient may be
      rounded eight times on its way into a sum. `hush.privacy.sensitivity` says what the slack is for.
    - Factors are rounded toward zero, also where float32 has few digits left. An example's factor depends on its own
      norm and its client's clip alone.
    - `summed_products` is the sum of the products, in float64, with the error that `hush.privacy.sensitivity` states:
      partial sums over few enough examples are float32, the rest is float64.

Edge cases:
    - Rows whose squares overflow float32, and rows of NaN or Inf, get their norms in float64.
    - The factor of a norm that is not finite is zero, and so is that of a masked example.
    - A norm above `RANGE` clips is outside the range in which float32 keeps its digits: its factor is zero.
    - An infinite clip has factor one for every finite norm.
    - Float64 factors are multiplied and added in float64. Without examples a sum is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from hush.privacy.sensitivity import PARTIAL_ROWS, SLACK
from hush.training.precision import triton_kernels

RANGE = 2.0**100
_STRETCH = 64  # squares that are summed in float32
_AT_ONCE = 256  # examples that are converted to float64 at a time


def squared_norms(rows: Tensor, exact: bool) -> Tensor:
    """Return squared norms along the last axis (examples x width), in float64 if `exact`.

    Otherwise in the dtype of the rows, and `upper_norms` must make up for the rounding. A CPU converts slowly, so rows
    are read once, in float32; only sums over stretches of them are float64.
    """
    if exact:
        kernels = triton_kernels(rows.device)
        if kernels is not None and kernels.row_squares.usable(rows):
            return cast(Tensor, kernels.row_squares.row_squares(rows))
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
        return norms.square_()
    width = rows.shape[1]
    stretched = width // _STRETCH * _STRETCH
    # Squares below the smallest number vanish: as much is added for each.
    lost = width * torch.finfo(rows.dtype).tiny
    if not stretched:
        return rows.square().sum(1).add_(lost)
    stretches: Tensor = rows[:, :stretched].unflatten(1, (-1, _STRETCH))
    total = stretches.square().sum(2).sum(1, dtype=torch.float64).add_(lost)
    return total if stretched == width else total.add_(rows[:, stretched:].square().sum(1))


def upper_norms(total: Callable[[bool], Tensor], like: Tensor) -> Tensor:
    """Return norms in float64, never too small, from sums of squares, or of products of two of them.

    Args:
        total: The sums, exact or not.
        like: Any tensor of the dtype and on the device of the numbers that were squared.
    """
    if like.is_cuda or like.dtype == torch.float64:
        return total(True).sqrt_()
    quick = total(False).to(torch.float64)
    # A sum of n numbers is wrong by at most n roundings of half eps each; a product of two sums by twice that.
    norms = quick.mul_(1.0 + (_STRETCH + 8) * torch.finfo(like.dtype).eps).sqrt_()
    finite = norms.isfinite()
    return norms if bool(finite.all()) else torch.where(finite, norms, total(True).sqrt_())


def clip_factors(
    norms: Tensor, clips: Tensor, mask: Tensor | None, dtype: torch.dtype, finite: Tensor | None = None
) -> Tensor:
    """Return min(1, clip / norm) in that dtype, zero for rows to leave out; `finite` marks finite norms (float64)."""
    keep = norms.isfinite() if finite is None else finite
    if mask is not None:
        keep = keep & mask
    bound = clips * clip_margin(dtype)
    # Written so that an infinite clip keeps every finite norm.
    keep = keep & (norms / RANGE <= clips)
    exact = torch.where(keep, torch.where(norms > bound, bound / norms, 1.0), 0.0)
    near = exact.to(dtype)
    return torch.where(near > exact, torch.nextafter(near, torch.zeros_like(near)), near)


def clip_margin(dtype: torch.dtype) -> float:
    """Return the norm to which gradients are scaled, as a fraction of the clip."""
    return (1.0 - 4.0 * torch.finfo(dtype).eps) / (1.0 + SLACK)


def partial_rows(rows: int) -> int:
    """Return how many rows of a sum may be added in float32 at a time: that entry of `PARTIAL_ROWS`, or its last."""
    return PARTIAL_ROWS[min(rows, len(PARTIAL_ROWS) - 1)]


def summed_products(left: Tensor, right: Tensor, rows: int) -> Tensor:
    """Return products over examples, groups x outputs x inputs, in float64.

    Args:
        left: Factors of each example, groups x outputs x examples.
        right: What they multiply, groups x examples x inputs.
        rows: Examples in the complete sum of a group, of which these may be a part.
    """
    examples, most = left.shape[2], partial_rows(rows)
    if left.dtype == torch.float64 or examples <= most:
        return torch.bmm(left, right).double()
    if not most:
        parts = zip(left.split(_AT_ONCE, 2), right.split(_AT_ONCE, 1), strict=True)
        return torch.stack([torch.bmm(a.double(), b.double()) for a, b in parts]).sum(0)
    blocked = examples // most * most
    total = summed_blocks(left[..., :blocked].unflatten(2, (-1, most)).transpose(1, 2), right[:, :blocked])
    return total if blocked == examples else total.add_(torch.bmm(left[..., blocked:], right[:, blocked:]))


def summed_blocks(blocks: Tensor, right: Tensor) -> Tensor:
    """Return the same from factors that lie in blocks of examples, groups x blocks x outputs x examples."""
    products = torch.bmm(blocks.flatten(0, 1), right.reshape(-1, blocks.shape[3], right.shape[2]))
    total: Tensor = products.unflatten(0, blocks.shape[:2]).sum(1, dtype=torch.float64)
    return total
