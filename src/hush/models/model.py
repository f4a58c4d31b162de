"""A model: a trainable module as a function of one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hush.models.validation import check_global_hooks, copied
from hush.objective import CLASSIFICATION, Objective
from hush.types import Layout


@dataclass(frozen=True)
class Model:
    """A trainable module, the fixed features in front of it, and its starting point.

    Attributes:
        name: What it is called in messages.
        module: Computes the logits.
        layout: The trainable parameters.
        start: Their values before training.
        features: Fixed features in front of the module, if any.
        isolated: Whether it is a user's module, made safe by `hush.models.isolation`.
        source: That module as the user wrote it, with the same parameters, for its fingerprint.
        probes: Rows, none of them from the data, on which its isolation is checked again in every round.
        objective: What it is trained for: the loss of an example, and what outputs mean.
    """

    name: str
    module: nn.Module
    layout: Layout
    start: Tensor
    features: Callable[[Tensor], Tensor] | None = None
    isolated: bool = False
    source: nn.Module | None = None
    probes: Tensor | None = None
    objective: Objective = CLASSIFICATION

    def to(self, device: torch.device) -> None:
        """Be ready to run on a device."""
        self.module.to(device)
        self.objective.loss.to(device)

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """The output for inputs `x` (already through `features`) at a flat parameter vector."""
        out: Tensor = torch.func.functional_call(self.module, unflatten(vector, self.layout), (x,))
        return out


def unflatten(vector: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Split the last axis of a flat vector (or of a stack of them) into named tensors."""
    parts = vector.split(layout.sizes, dim=-1)
    return {
        name: part.reshape((*vector.shape[:-1], *shape))
        for name, part, shape in zip(layout.names, parts, layout.shapes, strict=True)
    }


def wrap(name: str, module: nn.Module, features: Callable[[Tensor], Tensor] | None, *, isolated: bool = False) -> Model:
    """A copy of a module, with the parameters it holds now as the starting point. The module itself is not changed.

    An isolated module is a copy already.
    """
    check_global_hooks(name)
    module = module if isolated else copied(module, name)
    named = {key: value.detach().to(torch.float32) for key, value in module.named_parameters() if value.requires_grad}
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()))
    start = torch.cat([value.flatten() for value in named.values()])
    module.requires_grad_(False)
    return Model(name, module, layout, start, features, isolated)
