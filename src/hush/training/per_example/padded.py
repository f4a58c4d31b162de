"""Padded batches: equally many examples of each client, example by example. The layout for GPUs.

Example b of client c is number b * clients + c. In that order a batch of images is at the same time a batch with the
channels of all clients side by side, which is what a grouped convolution takes, and a matrix product of each client's
rows reads them where they are. A product over several positions of each example does not: where there is no
convolution, example b of client c is number c * examples + b instead (`by_client`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from hush.privacy.sensitivity import partial_positions
from hush.training.clipping import summed_products
from hush.training.per_example import convolution
from hush.training.per_example.batch_layout import ConvolutionGradients, cast_to, flat_sums
from hush.training.per_example.convolution import Geometry
from hush.training.precision import Precision, low_dtype, triton_kernels, triton_precision


@dataclass(frozen=True, kw_only=True)
class PaddedBatch:
    """A batch with equally many examples of each client.

    Attributes:
        clients: How many clients there are.
        examples: How many examples each has.
        device: Where the batch is.
        rows: How many examples each client's complete sum has, of which these may be a part.
        precision: How layers multiply.
        by_client: Whether the examples lie client by client.
    """

    clients: int
    examples: int
    device: torch.device
    rows: int
    precision: Precision = "float32"
    by_client: bool = False

    @cached_property
    def low(self) -> torch.dtype | None:
        """The dtype in which PyTorch's functions multiply, if not their own."""
        return low_dtype(self.precision)

    @cached_property
    def how(self) -> str:
        """How Triton kernels multiply."""
        return triton_precision(self.precision)

    @cached_property
    def kernels(self) -> Any:
        """The Triton kernels for convolutions, or none if they cannot run on the device."""
        found = triton_kernels(self.device)
        return None if found is None else found.convolution

    @property
    def owner(self) -> Tensor:
        """The client number of each example."""
        numbers = torch.arange(self.clients, device=self.device)
        return numbers.repeat_interleave(self.examples) if self.by_client else numbers.repeat(self.examples)

    def expand(self, values: Tensor) -> Tensor:
        """Each client's value, repeated for each of its examples."""
        return self._merged(values[:, None].expand(-1, self.examples, *values.shape[1:]))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b along the last axis."""
        rows, columns = cast_to(self._by_client(x), self.low), cast_to(weight.transpose(1, 2), self.low)
        out = (
            torch.bmm(rows, columns) if bias is None else torch.baddbmm(cast_to(bias[:, None], self.low), rows, columns)
        )
        return self._by_example(out, x)

    def linear_input(self, d: Tensor, weight: Tensor) -> Tensor:
        """d W along the last axis."""
        return self._by_example(torch.bmm(cast_to(self._by_client(d), self.low), cast_to(weight, self.low)), d)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        """The convolution."""
        if self._fast(x, weight.shape[1], g):
            weights = self._weights(weight, x, g)
            return cast(Tensor, self.kernels.forward(x, weights, bias, self.clients, g, self.how))
        shift = None if bias is None else cast_to(bias.flatten(), self.low)
        out = convolution.forward(self._side_by_side(x), self._kernels(weight), shift, self._grouped(g))
        return self._apart(out, x)

    def convolve_input(self, d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        """Its gradient for the input."""
        if self._fast(x, weight.shape[1], g):
            weights = self._weights(weight, x, g)
            return cast(Tensor, self.kernels.input_gradient(d, x, weights, self.clients, g, self.how))
        d_all, like = self._side_by_side(d), self._side_by_side(x)
        return self._apart(convolution.input_gradient(d_all, like, self._kernels(weight), self._grouped(g)), x)

    def convolve_each(self, x: Tensor, d: Tensor, g: Geometry) -> ConvolutionGradients:
        """Its weight gradient for each example."""
        if self._fast(x, d.shape[1], g):
            return ConvolutionGradients(*self.kernels.each(x, d, g, self.how))
        found = convolution.each_by_columns(cast_to(x, self.low), cast_to(d, self.low), g).to(x.dtype)
        return ConvolutionGradients(found, d.sum(tuple(range(2, d.ndim))), None)

    def add_weighted(self, total: Tensor, factors: Tensor, each: Tensor) -> None:
        """Add each example's own tensor, times its factor, to its client's total."""
        flat, scale = (
            self._split(each).flatten(2) if each.ndim > 1 else self._split(each[:, None]),
            self._split(factors),
        )
        total.view(self.clients, 1, -1).add_(summed_products(scale[:, None], flat, self.rows))

    def add_outer(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left' right of each example (examples x positions x width each) to its client's total."""
        if left.shape[1] == 1:
            found = summed_products(self._by_client(left).transpose(1, 2), self._by_client(right), self.rows)
            total.add_(found.view_as(total))
            return
        most = left.shape[1] * partial_positions(self.rows)
        pairs = zip(self._by_client(left).split(most, 1), self._by_client(right).split(most, 1), strict=True)
        with flat_sums(total) as flat:
            for some, seen in pairs:
                flat.baddbmm_(some.transpose(1, 2).double(), seen.double())

    @cached_property
    def _laid_out(self) -> dict[object, Any]:
        """The weights of convolutions as the kernels take them, for the two passes over a batch."""
        return {}

    def _weights(self, weight: Tensor, x: Tensor, g: Geometry) -> Any:
        made = self.kernels.weights_of(weight, x, g)
        return self._laid_out.setdefault((weight.data_ptr(), weight.shape, made.taps), made)

    def _by_client(self, t: Tensor) -> Tensor:
        """Examples x ... x width as clients x rows x width."""
        return self._split(t).flatten(1, -2)

    def _by_example(self, t: Tensor, like: Tensor) -> Tensor:
        """The way back: leading axes as those of `like`."""
        rows = self._merged(t.view(self.clients, self.examples, -1, t.shape[-1]))
        return rows.reshape(*like.shape[:-1], t.shape[-1]).to(like.dtype)

    def _split(self, t: Tensor) -> Tensor:
        """Examples x ... as clients x examples x ...: no copy."""
        if self.by_client:
            apart: Tensor = t.unflatten(0, (self.clients, self.examples))
            return apart
        apart = t.unflatten(0, (self.examples, self.clients))
        return apart.transpose(0, 1)

    def _merged(self, t: Tensor) -> Tensor:
        """The way back."""
        return t.flatten(0, 1) if self.by_client else t.transpose(0, 1).flatten(0, 1)

    def _fast(self, x: Tensor, outputs: int, g: Geometry) -> bool:
        return not self.by_client and self.kernels is not None and bool(self.kernels.usable(x, outputs, g))

    def _side_by_side(self, t: Tensor) -> Tensor:
        return self._split(cast_to(t, self.low)).transpose(0, 1).flatten(1, 2)

    def _apart(self, t: Tensor, like: Tensor) -> Tensor:
        return self._merged(t.unflatten(1, (self.clients, -1)).transpose(0, 1)).to(like.dtype)

    def _kernels(self, weight: Tensor) -> Tensor:
        return cast_to(weight, self.low).flatten(0, 1)

    def _grouped(self, g: Geometry) -> Geometry:
        return replace(g, groups=g.groups * self.clients)
