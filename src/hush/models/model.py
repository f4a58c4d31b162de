"""A trainable module as Hush sees it: a function of one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hush.types import Layout


@dataclass(frozen=True)
class Model:
    """A trainable module, the fixed features in front of it, and its starting point."""

    name: str
    module: nn.Module
    layout: Layout
    start: Tensor
    features: Callable[[Tensor], Tensor] | None = None

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """The output for inputs `x` (already through `features`) at a flat parameter vector."""
        out: Tensor = torch.func.functional_call(self.module, unflatten(vector, self.layout), (x,))
        return out


def unflatten(vector: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Split the last axis of a flat vector (or of a stack of them) into named tensors."""
    parts = vector.split(layout.sizes, dim=-1)
    return {
        name: part.reshape(*vector.shape[:-1], *shape)
        for name, part, shape in zip(layout.names, parts, layout.shapes, strict=True)
    }


def wrap(name: str, module: nn.Module, features: Callable[[Tensor], Tensor] | None) -> Model:
    """A module with the parameters it holds now as the starting point."""
    named = {key: value.detach().to(torch.float32) for key, value in module.named_parameters() if value.requires_grad}
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()))
    start = torch.cat([value.flatten() for value in named.values()])
    module.requires_grad_(False)
    return Model(name, module, layout, start, features)
