"""Small models trained in a moment, of every kind of data and architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hush
from hush.models.validation import seeded
from hush.trained_model import TrainedModel

CONFIG: dict[str, Any] = {
    "seed": 3,
    "rounds": 2,
    "privacy": {"budgets": 8.0},
    "local": {"batch_size": 16, "lr": 0.5},
    "recipe": {"name": "dp-fedavg"},
}


class TokenNet(nn.Module):
    """A mean of embeddings, under a mask."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.last((self.embedding(tokens) * mask[..., None]).sum(1))
        return logits


class PartlyFrozen(nn.Module):
    """A frozen first layer with tied weights behind it, and a buffer."""

    scale: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.register_buffer("scale", torch.rand(4))
        self.first.requires_grad_(False)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        hidden = torch.tanh(self.second(torch.tanh(self.first(x)) * self.scale))
        logits: Tensor = self.last(torch.tanh(self.third(hidden)))
        return logits


def tokens(rows: int = 200) -> dict[str, Any]:
    """Token numbers and masks."""
    draw = np.random.default_rng(0)
    return {"tokens": draw.integers(0, 20, (rows, 6)), "mask": draw.random((rows, 6)) > 0.3}


def numbers(rows: int = 240, classes: int = 3) -> tuple[Any, Any]:
    """Rows in the plane and beyond, whose class depends on them."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, 4)).astype(np.float32)
    return x, np.abs(x).argmax(1) % classes


def fitted(out: Path, dataset: object = None, module: nn.Module | None = None, **changes: Any) -> TrainedModel:
    """The model of a run in a new directory."""
    config: dict[str, Any] = {**CONFIG, **changes}
    hush.simulate(config, dataset=dataset, model=module, out=out)
    return hush.load(out, model=module)
