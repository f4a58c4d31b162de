"""Inputs of a user's module: stored rows are unpacked into the tensor, tuple or dict that the module takes.

`UnpackedInputs` also takes the tensor of logits out of what the module returns (`hush.models.outputs`).

Guarantees:
    - Unpacking a batch works on each row by itself: slices, reshapes and type conversions that keep the first axis.
      The proof of isolation (`hush.models.isolation`) sees these operations in front of the module's own.
    - The parameters have the names that the user's module has for them.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hush.models.outputs import logits_of
from hush.models.validation import copied
from hush.seeds import rng
from hush.types import InputSpec, InputType

Shapes = tuple[int, ...] | tuple[tuple[int, ...], ...] | dict[str, tuple[int, ...]]
_TYPES = {"int64": torch.int64, "bool": torch.bool}


class UnpackedInputs(nn.Module):
    """A copy of a user's module that takes stored rows, and returns a tensor where its output has one.

    Without a specification, a row is the one array of real numbers that the module takes. A dict is passed by keyword
    where `forward` has parameters of these names, else as one dict. A tuple is passed as separate arguments where
    `forward` takes as many, else as one tuple.
    """

    def __init__(self, module: nn.Module, spec: InputSpec | None, name: str) -> None:
        super().__init__()
        own = copied(module, name)
        # Not as a submodule, which would change the names of the parameters: both have the same tables of them.
        self.__dict__["_own"] = own
        for table in ("_parameters", "_buffers", "_modules"):
            self.__dict__[table] = own.__dict__[table]
        self.spec = spec
        self.training = own.training
        self.spread = spec is not None and takes_separately(own, spec)

    @property
    def own(self) -> nn.Module:
        """The module that takes the unpacked inputs."""
        own: nn.Module = self.__dict__["_own"]
        return own

    def train(self, mode: bool = True) -> UnpackedInputs:
        """Set the mode of the user's module, which is not among the submodules, as well."""
        self.own.train(mode)
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Any:
        """Return the module's output for stored rows: its tensor of logits, or as it is if that is not clear."""
        output = self._output(x)
        found = logits_of(output)
        return output if found is None else found

    def _output(self, x: Tensor) -> Any:
        own = self.own
        if self.spec is None:
            return own(x)
        parts = unpack(x, self.spec)
        if self.spec.kind == "array":
            return own(parts[0])
        if self.spec.kind == "tuple":
            return own(*parts) if self.spread else own(tuple(parts))
        named = {part.name: value for part, value in zip(self.spec.parts, parts, strict=True)}
        return own(**named) if self.spread else own(named)


def unpack(x: Tensor, spec: InputSpec) -> list[Tensor]:
    """Return the inputs in stored rows, with their shapes and types. A single array is stored in its own shape."""
    if spec.kind == "array":
        return [_typed(x, spec.parts[0].dtype)]
    made, start = [], 0
    for part in spec.parts:
        values = x.narrow(1, start, part.size)
        values = values.unflatten(1, part.shape) if len(part.shape) > 1 else values
        values = values.squeeze(1) if not part.shape else values
        made.append(_typed(values, part.dtype))
        start += part.size
    return made


def shapes_of(shape: tuple[int, ...], spec: InputSpec | None) -> Shapes:
    """Return the shape of a row, or those of all its inputs, as a factory of modules receives it."""
    if spec is None or spec.kind == "array":
        return shape
    if spec.kind == "tuple":
        return tuple(part.shape for part in spec.parts)
    return {part.name: part.shape for part in spec.parts}


def example_rows(spec: InputSpec, count: int) -> Tensor:
    """Return example rows for a module: random numbers, or zeros and ones with a one first, as tokens and masks."""
    made = []
    for number, part in enumerate(spec.parts):
        drawn = rng(0, "example inputs", number).normal(size=(count, *part.shape))
        rows = torch.from_numpy(drawn).to(torch.float32)
        if part.dtype != "float32":
            rows = (rows > 0).to(torch.float32)
            rows.view(count, -1)[:, 0] = 1.0
        made.append(rows if spec.kind == "array" else rows.reshape(count, -1))
    return made[0] if spec.kind == "array" else torch.cat(made, dim=1)


def _typed(values: Tensor, kind: InputType) -> Tensor:
    """Convert a part to its type; real numbers keep their precision."""
    return values if kind == "float32" else values.to(_TYPES[kind])


def takes_separately(module: nn.Module, spec: InputSpec) -> bool:
    """Return whether the module takes several inputs as separate arguments."""
    try:
        signature = inspect.signature(module.forward)
        if spec.kind == "dict":
            signature.bind(**{part.name: None for part in spec.parts})
        else:
            signature.bind(*spec.parts)
    except (TypeError, ValueError):
        return False
    return True
