"""Equally many examples of each client, padded, example by example: the arrangement for accelerators.

Example b of client c is number b * clients + c. In that order a batch of images is at the same time a batch with the
channels of all clients side by side, which is what a grouped convolution takes, and a matrix product of each client's
rows reads them where they are.

Guarantees:
    - Those of `hush.local.arrange`.

Edge cases:
    - Those of `hush.local.arrange`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from hush.local import convolve
from hush.local.arrange import Each, lowered
from hush.local.convolve import Geometry
from hush.local.precision import Precision, accelerated, low_type


@dataclass(frozen=True)
class Even:
    """An arrangement of equal parts.

    Attributes:
        clients: How many clients there are.
        examples: How many examples each has.
        device: Where the batch is.
        precision: How layers multiply.
    """

    clients: int
    examples: int
    device: torch.device
    precision: Precision = "float32"

    @cached_property
    def low(self) -> torch.dtype | None:
        """The type in which PyTorch's functions multiply, if not their own."""
        return low_type(self.precision)

    @cached_property
    def how(self) -> str:
        """How the kernels multiply: three short products are as exact as one in float32, and faster."""
        return "tf32x3" if self.precision == "float32" else self.precision

    @cached_property
    def launch(self) -> Any:
        """The kernels, where there are any."""
        return accelerated(self.device)

    @property
    def owner(self) -> Tensor:
        """The client number of each example."""
        return torch.arange(self.clients, device=self.device).repeat(self.examples)

    def spread(self, values: Tensor) -> Tensor:
        """Each client's value, for each of its examples."""
        return values.expand(self.examples, *values.shape).flatten(0, 1)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b along the last axis."""
        rows, columns = lowered(self._by_client(x), self.low), lowered(weight.transpose(1, 2), self.low)
        out = (
            torch.bmm(rows, columns) if bias is None else torch.baddbmm(lowered(bias[:, None], self.low), rows, columns)
        )
        return self._by_example(out, x)

    def linear_input(self, d: Tensor, weight: Tensor) -> Tensor:
        """d W along the last axis."""
        return self._by_example(torch.bmm(lowered(self._by_client(d), self.low), lowered(weight, self.low)), d)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        """The convolution."""
        if self._fast(x, weight.shape[1], g):
            return cast(Tensor, self.launch.forward(x, weight, bias, self.clients, g, self.how))
        shift = None if bias is None else lowered(bias.flatten(), self.low)
        out = convolve.forward(self._side_by_side(x), self._kernels(weight), shift, self._grouped(g))
        return self._apart(out, x)

    def convolve_input(self, d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        """Its gradient for the input."""
        if self._fast(x, weight.shape[1], g):
            return cast(Tensor, self.launch.input_gradient(d, x, weight, self.clients, g, self.how))
        d_all, like = self._side_by_side(d), self._side_by_side(x)
        return self._apart(convolve.input_gradient(d_all, like, self._kernels(weight), self._grouped(g)), x)

    def convolve_each(self, x: Tensor, d: Tensor, g: Geometry) -> Each:
        """Its weight gradient for each example."""
        if self._fast(x, d.shape[1], g):
            return Each(*self.launch.each(x, d, g, self.how))
        found = convolve.each_by_columns(lowered(x, self.low), lowered(d, self.low), g).to(x.dtype)
        return Each(found, d.sum(tuple(range(2, d.ndim))), None)

    def add_weighted(self, total: Tensor, factors: Tensor, each: Tensor) -> None:
        """Add each example's own tensor, times its factor, to its client's total."""
        rows = each.reshape(self.examples, self.clients, -1).transpose(0, 1)
        total.view(self.clients, 1, -1).baddbmm_(factors.view(self.examples, 1, self.clients).permute(2, 1, 0), rows)

    def add_outer(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left' right of each example (examples x positions x width each) to its client's total."""
        total.baddbmm_(self._by_client(left).transpose(1, 2), self._by_client(right))

    def _by_client(self, t: Tensor) -> Tensor:
        """Examples x ... x width as clients x rows x width."""
        apart = t.reshape(self.examples, self.clients, -1, t.shape[-1]).transpose(0, 1)
        return apart.flatten(1, 2)

    def _by_example(self, t: Tensor, like: Tensor) -> Tensor:
        """The way back: leading axes as those of `like`."""
        rows = t.view(self.clients, self.examples, -1, t.shape[-1]).transpose(0, 1)
        return rows.reshape(*like.shape[:-1], t.shape[-1]).to(like.dtype)

    def _fast(self, x: Tensor, outputs: int, g: Geometry) -> bool:
        return self.launch is not None and bool(self.launch.usable(x, outputs, g))

    def _side_by_side(self, t: Tensor) -> Tensor:
        return lowered(t, self.low).reshape(self.examples, -1, *t.shape[2:])

    def _apart(self, t: Tensor, like: Tensor) -> Tensor:
        return t.reshape(len(like), -1, *t.shape[2:]).to(like.dtype)

    def _kernels(self, weight: Tensor) -> Tensor:
        return lowered(weight, self.low).flatten(0, 1)

    def _grouped(self, g: Geometry) -> Geometry:
        return replace(g, groups=g.groups * self.clients)
