"""How well each of several models fits one client's rows: sums of bounded losses, ready to be noised.

Guarantees:
    - A row changes the sum of each model by at most `bound / 2`, added or removed, and by at most `bound`, replaced:
      losses are cut to [0, bound] and lowered by half of it, which moves all sums alike: the best model stays best.
    - So a row moves the vector of all sums by at most `reach(bound, models)` in the Euclidean norm.

Edge cases:
    - A loss that is not a number counts as the bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from hush.models import Model

_AT_ONCE = 4096


def reach(bound: float, models: int) -> float:
    """How far one added or removed row can move the vector of sums."""
    return 0.5 * bound * math.sqrt(models)


def bounded_losses(model: Model, vectors: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """The sum for each model, over all rows."""
    return torch.stack([_sum(model, vector, x, y, bound) for vector in vectors])


def _sum(model: Model, vector: Tensor, x: Tensor, y: Tensor, bound: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for inputs, truth in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True):
        losses = functional.cross_entropy(model.logits(vector, inputs).double(), truth, reduction="none")
        total += (losses.nan_to_num(nan=bound).clamp(0.0, bound) - 0.5 * bound).sum().cpu()
    return total
