"""Rows counted from a common centre: what all rows share then takes nothing of the clip, and less noise passes.

A linear model on x - m is a linear model on x with another bias, so a centre changes what is clipped and noised, and
nothing of what can be learned.

Guarantees:
    - A row moves `bounded_sum` by at most `bound`, added or removed.
    - `plain` gives the same outputs on the rows as they are as the model gives on centred ones.

Edge cases:
    - A row that is not finite adds nothing to the sum.
    - `shifted` copies the rows of each job: for the paths that do not know of centres.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hush.local.job import Job
from hush.local.linear import Closed, closed
from hush.models import Model
from hush.types import HushError

_AT_ONCE = 512


def bound(width: int) -> float:
    """The norm to which rows are cut before they are summed: that of inputs of unit variance."""
    return math.sqrt(width)


def bounded_sum(x: Tensor, limit: float) -> Tensor:
    """The sum of all rows, each cut to a norm, in float64."""
    total = torch.zeros(x[:1].numel(), dtype=torch.float64, device=x.device)
    for part in x.split(_AT_ONCE):
        rows = part.flatten(1).double()
        norms = rows.norm(dim=1)
        kept = norms.isfinite()
        scale = torch.where(kept, limit / norms.clamp_min(limit), 0.0)
        total += scale @ rows.masked_fill(~kept[:, None], 0.0)
    return total


def form_of(model: Model) -> Closed:
    """The linear layer that a centre needs, or an error that says so."""
    form = closed(model, torch.zeros(1, model.layout.shapes[0][-1]))
    if form is None or form.bias is None:
        raise HushError(
            f"recipe.protect.centre: needs a model that is one linear layer with a bias, found {model.name}; "
            "use logreg or scattering-linear, or centre = 0",
            "recipe.protect.centre",
        )
    return form


def plain(form: Closed, vectors: Tensor, centre: Tensor) -> Tensor:
    """Models, models x p, as they act on rows that are not centred."""
    moved = vectors.clone()
    weight, shift = form.parts(moved)
    if shift is not None:
        shift -= weight @ centre.to(weight)
    return moved


def shifted(x: Tensor, y: Tensor, jobs: Sequence[Job]) -> tuple[Tensor, Tensor, list[Job]]:
    """The rows of each job, centred, and the jobs on them."""
    rows, labels, moved, first = [], [], [], 0
    for job in jobs:
        own = slice(job.first_row, job.first_row + job.plan.samples)
        mine = x[own] if job.centre is None else x[own] - job.centre.to(x).view(x.shape[1:])
        rows.append(mine)
        labels.append(y[own])
        moved.append(replace(job, first_row=first, centre=None))
        first += job.plan.samples
    return torch.cat(rows), torch.cat(labels), moved
