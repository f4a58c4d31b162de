"""Batch axes: which axis of a tensor counts the examples, and sizes as multiples of the batch size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import sympy


class MixesExamplesError(Exception):
    """An operation for which it is not known that it keeps the examples of a batch apart."""


@dataclass(frozen=True)
class BatchAxis:
    """The axis of a tensor along which the examples lie.

    Its size is `outer * B * inner` for a batch of B, and index `(a * B + i) * inner + c` belongs to example i.

    Attributes:
        dim: The axis.
        outer: Copies of the batch, one after the other.
        inner: Neighbouring entries that belong to one example.
        numbers: Whether the values are the examples' own numbers, as `arange(B)` makes them.
    """

    dim: int
    outer: int = 1
    inner: int = 1
    numbers: bool = False

    def at(self, dim: int) -> BatchAxis:
        """Return the same axis at another place."""
        return replace(self, dim=dim)

    @property
    def grouping(self) -> tuple[int, int]:
        """How the examples lie along the axis."""
        return self.outer, self.inner


# What a value of a graph is known to be: a tensor whose examples lie along an axis, or one that depends on no example
# (parameters, constants, sizes); for an operation with several results, one of these each.
Tag = BatchAxis | None


@dataclass(frozen=True)
class BatchSize:
    """The symbol that stands for the batch size in an exported graph."""

    symbol: sympy.Symbol

    def factor(self, size: int | torch.SymInt) -> tuple[int, bool]:
        """Return (c, False) for a fixed size c and (c, True) for c * B; any other size is refused."""
        if isinstance(size, int):
            return size, False
        expression = size.node.expr
        if expression.is_Integer:
            return int(expression), False
        found = (expression / self.symbol).simplify()
        if found.is_Integer and expression.free_symbols == {self.symbol}:
            return int(found), True
        raise MixesExamplesError(f"the size {expression} is neither fixed nor a multiple of the batch size")

    def shape(self, tensor: torch.Tensor) -> list[tuple[int, bool]]:
        """Return `factor` of each axis."""
        return [self.factor(size) for size in tensor.shape]


def is_fixed(value: Any) -> bool:
    """Return whether a Python value does not depend on the batch size."""
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return not isinstance(value, symbolic) or not value.node.expr.free_symbols


def positive(dim: int, ndim: int) -> int:
    """Return the axis counted from the front."""
    return dim + ndim if dim < 0 else dim
