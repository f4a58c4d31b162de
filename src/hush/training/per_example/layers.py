"""Layers with per-client parameters: their forward and backward pass, and the per-example gradients of each.

Guarantees:
    - A layer's output and gradients are those of PyTorch's own function with the client's weights, but for rounding.

Edge cases:
    - A sequence of inputs (more axes than examples x inputs) is summed over its positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hush.training.per_example import convolution, gradient_terms
from hush.training.per_example.batch_layout import BatchLayout
from hush.training.per_example.convolution import Geometry
from hush.training.per_example.gradient_terms import DenseTerm, OuterProductTerm, SparseRowsTerm, Term

Terms = list[tuple[str, Term]]
_PLACES = 1024  # of an example, up to which a product of places finds equal rows of a table


@dataclass(frozen=True)
class Parameter:
    """One parameter of all clients: clients x shape."""

    name: str
    values: Tensor


@dataclass(frozen=True)
class Linear:
    """x W' + b along the last axis."""

    clients: BatchLayout
    weight: Parameter
    bias: Parameter | None

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        return self.clients.linear(x, self.weight.values, _values(self.bias))

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """From the gradient for the output, that for the input."""
        return self.clients.linear_input(d, self.weight.values)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of each parameter."""
        left, right = (t[:, None] if t.ndim == 2 else t.flatten(1, -2) for t in (d, x))
        shape = tuple(self.weight.values.shape[1:])
        found: Terms = [(self.weight.name, gradient_terms.products(left, right, shape, self.clients.low))]
        if self.bias is not None:
            found.append((self.bias.name, DenseTerm(left.sum(1))))
        return found


@dataclass(frozen=True)
class Convolution:
    """A convolution along any number of axes."""

    clients: BatchLayout
    weight: Parameter
    bias: Parameter | None
    geometry: Geometry

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        return self.clients.convolve(x, self.weight.values, _values(self.bias), self.geometry)

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """From the gradient for the output, that for the input."""
        return self.clients.convolve_input(d, x, self.weight.values, self.geometry)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of each parameter."""
        taps = convolution.used_taps(self.geometry, tuple(x.shape[2:]), tuple(d.shape[2:]))
        positions, inputs = math.prod(d.shape[2:]), x.shape[1] * math.prod(map(len, taps))
        weights: Term
        if self.geometry.groups == 1 and gradient_terms.smaller_as_product(positions, d.shape[1], inputs):
            seen, left = convolution.columns(x, self.geometry, taps).transpose(1, 2), d.flatten(2).transpose(1, 2)
            weights = OuterProductTerm(left, seen, tuple(self.weight.values.shape[1:]), (range(x.shape[1]), *taps))
            shifts = left.sum(1)
        else:
            each, shifts, squares = self.clients.convolve_each(x, d, self.geometry)
            weights = DenseTerm(each, squares)
        found: Terms = [(self.weight.name, weights)]
        if self.bias is not None:
            found.append((self.bias.name, DenseTerm(shifts)))
        return found


@dataclass(frozen=True)
class TransposedConvolution:
    """The adjoint of a convolution: forward pass and input gradient change places, and so do inputs and gradients.

    Attributes:
        clients: Whose examples are where.
        weight: The kernels.
        bias: The shifts, if any.
        geometry: Of the convolution.
        more: Output padding.
    """

    clients: BatchLayout
    weight: Parameter
    bias: Parameter | None
    geometry: Geometry
    more: convolution.Sizes

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        channels = self.weight.values.shape[2] * self.geometry.groups
        like = x.new_empty(self.geometry.transposed_shape(x, channels, self.more))
        out = self.clients.convolve_input(x, like, self.weight.values, self.geometry)
        if self.bias is None:
            return out
        return out + self.clients.expand(self.bias.values).view(-1, channels, *[1] * (x.ndim - 2))

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """From the gradient for the output, that for the input."""
        return self.clients.convolve(d, self.weight.values, None, self.geometry)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of each parameter."""
        each, _, squares = self.clients.convolve_each(d, x, self.geometry)
        found: Terms = [(self.weight.name, DenseTerm(each, squares))]
        if self.bias is not None:
            found.append((self.bias.name, DenseTerm(d.sum(tuple(range(2, d.ndim))))))
        return found


@dataclass(frozen=True)
class Scale:
    """w x + b, number by number, for parameters along some axes of a batch.

    Attributes:
        clients: Whose examples are where.
        weight: The factors, if any.
        bias: The shifts, if any.
        first: The axis of the batch at which the parameters' axes begin.
    """

    clients: BatchLayout
    weight: Parameter | None
    bias: Parameter | None
    first: int

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        out = x if self.weight is None else x * self._expanded(self.weight, x)
        return out if self.bias is None else out + self._expanded(self.bias, x)

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """From the gradient for the output, that for the input."""
        return d if self.weight is None else d * self._expanded(self.weight, d)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of each parameter."""
        return [
            (parameter.name, DenseTerm(self._gathered(parameter, each)))
            for parameter, each in ((self.weight, d * x if self.weight else d), (self.bias, d))
            if parameter is not None
        ]

    def _expanded(self, parameter: Parameter, x: Tensor) -> Tensor:
        shape = parameter.values.shape[1:]
        return self.clients.expand(parameter.values).view(
            -1, *[1] * (self.first - 1), *shape, *[1] * (x.ndim - self.first - len(shape))
        )

    def _gathered(self, parameter: Parameter, each: Tensor) -> Tensor:
        own = range(self.first, self.first + parameter.values.ndim - 1)
        others = [axis for axis in range(1, each.ndim) if axis not in own]
        return each.sum(others) if others else each


@dataclass(frozen=True)
class Table:
    """Rows of a table, by number."""

    clients: BatchLayout
    weight: Parameter
    index: Tensor
    skipped: int | None

    def forward(self, x: Tensor) -> Tensor:
        """The output; the input is the index, which has no gradient."""
        owner = self.clients.owner.view(-1, *[1] * (self.index.ndim - 1))
        return self.weight.values[owner, self.index]

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """Never asked for."""
        return torch.zeros_like(x)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of each parameter: an example's equal rows come together."""
        size, width = self.weight.values.shape[1:]
        places = math.prod(self.index.shape[1:])
        if d.is_cuda and places <= _PLACES:
            index = self.index.remainder(size).reshape(len(self.index), places)
            return [(self.weight.name, equal_rows(index, d.reshape(*index.shape, width), size, self.skipped))]
        examples = torch.arange(len(self.index), device=d.device).view(-1, *[1] * (self.index.ndim - 1))
        # Negative numbers count from the end, as they did in the forward pass; the example must stay its own.
        pairs, place = (examples * size + self.index.remainder(size)).unique(return_inverse=True)
        part = gradient_terms.sums_by(d.reshape(-1, width), place.flatten(), len(pairs))
        row = pairs % size
        if self.skipped is not None:
            part = part.masked_fill((row == self.skipped)[:, None], 0.0)
        term = SparseRowsTerm(example=pairs // size, row=row, part=part, examples=len(self.index), rows=size)
        return [(self.weight.name, term)]


def equal_rows(index: Tensor, d: Tensor, size: int, skipped: int | None) -> SparseRowsTerm:
    """The gradients for rows of a table, examples x places, the equal rows of an example in the first of their places.

    Its shapes do not depend on the numbers, so that a step can be captured as a CUDA graph.
    """
    equal = index[:, :, None] == index[:, None, :]
    first = ~equal.tril(-1).any(2)
    part = torch.bmm((equal & first[:, :, None]).to(d.dtype), d)
    if skipped is not None:
        part = part.masked_fill((index == skipped)[..., None], 0.0)
    examples, places = index.shape
    owner = torch.arange(examples, device=d.device).repeat_interleave(places)
    return SparseRowsTerm(
        example=owner, row=index.flatten(), part=part.flatten(0, 1), examples=examples, rows=size, places=places
    )


@dataclass(frozen=True)
class Copies:
    """A copy of a parameter for each example, in front of operations without a rule of their own."""

    clients: BatchLayout
    parameter: Parameter

    def forward(self, x: Tensor) -> Tensor:
        """The copies, whatever the input."""
        return repeated(self.clients, self.parameter.values)

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """Never asked for."""
        return torch.zeros_like(x)

    def terms(self, d: Tensor, x: Tensor) -> Terms:
        """The gradients of the copies are those of the examples."""
        return [(self.parameter.name, DenseTerm(d))]


def repeated(clients: BatchLayout, values: Tensor) -> Tensor:
    """Each client's value for each of its examples."""
    return clients.expand(values).expand(len(clients.owner), *values.shape[1:])


def _values(parameter: Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.values
