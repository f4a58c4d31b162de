"""Private side queries on one client's rows: sums of bounded losses and gradient norms, ready to be noised.

Guarantees:
    - A row changes the loss sum of each model by at most `bound / 2`, added or removed, and by at most `bound`,
      replaced: losses are clipped to [0, bound] and lowered by half of it. This moves the sums of all models equally,
      so the best model stays the best.
    - So a row moves the vector of all sums by at most `bound sqrt(models) / 2` in the Euclidean norm.
    - A row's gradient norm depends on that row alone.

Edge cases:
    - A loss that is not a number counts as the bound.
    - A gradient that is not finite has a norm that is not: it is below no clip.
    - No rows: no norms, and sums of zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hush.models import Model
from hush.models.validation import check_global_hooks
from hush.training.per_example.vmap import gradients

_ROWS = 4096  # of which losses are computed at a time
_NUMBERS = 2**24  # of gradients in memory at a time


def bounded_losses(
    model: Model, vectors: Tensor, x: Tensor, y: Tensor, bound: float, weights: Tensor | None = None
) -> Tensor:
    """Return the sum of bounded losses over all rows, each times its weight if there are weights, for each model."""
    check_global_hooks(model.name)
    return torch.stack([_bounded_loss(model, vector, x, y, bound, weights) for vector in vectors])


def _bounded_loss(model: Model, vector: Tensor, x: Tensor, y: Tensor, bound: float, weights: Tensor | None) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(y), _ROWS):
        here = slice(start, start + _ROWS)
        losses = model.objective.loss(model.logits(vector, x[here]).double(), y[here], reduction="none")
        centred = losses.nan_to_num(nan=bound).clamp(0.0, bound) - 0.5 * bound
        total += (centred if weights is None else centred * weights[here].to(centred.device)).sum().cpu()
    return total


def gradient_norms(model: Model, vector: Tensor, x: Tensor, y: Tensor, several: bool = False) -> Tensor:
    """Return the norm of each row's gradient, in float64; with `several` rows in each example, of their mean."""
    width = max(1, _NUMBERS // vector.numel())
    parts = [(a, b) for a, b in zip(x.split(width), y.split(width), strict=True) if len(a)]
    each = (gradients(model, vector[None], a[None], b[None], several=several)[0] for a, b in parts)
    found = [torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64) for part in each]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
