"""Discrete sums: clipped gradients rounded to integers, for discrete Gaussian noise; exact in any order of addition.

Guarantees:
    - Each example adds a vector of integers whose norm, in units of the grid, is at most clip / grid: this is checked
      in integers, after rounding.
    - An example's integers are those of its gradient computed alone, in float64. A batch is computed together, which
      rounds differently in the last digits; where a number is so near a tie that this could matter (`_NEAR`), the
      example is computed alone. So integers do not depend on the other examples, and since integers add without error,
      two neighbouring datasets differ by exactly one example's integers.

Edge cases:
    - Gradients are clipped to the clip less half the grid times sqrt(p), the most that rounding can add. A model so
      large, or noise so strong, that nothing is left of the clip is refused.
    - A masked example, or one whose gradient is not finite, adds nothing.
    - Every example's gradient is formed: for small models.
    - Gradients whose float64 rounding exceeds `_NEAR` grid units (inputs of very different size, layer after layer) are
      outside the second guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hush.models import Model
from hush.training.eager import GroupSums, Keys, padded_rows
from hush.training.job import Job
from hush.training.per_example.vmap import VmapSum, averaged, gathered, gradients
from hush.types import HushError

_NEAR = 1e-6


class IntegerSum(VmapSum):
    """Integer sums for clients with discrete noise; any others among them are summed by vmap."""

    def sums_of(self, jobs: Sequence[Job]) -> GroupSums:
        """`integer_sums` over padded batches."""
        if not jobs[0].plan.discrete:
            return super().sums_of(jobs)
        grids = torch.tensor([job.plan.grid for job in jobs], dtype=torch.float64, device=jobs[0].vector.device)

        def sums(vectors: Tensor, rows: Sequence[Tensor], clips: Tensor, keys: Keys) -> Tensor:
            table, mask = padded_rows(rows, vectors.device)
            drawn = None if keys is None else padded_rows(keys, vectors.device)[0]
            own, size = grids[: len(vectors)], self.physical_batch
            return integer_sums(self.model, vectors, self.x, self.y, mask, clips, own, size, table, drawn)

        return sums


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
    keys: Tensor | None = None,
) -> Tensor:
    """Each client's clipped gradient sum in units of its grid, clients x p, int64; arguments as for `vmap_sums`."""
    limits = clips - 0.5 * grids * math.sqrt(vectors.shape[1])
    if bool((limits <= 0).any()):
        raise HushError(f"privacy.discrete: {vectors.shape[1]:,} parameters are too many for this grid")
    width = max(1, physical_batch // len(vectors))
    total = torch.zeros(vectors.shape, dtype=torch.int64, device=vectors.device)
    precise = vectors.double()
    for start in range(0, mask.shape[1], width):
        part = slice(start, start + width)
        inputs, truth = gathered(model, x, y, rows, keys, part)
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        several = averaged(rows)
        scaled = _scaled(gradients(model, precise, inputs, truth, several=several), mask[:, part], limits, grids)
        near = ((scaled - scaled.floor() - 0.5).abs() < _NEAR).any(-1)
        for client, at in near.nonzero().tolist():
            own, label = inputs[client, at][None, None], truth[client, at][None, None]
            one = gradients(model, precise[client][None], own, label, several=several)
            scaled[client, at] = _scaled(one, mask[client, at][None, None], limits[[client]], grids[[client]])[0, 0]
        total += _rounded(scaled, clips, grids)
    return total


def _scaled(each: Tensor, mask: Tensor, limits: Tensor, grids: Tensor) -> Tensor:
    """Clipped gradients in units of the grid, not yet rounded."""
    norms = torch.linalg.vector_norm(each, dim=-1)
    keep = mask & norms.isfinite()
    factors = (limits[:, None] / norms).clamp(max=1.0) / grids[:, None]
    return torch.where(keep[..., None], each * factors[..., None], 0.0)


def _rounded(scaled: Tensor, clips: Tensor, grids: Tensor) -> Tensor:
    integers = scaled.round().to(torch.int64)
    within = integers.square().sum(-1) <= (clips / grids).square().floor().to(torch.int64)[:, None]
    return torch.where(within[..., None], integers, 0).sum(1)
