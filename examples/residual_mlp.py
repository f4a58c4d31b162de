"""A network with residual connections: a custom model in one file."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """x + ReLU(W x + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The input, and what the layer adds to it."""
        return x + torch.relu(self.layer(x))


def residual_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network for examples of this shape."""
    width = 32
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), width), Residual(width), Residual(width), nn.Linear(width, classes)
    )
