"""The input mean: subtracting a privately estimated mean, so that the common mean does not use up the clipping norm.

A linear layer on x - m is a linear layer on x with another bias, so for a model that begins with one, subtracting a
mean changes what is clipped and noised, and nothing of what can be learned.

Guarantees:
    - A row moves `bounded_sum` by at most `bound`, added or removed.
    - `uncentred` gives the same outputs on the inputs as they are as the model gives on inputs less the mean.

Edge cases:
    - A row that is not finite adds nothing to the sum.
    - `subtracted` copies the rows of each job: for paths that do not subtract means on the fly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hush.models import Model
from hush.privacy.sensitivity import FLOAT64_SLACK
from hush.training.closed_form import LinearLayer, first_linear_layer
from hush.training.job import Job
from hush.types import HushError

_AT_ONCE = 512


def bound(width: int) -> float:
    """The norm to which rows are clipped before they are summed: that of inputs of unit variance."""
    return math.sqrt(width)


def bounded_sum(x: Tensor, limit: float, weights: Tensor | None = None) -> Tensor:
    """The sum of all rows, each clipped to a norm (less the sum's own rounding), in float64.

    With weights, each clipped row is multiplied by its own: a person whose rows' weights add up to one moves the sum by
    at most the bound.
    """
    limit /= 1.0 + FLOAT64_SLACK
    total = torch.zeros(x[:1].numel(), dtype=torch.float64, device=x.device)
    for start in range(0, len(x), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        rows = x[here].flatten(1).double()
        norms = rows.norm(dim=1)
        finite = norms.isfinite()
        scale = torch.where(finite, limit / norms.clamp_min(limit), 0.0)
        if weights is not None:
            scale *= weights[here].to(scale.device)
        total += scale @ rows.masked_fill(~finite[:, None], 0.0)
    return total


def applies(model: Model, inputs: Sequence[int]) -> bool:
    """Whether an input mean can be used with a model whose inputs have this shape, behind its fixed features."""
    layer = first_linear_layer(model)
    if layer is None or layer.bias is None or layer.width != math.prod(inputs):
        return False
    return layer.flattens or len(inputs) == 1


def linear_layer(model: Model) -> LinearLayer:
    """The linear layer into whose bias an input mean is folded; fails for a model without one."""
    layer = first_linear_layer(model)
    if layer is None or layer.bias is None:
        raise HushError(
            f"recipe.protect.centre: needs a model that begins with a linear layer with a bias, found {model.name}; "
            "use logreg, scattering-linear or mlp, or centre = 0",
            "recipe.protect.centre",
        )
    return layer


def uncentred(layer: LinearLayer, vectors: Tensor, mean: Tensor) -> Tensor:
    """Models, models x p, that give on inputs as they are what the given ones give on inputs less the mean."""
    moved = vectors.clone()
    weight, shift = layer.parts(moved)
    if shift is not None:
        shift -= weight @ mean.to(weight)
    return moved


def subtracted(x: Tensor, y: Tensor, jobs: Sequence[Job]) -> tuple[Tensor, Tensor, list[Job]]:
    """The rows and labels of each job, its input mean subtracted, and the jobs on them."""
    rows, labels, moved, first = [], [], [], 0
    for job in jobs:
        own = slice(job.first_row, job.first_row + job.rows)
        mine = x[own] if job.input_mean is None else x[own] - job.input_mean.to(x).view(x.shape[1:])
        rows.append(mine)
        labels.append(y[own])
        moved.append(replace(job, first_row=first, input_mean=None))
        first += job.rows
    return torch.cat(rows), torch.cat(labels), moved
