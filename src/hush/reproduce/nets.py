"""Networks of the papers that are not built-in models, and the encoder that was pretrained on public letters; a config
names them as `hush.reproduce.nets:...`.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from hush.seeds import rng


def pfa_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """PFA's network for MNIST: 26,010 parameters for 28 x 28 x 1."""
    channels, height, width = shape
    module = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * _side(height) * _side(width), 32), nn.ReLU(), nn.Linear(32, classes),
    )  # fmt: skip
    return _initialised(module)


def letter_encoder() -> nn.Module:
    """Return an encoder of 28 x 28 x 1 images with 256 features; `scripts/public_encoder.py` trains its weights."""
    return nn.Sequential(
        *_block(1, 32), nn.MaxPool2d(2),
        *_block(32, 64), *_block(64, 64), nn.MaxPool2d(2),
        *_block(64, 128), *_block(128, 128), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(512, 256), nn.ReLU(),
    )  # fmt: skip


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()


def _side(size: int) -> int:
    """The side length after two convolutions and two poolings."""
    return (size // 2 - 1 - 4) // 2


def _initialised(module: nn.Module) -> nn.Module:
    """Initialise equally in every run: PyTorch's default distribution, from a named stream."""
    with torch.no_grad():
        for path, part in module.named_modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                bound = 1.0 / math.sqrt(math.prod(part.weight.shape[1:]))
                for key, value in part.named_parameters(recurse=False):
                    value.copy_(torch.from_numpy(rng(0, "start", path, key).uniform(-bound, bound, tuple(value.shape))))
    return module
