"""Small encoders, named in configs as `tests.support.encoders:...`."""

from __future__ import annotations

import torch
from torch import nn

from hush.seeds import rng

CALLS: list[int] = []


def wide() -> nn.Module:
    """Return random features of the 64 pixels of digits, with fixed weights."""
    return _of(64, 80)


def other() -> nn.Module:
    """Return the same with other weights."""
    return _of(64, 80, seed=1)


def _of(inputs: int, outputs: int, seed: int = 0) -> nn.Module:
    CALLS.append(outputs)
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(rng(seed, "encoder").normal(0, 0.25, (outputs, inputs))))
        layer.bias.zero_()
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU())
