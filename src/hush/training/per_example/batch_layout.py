"""Batch layouts: how the examples of several clients lie in one batch, and products with per-client weights.

A model's code sees one batch of examples along the first axis. Only layers with parameters know whose example is
whose, from a `BatchLayout`. There are two: `PackedBatch` for CPUs, where a product per client is as fast as one for all
and nothing is padded, and `PaddedBatch` for GPUs, where one launch must serve all clients.

Guarantees:
    - Both compute the same numbers but for rounding.
    - `add_weighted` and `add_outer` use the dtype of their operands and full precision, whatever `low` says: what an
      example adds to a sum has the norm that was computed, up to the rounding of that dtype. Totals are float64; the
      error of a sum is the one that `hush.privacy.sensitivity` states.

Edge cases:
    - A client may have no example in a batch, and a batch none at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hush.training.per_example.convolution import Geometry


class ConvolutionGradients(NamedTuple):
    """A convolution's gradients for each example.

    Attributes:
        weights: That of the weights.
        shifts: That of the biases: the sum over positions.
        squares: The squared norm of the first in float64, where the kernel computed it.
    """

    weights: Tensor
    shifts: Tensor
    squares: Tensor | None


class BatchLayout(Protocol):
    """Products of per-client weights (clients x ...) with a batch (examples x ...)."""

    @property
    def owner(self) -> Tensor:
        """The client number of each example."""
        ...

    @property
    def low(self) -> torch.dtype | None:
        """The dtype in which layers multiply, if not their own."""
        ...

    def expand(self, values: Tensor) -> Tensor:
        """Each client's value, repeated for each of its examples."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b along the last axis."""
        ...

    def linear_input(self, d: Tensor, weight: Tensor) -> Tensor:
        """d W along the last axis."""
        ...

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        """The convolution."""
        ...

    def convolve_input(self, d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        """Its gradient for the input."""
        ...

    def convolve_each(self, x: Tensor, d: Tensor, g: Geometry) -> ConvolutionGradients:
        """Its weight gradient for each example."""
        ...

    def add_weighted(self, total: Tensor, factors: Tensor, each: Tensor) -> None:
        """Add each example's own tensor, times its factor, to its client's total."""
        ...

    def add_outer(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left' right of each example (examples x positions x width each) to its client's total.

        The total is clients x outputs x the axes of the inputs, and may be a part of a larger tensor.
        """
        ...


@contextmanager
def flat_sums(total: Tensor) -> Iterator[Tensor]:
    """Sums to add to, clients x outputs x inputs: the total itself, or where its axes are apart, added to it after."""
    if total[0].is_contiguous():
        yield total.view(*total.shape[:2], -1)
        return
    flat = total.new_zeros(*total.shape[:2], math.prod(total.shape[2:]))
    yield flat
    total.add_(flat.view_as(total))


def cast_to(t: Tensor, low: torch.dtype | None) -> Tensor:
    """The tensor in the dtype in which layers multiply, if that is not its own."""
    return t if low is None else t.to(low)
