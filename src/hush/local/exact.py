"""Sums of clipped gradients in whole numbers, for discrete noise: exact, whatever the order of addition.

Guarantees:
    - Each example adds a vector of integers whose norm, in units of the grid, is at most clip / grid: this is checked
      in integers, after rounding.
    - An example's integers are those of its gradient computed alone, in float64. A batch is computed together, which
      rounds differently in the last digits; where a number is so near a tie that this could matter (`_NEAR`), the
      example is computed alone. So integers do not depend on who is beside an example, and since integers add without
      error, two neighbouring datasets differ by exactly one example's integers.

Edge cases:
    - Gradients are clipped to the clip less half the grid times sqrt(p), the most that rounding can add. A model so
      large, or noise so loud, that nothing is left of the clip is refused.
    - A masked example, or one whose gradient is not finite, adds nothing.
    - Every example's gradient is held in memory: for small models.
    - Gradients whose float64 rounding exceeds `_NEAR` grid units (inputs of very different size, layer after layer) are
      outside the second guarantee.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.local.fallback import gradients, taken
from hush.models import Model
from hush.types import HushError

_NEAR = 1e-6


def integer_sums(
    model: Model,
    vectors: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    clips: Tensor,
    grids: Tensor,
    physical_batch: int,
    rows: Tensor | None = None,
) -> Tensor:
    """The clipped gradient sum of each client in units of its grid: clients x p, int64. See `fallback.sums`."""
    limits = clips - 0.5 * grids * math.sqrt(vectors.shape[1])
    if bool((limits <= 0).any()):
        raise HushError(f"privacy.discrete: {vectors.shape[1]:,} parameters are too many for this grid")
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros(vectors.shape, dtype=torch.int64, device=vectors.device)
    precise = vectors.double()
    for start in range(0, mask.shape[1], width):
        part = slice(start, start + width)
        inputs, truth = taken(x, y, rows, part)
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        scaled = _scaled(gradients(model, precise, inputs, truth), mask[:, part], limits, grids)
        near = ((scaled - scaled.floor() - 0.5).abs() < _NEAR).any(-1)
        for client, at in near.nonzero().tolist():
            one = gradients(model, precise[client][None], inputs[client, at][None, None], truth[client, at][None, None])
            scaled[client, at] = _scaled(one, mask[client, at][None, None], limits[[client]], grids[[client]])[0, 0]
        total += _whole(scaled, clips, grids)
    return total


def _scaled(each: Tensor, mask: Tensor, limits: Tensor, grids: Tensor) -> Tensor:
    """Clipped gradients in units of the grid, before they are rounded."""
    norms = torch.linalg.vector_norm(each, dim=-1)
    keep = mask & norms.isfinite()
    factors = (limits[:, None] / norms).clamp(max=1.0) / grids[:, None]
    return torch.where(keep[..., None], each * factors[..., None], 0.0)


def _whole(scaled: Tensor, clips: Tensor, grids: Tensor) -> Tensor:
    whole = scaled.round().to(torch.int64)
    within = whole.square().sum(-1) <= (clips / grids).square().floor().to(torch.int64)[:, None]
    return torch.where(within[..., None], whole, 0).sum(1)
