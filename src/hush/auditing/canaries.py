"""Canaries: rows inserted by an adversary, and the contribution of each to a sum of clipped gradients.

The gradient of a canary is longer than the clipping norm, so that it contributes as much as a row can, and it is nearly
orthogonal to those of other rows and canaries, so that its contribution to an update can be separated. Inputs are those
of the trained part of the model, behind its fixed features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from hush.models import Model
from hush.seeds import rng
from hush.training.queries import bounded_losses
from hush.types import Relation

_LOUD = 2.0
_DOUBLINGS = 12
_MOST_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Canaries:
    """Canary rows, and the rows that replace them if they are not included.

    Under `add-remove` the replacement is a row of NaN, which adds nothing to a sum, as if it were absent. Under
    `replace-one` it is a row whose gradient points in the opposite direction.
    """

    x: Tensor
    y: Tensor
    instead_x: Tensor
    instead_y: Tensor


@dataclass(frozen=True)
class Effects:
    """The change by each canary compared with its replacement, and the mean over all, in clipping norms."""

    gaps: Tensor
    middle: Tensor


def plant(model: Model, others: Tensor, *, clip: float, relation: Relation, count: int, seed: int) -> Canaries:
    """Return canaries for a client with these other rows."""
    shape = others.shape[1:]
    flat = others.flatten(1)
    size = float(flat.norm(dim=1).square().mean().sqrt()) if len(flat) else 1.0
    x = _directions(flat, math.prod(shape), count, seed).to(others).reshape(count, *shape) * (size or 1.0)
    turn = torch.arange(count, device=x.device) // math.prod(shape)
    factors = torch.ones(count, *[1] * len(shape), device=x.device)
    for _ in range(_DOUBLINGS):
        quiet = _norms(model, factors * x, _unlikely(model, factors * x, turn)) < _LOUD * clip
        if not bool(quiet.any()):
            break
        factors[quiet] *= 2.0
    x = factors * x
    y = _unlikely(model, x, turn)
    if relation == "replace-one":
        return _opposed(model, x, y, clip)
    return Canaries(x, y, torch.full_like(x, math.nan), y)


def effects(model: Model, start: Tensor, canaries: Canaries, clip: float) -> Effects:
    """Return the contributions of the canaries at a model that the server sends."""
    present = _clipped(model, start, canaries.x, canaries.y, clip)
    absent = _clipped(model, start, canaries.instead_x, canaries.instead_y, clip)
    return Effects(present - absent, 0.5 * (present + absent).sum(0))


def added(model: Model, start: Tensor, x: Tensor, y: Tensor, clip: float, weights: Tensor | None = None) -> Tensor:
    """Return the joint contribution of rows, in units of the clipping norm; with weights, each times its own."""
    total = torch.zeros_like(start)
    each = torch.ones(len(x)) if weights is None else weights
    done = 0
    for part_x, part_y in _parts(start, x, y):
        own = each[done : done + len(part_x)].to(start)
        total += own @ _clipped(model, start, part_x, part_y, clip)
        done += len(part_x)
    return total


def rivals(model: Model, start: Tensor, x: Tensor, y: Tensor, canary: Canaries, bound: float, count: int) -> Tensor:
    """Return models to choose from, count x p: the last fits the canary best, the others fit the rows of `x` by half a
    bound.

    The sums of losses, each clipped to the bound, differ by as much as a canary that changes them by the bound can
    reverse.
    """
    away = functional.normalize(_gradients(model, start, canary.x, canary.y), dim=1)[0]
    worse = torch.stack([_gradients(model, start, *part).mean(0) for part in _parts(start, x, y)]).mean(0)
    worse = functional.normalize(worse.nan_to_num(0.0), dim=0)

    def gap(length: float) -> float:
        pair = torch.stack([start + length * away, start - length * away])
        poor, good = bounded_losses(model, pair, canary.x, canary.y, bound)
        return float(poor - good)

    length = max((0.1 * 2.0**k for k in range(_DOUBLINGS)), key=gap)
    poor, good = start + length * away, start - length * away

    def pair(shift: float) -> Tensor:
        return torch.stack([poor + max(-shift, 0.0) * worse, good + max(shift, 0.0) * worse])

    def ahead(shift: float) -> float:
        usual, tempting = bounded_losses(model, pair(shift), x, y, bound)
        return float(tempting - usual)

    high = next((s for s in (0.1 * 2.0**k for k in range(2 * _DOUBLINGS)) if ahead(s) >= 0.5 * bound), 0.0)
    low = next((-s for s in (0.1 * 2.0**k for k in range(2 * _DOUBLINGS)) if ahead(-s) <= 0.5 * bound), 0.0)
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if ahead(middle) < 0.5 * bound else (low, middle)
    usual, tempting = pair(high)
    return torch.stack([usual] * (count - 1) + [tempting])


def _directions(others: Tensor, size: int, count: int, seed: int) -> Tensor:
    """Return unit vectors, orthogonal to each other if dimensions allow; a single one also to the other rows."""
    drawn = torch.from_numpy(rng(seed, "canaries").normal(size=(count, size)))
    if count == 1:
        if len(others) < min(size, 1024):
            known, _ = torch.linalg.qr(others.double().cpu().T)
            drawn -= (drawn @ known) @ known.T
        return functional.normalize(drawn, dim=1)
    return torch.cat([torch.linalg.qr(block.T)[0].T for block in drawn.split(size)])


def _unlikely(model: Model, x: Tensor, turn: Tensor) -> Tensor:
    """Return the target that the model expects least.

    Of classes the next one for each pass through the input space; real targets lie a unit beyond zero, on the other
    side of it, further for each pass.
    """
    out, objective = _outputs(model, x), model.objective
    if objective.task == "regression":
        side = torch.where(out > 0, -1.0, 1.0) * (1.0 + turn.to(out))[:, None]
        return side if objective.outputs > 1 else side[:, 0]
    if objective.task == "multilabel":
        return (out <= 0).to(torch.float32)
    if out.shape[1] == 1:
        return (out[:, 0] <= 0).to(torch.int64)
    ranks = out[:, : objective.classes or None].argsort(dim=1)
    return ranks.gather(1, (turn % ranks.shape[1])[:, None])[:, 0]


def _likely(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """The target that the model expects most; for real numbers the one as far on the other side of its output."""
    out, objective = _outputs(model, x), model.objective
    if objective.task == "regression":
        return 2.0 * out.view_as(y) - y
    found = objective.predictions(out)
    return found.to(torch.float32) if objective.task == "multilabel" else found


def _opposed(model: Model, x: Tensor, y: Tensor, clip: float) -> Canaries:
    """The opposite row: the negative, or the row itself under the most probable label, whichever is farther."""
    start = model.start.to(x.device)
    likely = _likely(model, x, y)
    present = _clipped(model, start, x, y, clip)
    negated = (present - _clipped(model, start, -x, y, clip)).norm(dim=1)
    relabelled = (present - _clipped(model, start, x, likely, clip)).norm(dim=1)
    turned = negated >= relabelled
    instead = torch.where(turned.reshape(-1, *[1] * (x.ndim - 1)), -x, x)
    return Canaries(x, y, instead, torch.where(turned.reshape(-1, *[1] * (y.ndim - 1)), y, likely))


def _outputs(model: Model, x: Tensor) -> Tensor:
    start = model.start.to(x.device)
    return torch.cat([model.logits(start, part) for part in x.split(256)])


def _clipped(model: Model, start: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Clipped gradients relative to the clipping norm, zero where not finite."""
    gradients = _gradients(model, start, x, y)
    gradients = torch.where(gradients.isfinite().all(1, keepdim=True), gradients, 0.0)
    norms: Tensor = gradients.norm(dim=1, keepdim=True)
    return gradients / norms.clamp(min=clip)


def _norms(model: Model, x: Tensor, y: Tensor) -> Tensor:
    start = model.start.to(x.device)
    return torch.cat([_gradients(model, start, *part).norm(dim=1) for part in _parts(start, x, y)])


def _gradients(model: Model, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
    def loss(at: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        return model.objective.loss(model.logits(at, one_x[None]), one_y[None], reduction="mean")

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    return torch.cat([each(vector, *part) for part in _parts(vector, x, y)])


def _parts(vector: Tensor, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return chunks whose gradients fit into memory together."""
    width = max(1, _MOST_NUMBERS // len(vector))
    return list(zip(x.split(width), y.split(width), strict=True))
