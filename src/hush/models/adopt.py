"""A user's own module: taken as it is, weights included, or refused with the reason."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch import nn

from hush.models.model import Model, wrap
from hush.seeds import rng
from hush.types import HushError

Shape = tuple[int, ...]
_MIXERS = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def adopt(module: nn.Module, shape: Shape, name: str = "custom") -> Model:
    """The module as a model, once it is known not to mix examples."""
    for path, part in module.named_modules():
        where = f"model {name}: layer {path or '(top)'} ({type(part).__name__})"
        if isinstance(part, _MIXERS):
            raise HushError(
                f"{where} mixes the examples of a batch, so no per-example clip can bound one example's influence; "
                "use GroupNorm, LayerNorm or InstanceNorm",
                "model.name",
            )
        if isinstance(part, _RANDOM) and getattr(part, "p", 1.0) > 0:
            raise HushError(f"{where} draws from global random state, so runs cannot repeat; remove it", "model.name")
    if next(iter(module.buffers()), None) is not None:
        raise HushError(f"model {name}: has buffers, which no update carries; use parameters only", "model.name")
    if not any(p.requires_grad for p in module.parameters()):
        raise HushError(f"model {name}: has no trainable parameters", "model.name")
    model = wrap(name, module, None)
    _probe(model, shape)
    return model


def imported(name: str, shape: Shape, classes: int) -> nn.Module:
    """What `module:factory` makes for these inputs; modules are looked for in the working directory too."""
    path, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(path), attribute)(shape, classes)
    except Exception as error:
        raise HushError(
            f"model.name: {name!r} cannot be used: {error}; expected module:factory, "
            "where factory(shape, classes) returns an nn.Module",
            "model.name",
        ) from None
    if not isinstance(made, nn.Module):
        raise HushError(f"model.name: {name!r} returned {type(made).__name__}, expected an nn.Module", "model.name")
    return made


def _probe(model: Model, shape: Shape) -> None:
    """Run two different examples together and apart: the outputs must not know of each other."""
    x = torch.from_numpy(rng(0, "probe").normal(size=(2, *shape))).to(torch.float32)
    try:
        together, alone = model.logits(model.start, x), model.logits(model.start, x[:1])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise HushError(f"model {model.name}: fails on inputs of shape {(2, *shape)}: {reason}", "model.name") from None
    if together.ndim != 2 or len(together) != 2:
        raise HushError(f"model {model.name}: expected one row of logits an example", "model.name")
    if not torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-4):
        raise HushError(f"model {model.name}: one example's output depends on the others in its batch", "model.name")
