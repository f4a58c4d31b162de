"""Models by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from hush.models import resnet, scattering
from hush.models.adopt import adopt, imported
from hush.models.model import Model, wrap
from hush.seeds import rng
from hush.types import HushError, unknown

if TYPE_CHECKING:
    from hush.config import ModelConfig

Shape = tuple[int, ...]


def build(config: ModelConfig, shape: Shape, classes: int, seed: int) -> Model:
    """A model for inputs of that shape; the starting point depends on the seed alone."""
    if ":" in config.name:
        return adopt(imported(config.name, shape, classes), shape, config.name)
    if config.name not in _BUILDERS:
        raise unknown("model.name", "model", config.name, names(), ", or module:factory for your own")
    features = scattering.features if config.name == "scattering-linear" else None
    if features is not None:
        _need_image(config.name, shape)
        shape = tuple(features(torch.zeros(1, *shape)).shape[1:])
    with torch.device("meta"):
        module = _BUILDERS[config.name](shape, classes, config)
    module = module.to_empty(device="cpu")
    _initialise(module, seed)
    return wrap(config.name, module, features)


def _need_image(name: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise HushError(f"model.name: {name} needs images, found inputs of shape {shape}", "model.name")


def _logreg(shape: Shape, classes: int, _: ModelConfig) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: Shape, classes: int, config: ModelConfig) -> nn.Module:
    width = config.hidden
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, classes))


def _cnn(shape: Shape, classes: int, _: ModelConfig) -> nn.Module:
    """Robust-HDP's two-layer network: 28,938 parameters for 28 x 28 x 1."""
    _need_image("cnn", shape)
    channels, height, width = shape
    if min(height, width) < 4:
        raise HushError(f"model.name: cnn needs images of at least 4 x 4, found {height} x {width}", "model.name")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes),
    )  # fmt: skip


def _resnet18(shape: Shape, classes: int, _: ModelConfig) -> nn.Module:
    _need_image("resnet18-gn", shape)
    return resnet.resnet18(shape[0], classes)


def _initialise(module: nn.Module, seed: int) -> None:
    """Uniform in +-1/sqrt(fan in) for weights and biases, one and zero for normalisation: PyTorch's own defaults."""
    with torch.no_grad():
        for path, part in module.named_modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                bound = 1.0 / math.sqrt(math.prod(part.weight.shape[1:]))
                for key, value in part.named_parameters(recurse=False):
                    drawn = rng(seed, "start", path, key).uniform(-bound, bound, tuple(value.shape))
                    value.copy_(torch.from_numpy(drawn))
            elif isinstance(part, nn.GroupNorm):
                part.weight.fill_(1.0)
                part.bias.zero_()


_BUILDERS: Mapping[str, Callable[[Shape, int, ModelConfig], nn.Module]] = {
    "logreg": _logreg,
    "mlp": _mlp,
    "cnn": _cnn,
    "scattering-linear": _logreg,
    "resnet18-gn": _resnet18,
}


def names() -> list[str]:
    """The models that can be named."""
    return sorted(_BUILDERS)
