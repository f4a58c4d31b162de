"""Batches, a reference, and small helpers for the tests of clipped sums."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hush.models import Model
from hush.privacy.sensitivity import SLACK
from hush.training.per_example.vmap import gradients

Clip = TypeVar("Clip", float, Tensor)


def applied(clip: Clip) -> Clip:
    """Return the clip that factors are computed for, so that one row moves the computed sum by at most `clip`."""
    return clip / (1.0 + SLACK)


def double(model: Model) -> Model:
    return Model(name=model.name, module=model.module.double(), layout=model.layout, start=model.start.double())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def batch(
    model: Model, shape: tuple[int, ...], classes: int, clients: int = 3, examples: int = 6, tokens: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parameters, inputs (numbers below `tokens` if that is given), labels and mask."""
    rng = np.random.default_rng(3)
    vectors = model.start + 0.1 * random(clients, model.layout.size, seed=1).to(model.start.dtype)
    x = random(clients, examples, *shape, seed=2).to(model.start.dtype)
    if tokens:
        x = torch.from_numpy(rng.integers(0, tokens, (clients, examples, *shape)))
    y = torch.from_numpy(rng.integers(0, classes, (clients, examples)))
    return vectors, x, y, torch.from_numpy(rng.random((clients, examples)) < 0.7)


def reference(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """The clipped sums by definition, in float64."""
    each = gradients(model, vectors.double(), x.double() if x.is_floating_point() else x, y)
    return torch.einsum("cb,cbp->cp", (applied(clips)[:, None] / each.norm(dim=2)).clamp(max=1.0) * mask, each)
