"""The model zoo: models by name."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from hush.models import encoders, pretrained, resnet
from hush.models.adapters import Adapters, adapted, head_of
from hush.models.inputs import shapes_of
from hush.models.model import Model, wrap
from hush.models.user_module import from_user, imported
from hush.models.validation import check_memory, copied, seeded
from hush.seeds import rng
from hush.types import HushError, InputSpec, unknown

if TYPE_CHECKING:
    from hush.config import ModelConfig

Shape = tuple[int, ...]


def build_model(
    config: ModelConfig, shape: Shape, classes: int, seed: int, inputs: InputSpec | None = None,
    least: int | None = None,
) -> Model:  # fmt: skip
    """A model for inputs of that shape, or for rows that unpack into `inputs`; its start depends on the seed alone.

    `classes` is how many outputs it has; a factory of the user's own may make a module with `least` or more.
    """
    encoders.check(config)
    encoder = encoders.encoder_of(config, shape, inputs)
    if encoder is None:
        return _trained(config, shape, classes, seed, inputs, least)
    model = _trained(_behind(config), encoder.shape, classes, seed, None, least)
    name = config.name if config.encoder is None else f"{config.name} behind {config.encoder}"
    return replace(
        model, name=name, features=encoder.features, features_key=encoder.key, features_shape=encoder.shape,
        encoder=encoder.fingerprint,
    )  # fmt: skip


def _behind(config: ModelConfig) -> ModelConfig:
    """The settings of the model behind an encoder, whose weights and head are not its own."""
    return config if config.encoder is None else config.model_copy(update={"weights": None, "head": None})


def _trained(
    config: ModelConfig, shape: Shape, classes: int, seed: int, inputs: InputSpec | None, least: int | None
) -> Model:
    """The part of a model that is trained, for inputs of that shape."""
    if ":" in config.name:
        # Modules initialise themselves from PyTorch's global generator: with the seed, a run can be repeated.
        with seeded(seed):
            if config.name.startswith(pretrained.PREFIX):
                made = pretrained.hugging_face(config.name, config.weights, classes)
            else:
                made = imported(config.name, shapes_of(shape, inputs), classes)
                made = given_weights(made, config)
        adapters = adapters_of(config, seed)
        return from_user(made, shape, classes if least is None else least, config.name, inputs, adapters=adapters)
    if config.name not in _BUILDERS:
        raise unknown("model.name", "model", config.name, names(), ", or module:factory for your own")
    if inputs is not None and inputs.kind != "array":
        raise HushError(
            f"model.name: {config.name} takes one array, and the data has {len(inputs.parts)} inputs; accepted: a "
            "module of your own",
            "model.name",
        )
    described = _described(config, shape, classes)
    check_memory(_size(described), key=_size_key(config))
    module = _allocated(described)
    _initialise(module, seed)
    module, adapters = given_weights(module, config), adapters_of(config, seed)
    if adapters is not None:
        module = adapted(module, adapters)
    return replace(wrap(config.name, module, None), adapters=adapters)


def adapters_of(config: ModelConfig, seed: int) -> Adapters | None:
    """The adapters that a config asks for, if any."""
    if config.adapters == "none":
        return None
    return Adapters(
        kind=config.adapters, rank=config.rank, alpha=config.alpha, targets=config.targets, head=_named_head(config),
        seed=seed,
    )  # fmt: skip


def given_weights(module: nn.Module, config: ModelConfig) -> nn.Module:
    """A copy of a module with the weights that a config names; the module itself where it names none."""
    if config.weights is None:
        return module
    module = copied(module, config.name)
    pretrained.load_weights(module, config.weights, head_of(module, _named_head(config)))
    return module


def _named_head(config: ModelConfig) -> list[str] | None:
    return None if config.head == "linear" else config.head


def parameters(config: ModelConfig, shape: Shape, classes: int) -> int:
    """How many parameters such a model has, found without making any of them.

    0 for one of your own whose factory fails on the meta device, where tensors have shapes and no values, and for one
    behind an encoder: how large it is shows only once it is built.
    """
    if config.encoder is not None and config.encoder != encoders.SCATTERING:
        return 0
    if ":" in config.name:
        return _own_size(config.name, shape, classes)
    if config.name not in _BUILDERS:
        raise unknown("model.name", "model", config.name, names(), ", or module:factory for your own")
    encoder = encoders.encoder_of(config, shape)
    if encoder is not None:
        shape = encoder.shape
    return _size(_described(config, shape, classes))


def _described(config: ModelConfig, shape: Shape, classes: int) -> nn.Module:
    """The module on the meta device, where it takes no memory."""
    try:
        with torch.device("meta"):
            return _BUILDERS[config.name](shape, classes, config)
    except (OverflowError, RuntimeError, TypeError) as error:
        # Sizes that no tensor can have.
        reason, key = str(error).splitlines()[0], _size_key(config)
        raise HushError(
            f"{key}: {config.name} cannot be built at this size: {reason}; accepted: a smaller model", key
        ) from None


def _allocated(described: nn.Module) -> nn.Module:
    """The same module with memory on the CPU. PyTorch's `to_empty` imports its symbolic shapes first: half a second."""
    for part in described.modules():
        for name, value in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(torch.empty(value.shape, dtype=value.dtype)))
    return described


def _own_size(name: str, shape: Shape, classes: int) -> int:
    # Weights that a factory loads are dropped here, of which PyTorch warns; and it draws from the global generator.
    with warnings.catch_warnings(), seeded(0), torch.device("meta"), contextlib.suppress(HushError, RuntimeError):
        warnings.simplefilter("ignore")
        return _size(imported(name, shape, classes))
    return 0


def _size(module: nn.Module) -> int:
    return sum(math.prod(value.shape) for value in module.parameters())


def _size_key(config: ModelConfig) -> str:
    return "model.hidden" if config.name == "mlp" else "model.name"


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


def _resnet34(shape: Shape, classes: int, _: ModelConfig) -> nn.Module:
    _need_image("resnet34-gn", shape)
    return resnet.resnet34(shape[0], classes)


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
    "resnet34-gn": _resnet34,
}


def names() -> list[str]:
    """The models that can be named."""
    return sorted(_BUILDERS)
