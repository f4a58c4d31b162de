"""Clients one after the other in a batch, each with as many examples as it has: the arrangement for processors.

Guarantees:
    - Those of `hush.local.arrange`.
    - A client's numbers do not depend on the other clients in the batch.

Edge cases:
    - Those of `hush.local.arrange`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from hush.local import convolve
from hush.local.arrange import Each, lowered
from hush.local.convolve import Geometry

_FEW = 32  # weights for each output channel up to which a matrix product beats a convolution


@dataclass(frozen=True)
class Ragged:
    """An arrangement without padding.

    Attributes:
        clients: Whose examples these are.
        counts: How many each has.
        low: The type in which layers multiply, if not their own.
    """

    clients: Sequence[int]
    counts: Sequence[int]
    low: torch.dtype | None = None

    @cached_property
    def _parts(self) -> list[tuple[int, slice]]:
        ends = accumulate(self.counts)
        return [(c, slice(end - n, end)) for c, n, end in zip(self.clients, self.counts, ends, strict=True)]

    @cached_property
    def owner(self) -> Tensor:
        """The client number of each example."""
        return torch.tensor(self.clients).repeat_interleave(torch.tensor(self.counts))

    def spread(self, values: Tensor) -> Tensor:
        """Each client's value, for each of its examples."""
        return values[self.clients[0] :][:1] if len(self.clients) == 1 else values[self.owner]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b along the last axis."""
        if x.ndim != 2:
            return self._map(lambda c, t: functional.linear(t, self._of(c, weight), self._maybe(c, bias)), x)
        # Outputs first: for few of them, products and all that follows are several times faster.
        rows, out = lowered(x, self.low).t(), x.new_empty(weight.shape[1], len(x), dtype=self.low)
        for c, part in self._parts:
            if bias is None:
                torch.mm(self._of(c, weight), rows[:, part], out=out[:, part])
            else:
                torch.addmm(self._of(c, bias)[:, None], self._of(c, weight), rows[:, part], out=out[:, part])
        return out.t() if self.low is None else out.t().to(x.dtype)

    def linear_input(self, d: Tensor, weight: Tensor) -> Tensor:
        """d W along the last axis."""
        return self._map(lambda c, t: t @ self._of(c, weight), d)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        """The convolution."""
        return self._map(lambda c, t: convolve.forward(t, self._kernel(c, weight), self._maybe(c, bias), g), x)

    def convolve_input(self, d: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        """Its gradient for the input."""
        return self._map(lambda c, t, like: convolve.input_gradient(t, like, self._kernel(c, weight), g), d, x)

    def convolve_each(self, x: Tensor, d: Tensor, g: Geometry) -> Each:
        """Its weight gradient for each example."""
        few = g.groups == 1 and x.shape[1] * g.size <= _FEW
        each = convolve.each_by_columns if few else convolve.each_by_groups
        found = each(lowered(x, self.low), lowered(d, self.low), g).to(x.dtype)
        return Each(found, d.sum(tuple(range(2, d.ndim))), None)

    def add_weighted(self, total: Tensor, factors: Tensor, each: Tensor) -> None:
        """Add each example's own tensor, times its factor, to its client's total."""
        rows = each.flatten(1)
        for c, part in self._parts:
            total[c].view(-1).addmv_(rows[part].t(), factors[part])

    def add_outer(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left' right of each example (examples x positions x width each) to its client's total."""
        for c, part in self._parts:
            total[c].addmm_(left[part].flatten(0, 1).t(), right[part].flatten(0, 1))

    def _map(self, function: Callable[..., Tensor], *batches: Tensor) -> Tensor:
        if len(self.clients) == 1:
            out = function(self.clients[0], *(lowered(t, self.low) for t in batches))
        else:
            out = torch.cat([function(c, *(lowered(t[part], self.low) for t in batches)) for c, part in self._parts])
        return out if self.low is None else out.to(batches[0].dtype)

    def _of(self, client: int, values: Tensor) -> Tensor:
        return lowered(values[client], self.low)

    def _maybe(self, client: int, values: Tensor | None) -> Tensor | None:
        return None if values is None else self._of(client, values)

    def _kernel(self, client: int, weight: Tensor) -> Tensor:
        """The kernel with channels last, which the result inherits: pooling is then several times faster."""
        kernel = self._of(client, weight)
        # Cloned, because with a single channel `contiguous` sees nothing to do.
        return kernel.clone(memory_format=torch.channels_last) if kernel.ndim == 4 else kernel
