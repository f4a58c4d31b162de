"""Sums of clipped gradients in whole numbers, for discrete noise: exact, whatever the order of addition.

Guarantees:
    - Each example adds a vector of integers whose norm, in units of the grid, is at most clip / grid: this is checked
      in integers, after rounding.
    - Integers add without error, so two neighbouring datasets differ by exactly one example's integers.

Edge cases:
    - Gradients are clipped to the clip less half the grid times sqrt(p), the most that rounding can add. A model so
      large, or noise so loud, that nothing is left of the clip is refused.
    - A masked example, or one whose gradient is not finite, adds nothing.
    - Every example's gradient is held in memory: for small models.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hush.local.fallback import gradients, taken
from hush.local.precision import Precision
from hush.models import Model
from hush.types import HushError


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
    precision: Precision = "float32",
) -> Tensor:
    """The clipped gradient sum of each client in units of its grid: clients x p, int64. See `fallback.sums`."""
    limits = clips - 0.5 * grids * math.sqrt(vectors.shape[1])
    if bool((limits <= 0).any()):
        raise HushError(f"privacy.discrete: {vectors.shape[1]:,} parameters are too many for this grid")
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros(vectors.shape, dtype=torch.int64, device=vectors.device)
    for start in range(0, mask.shape[1], width):
        part = slice(start, start + width)
        each = gradients(model, vectors, *taken(x, y, rows, part), precision)
        total += _rounded(each, mask[:, part], limits, clips, grids)
    return total


def _rounded(g: Tensor, mask: Tensor, limits: Tensor, clips: Tensor, grids: Tensor) -> Tensor:
    g = g.to(torch.float64)
    norms = torch.linalg.vector_norm(g, dim=-1)
    keep = mask & norms.isfinite()
    factors = (limits[:, None] / norms).clamp(max=1.0) / grids[:, None]
    scaled = torch.where(keep[..., None], g * factors[..., None], 0.0)
    whole = scaled.round().to(torch.int64)
    within = whole.square().sum(-1) <= (clips / grids).square().floor().to(torch.int64)[:, None]
    return torch.where(within[..., None], whole, 0).sum(1)
