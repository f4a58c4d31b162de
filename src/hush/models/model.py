"""A model: a trainable module as a function of one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from hush.models.adapters import Adapters
from hush.models.isolation import TracedModule
from hush.models.isolation.dropout import with_keys
from hush.models.validation import check_global_hooks, copied
from hush.objective import CLASSIFICATION, Objective
from hush.types import Layout

_SPREAD = 0x1E3779B97F4A7C15  # so that the keys of probes differ in all of their bits


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trainable module, the fixed features in front of it, and its starting point.

    Attributes:
        name: What it is called in messages.
        module: Computes the logits.
        layout: The trainable parameters.
        start: Their values before training.
        features: Fixed features in front of the module, if any; those of a row depend on that row alone.
        features_shape: Of one row of them.
        features_key: What tells these features from others, for a cache of them; empty if nothing does.
        isolated: Whether it is a user's module, made safe by `hush.models.isolation`.
        source: That module as the user wrote it, with the same parameters, for its fingerprint.
        probes: Rows, none of them from the data, on which its isolation is checked again in every round.
        objective: What it is trained for: the loss of an example, and what outputs mean.
        training: What trains in place of the module, where that is something else: a module in training mode.
        keyed: Whether rows come with keys for dropout (`hush.models.isolation.dropout`).
        types: The types of the user's own tensors by name, where they are not float32.
        adapters: How a pretrained module was adapted, where adapters and head are all that is trained.
        encoder: The fingerprint of the frozen encoder that computes the features, if one does: the same everywhere.
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
    training: TracedModule | None = None
    keyed: bool = False
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    adapters: Adapters | None = None
    features_key: str = ""
    features_shape: tuple[int, ...] = ()
    encoder: str = ""

    def behind(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a row as it reaches the module, for stored rows of a shape."""
        return shape if self.features is None else self.features_shape

    @property
    def in_training(self) -> Model:
        """The model as it trains: with dropout, where it has any. Everything else evaluates the model as it is."""
        if self.training is None:
            return self
        model = replace(self, module=self.training, training=None, keyed=self.training.keyed)
        if not model.keyed or self.probes is None:
            return model
        return replace(model, probes=with_keys(self.probes, torch.arange(len(self.probes)) * _SPREAD))

    def with_keys(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """Return rows as the module takes them: with a key for each if it is keyed."""
        return x if keys is None or not self.keyed else with_keys(x, keys)

    def to(self, device: torch.device) -> None:
        """Move the modules and the loss to a device; the starting point stays where it is."""
        for module in (self.module, self.training):
            if module is not None:
                module.to(device)
        self.objective.loss.to(device)

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return the output for inputs `x` (already through `features`) at a flat parameter vector."""
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
    """Return a copy of a module as a model that starts from its present parameters. The module itself is not changed.

    An isolated module is a copy already.
    """
    check_global_hooks(name)
    module = module if isolated else copied(module, name)
    named = {key: value.detach().to(torch.float32) for key, value in module.named_parameters() if value.requires_grad}
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()))
    start = torch.cat([value.flatten() for value in named.values()])
    module.requires_grad_(False)
    return Model(name=name, module=module, layout=layout, start=start, features=features, isolated=isolated)
