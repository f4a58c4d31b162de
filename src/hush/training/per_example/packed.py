"""Packed batches: clients one after the other, each with as many examples as it has. The layout for CPUs.

Guarantees:
    - Those of `hush.training.per_example.batch_layout`.
    - A client's numbers do not depend on the other clients in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from hush.privacy.sensitivity import partial_positions
from hush.training.clipping import summed_products
from hush.training.per_example import convolution
from hush.training.per_example.batch_layout import ConvolutionGradients, cast_to, flat_sums
from hush.training.per_example.convolution import Geometry

_FEW = 32  # weights for each output channel up to which a matrix product beats a convolution


@dataclass(frozen=True)
class PackedBatch:
    """A batch without padding.

    Attributes:
        clients: Whose examples these are.
        counts: How many each has.
        rows: How many examples each client's complete sum has, of which these may be a part.
        low: The dtype in which layers multiply, if not their own.
    """

    clients: Sequence[int]
    counts: Sequence[int]
    rows: Sequence[int]
    low: torch.dtype | None = None

    @cached_property
    def _parts(self) -> list[tuple[int, slice]]:
        ends = accumulate(self.counts)
        return [(c, slice(end - n, end)) for c, n, end in zip(self.clients, self.counts, ends, strict=True)]

    @cached_property
    def owner(self) -> Tensor:
        """The client number of each example."""
        return torch.tensor(self.clients).repeat_interleave(torch.tensor(self.counts))

    def expand(self, values: Tensor) -> Tensor:
        """Each client's value, repeated for each of its examples."""
        return values[self.clients[0] :][:1] if len(self.clients) == 1 else values[self.owner]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b along the last axis."""
        if x.ndim != 2:
            return self._map(lambda c, t: _by_rows(t, functional.linear, self._of(c, weight), self._maybe(c, bias)), x)
        # Outputs first: for few of them, products and all that follows are several times faster.
        rows, out = cast_to(x, self.low).t(), x.new_empty(weight.shape[1], len(x), dtype=self.low)
        for c, part in self._parts:
            if bias is None:
                torch.mm(self._of(c, weight), rows[:, part], out=out[:, part])
            else:
                torch.addmm(self._of(c, bias)[:, None], self._of(c, weight), rows[:, part], out=out[:, part])
        return out.t() if self.low is None else out.t().to(x.dtype)

    def linear_input(self, d: Tensor, weight: Tensor) -> Tensor:
        """d W along the last axis."""
        return self._map(lambda c, t: _by_rows(t, torch.mm, self._of(c, weight)), d)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        """The convolution."""
        return self._map(lambda c, t: convolution.forward(t, self._kernel(c, weight), self._maybe(c, bias), g), x)

    def convolve_input(self, d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        """Its gradient for the input."""
        return self._map(lambda c, t, like: convolution.input_gradient(t, like, self._kernel(c, weight), g), d, x)

    def convolve_each(self, x: Tensor, d: Tensor, g: Geometry) -> ConvolutionGradients:
        """Its weight gradient for each example."""
        few = g.groups == 1 and x.shape[1] * g.size <= _FEW
        each = convolution.each_by_columns if few else convolution.each_by_groups
        found = each(cast_to(x, self.low), cast_to(d, self.low), g).to(x.dtype)
        return ConvolutionGradients(found, d.sum(tuple(range(2, d.ndim))), None)

    def add_weighted(self, total: Tensor, factors: Tensor, each: Tensor) -> None:
        """Add each example's own tensor, times its factor, to its client's total."""
        flat = each.flatten(1) if each.ndim > 1 else each[:, None]
        for (c, part), rows in zip(self._parts, self.rows, strict=True):
            total[c].view(-1).add_(summed_products(factors[None, None, part], flat[None, part], rows)[0, 0])

    def add_outer(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left' right of each example (examples x positions x width each) to its client's total."""
        for (c, part), rows in zip(self._parts, self.rows, strict=True):
            if left.shape[1] == 1:
                found = summed_products(left[part].transpose(0, 2).transpose(0, 1), right[part].transpose(0, 1), rows)
                total[c].add_(found.view_as(total[c]))
                continue
            with flat_sums(total[c : c + 1]) as flat:
                most = partial_positions(rows)
                for some, seen in zip(left[part].split(most), right[part].split(most), strict=True):
                    flat[0].addmm_(some.flatten(0, 1).t().double(), seen.flatten(0, 1).double())

    def _map(self, function: Callable[..., Tensor], *batches: Tensor) -> Tensor:
        if len(self.clients) == 1:
            out = function(self.clients[0], *(cast_to(t, self.low) for t in batches))
        else:
            out = torch.cat([function(c, *(cast_to(t[part], self.low) for t in batches)) for c, part in self._parts])
        return out if self.low is None else out.to(batches[0].dtype)

    def _of(self, client: int, values: Tensor) -> Tensor:
        return cast_to(values[client], self.low)

    def _maybe(self, client: int, values: Tensor | None) -> Tensor | None:
        return None if values is None else self._of(client, values)

    def _kernel(self, client: int, weight: Tensor) -> Tensor:
        """The kernel with channels last, which the result inherits: pooling is then several times faster."""
        kernel = self._of(client, weight)
        # Cloned, because with a single channel `contiguous` sees nothing to do.
        return kernel.clone(memory_format=torch.channels_last) if kernel.ndim == 4 else kernel


def _by_rows(x: Tensor, product: Callable[..., Tensor], *factors: Tensor | None) -> Tensor:
    """The product of a matrix that has the last axis of a batch as rows.

    PyTorch's own products make one for each row where the axes of a batch lie in another order, as in attention.
    """
    found: Tensor = product(x.flatten(0, -2), *factors).unflatten(0, x.shape[:-1])
    return found
