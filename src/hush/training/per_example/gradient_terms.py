"""Gradient terms: what one use of a parameter contributes to each example's gradient, in the smallest known form.

A term gives the squared norm of each example's gradient and can add the gradients, each times a factor, to the sums of
the clients. Most never form a gradient: that of a linear layer is an outer product, whose norm is a product of norms.

Guarantees:
    - The norm of what an example adds to a sum is at most sqrt(square) * factor, but for four roundings of each number.
      Where a gradient is never formed, the rounding of its sum over positions is part of the square.
    - Exact squares are finite wherever the gradient is finite in float32.
    - `cleared` leaves nothing of the examples it drops: a factor of zero alone would not remove NaN.

Edge cases:
    - Several terms for one parameter (a shared weight, a layer called twice) merge into one before norms are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hush.training.clipping import squared_norms
from hush.training.per_example.batch_layout import BatchLayout

_HOLD = 8  # what storing one number and reading it twice costs, in multiplications


class Term(Protocol):
    """One parameter's gradients, of shape examples x parameter in principle."""

    @property
    def numbers(self) -> int:
        """How many numbers the term holds, of all examples."""
        ...

    def squares(self, exact: bool) -> Tensor:
        """The squared norm of each example's gradient, as `hush.training.clipping.squared_norms` has it."""
        ...

    def add(self, total: Tensor, factors: Tensor, clients: BatchLayout) -> None:
        """Add each gradient, times its factor, to its client's total (clients x parameter, in float64)."""
        ...

    def cleared(self, dropped: Tensor) -> Term:
        """The term with nothing in it of the examples that are dropped."""
        ...

    def full(self) -> DenseTerm:
        """The gradients themselves."""
        ...


@dataclass(frozen=True)
class DenseTerm:
    """Gradients as they are.

    Attributes:
        each: The gradients.
        known: Their exact squares, where those are known. The gradients then hold no NaN or Inf, though squares may.
    """

    each: Tensor
    known: Tensor | None = None

    @property
    def numbers(self) -> int:
        """How many numbers the term holds."""
        return self.each.numel()

    @property
    def rows(self) -> Tensor:
        """The gradients, examples x numbers of the parameter."""
        return self.each.flatten(1) if self.each.ndim > 1 else self.each[:, None]

    def squares(self, exact: bool) -> Tensor:
        """The squared norm of each example's gradient."""
        return squared_norms(self.rows, exact) if self.known is None else self.known

    def add(self, total: Tensor, factors: Tensor, clients: BatchLayout) -> None:
        """Add each gradient, times its factor, to its client's total."""
        clients.add_weighted(total, factors, self.each)

    def cleared(self, dropped: Tensor) -> DenseTerm:
        """The term with nothing in it of the examples that are dropped."""
        return self if self.known is not None else DenseTerm(_without(self.each, dropped))

    def full(self) -> DenseTerm:
        """The term itself."""
        return self


@dataclass(frozen=True)
class OuterProductTerm:
    """Gradients that are sums over positions of outer products, left' right: never formed.

    Attributes:
        left: Gradients for the outputs, examples x positions x outputs.
        right: Inputs, examples x positions x inputs.
        shape: That of the parameter.
        inputs: The part of the parameter that the inputs belong to, along each axis after that of the outputs; the
            gradient of the rest is zero. All of it if empty.
    """

    left: Tensor
    right: Tensor
    shape: tuple[int, ...]
    inputs: tuple[range, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers the term holds."""
        return self.left.numel() + self.right.numel()

    def squares(self, exact: bool) -> Tensor:
        """The squared norm of each example's gradient."""
        positions = self.left.shape[1]
        if positions == 1:
            return squared_norms(self.left[:, 0], exact).to(torch.float64) * squared_norms(self.right[:, 0], exact)
        left, right = (t.to(torch.float64) for t in (self.left, self.right))
        grams = [torch.bmm(t, t.transpose(1, 2)) for t in (left, right)]
        length = grams[0].diagonal(dim1=1, dim2=2).mul(grams[1].diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        # Rounding of these products first, then that of the sum over positions which `add` makes in its own type.
        terms = positions + left.shape[2] + right.shape[2]
        formed = (grams[0] * grams[1]).sum((1, 2)).clamp_min(0) + terms * _eps(left) * length.square()
        rounded: Tensor = formed.sqrt() + (positions + 2) * _eps(self.left) * length
        return rounded.square()

    def add(self, total: Tensor, factors: Tensor, clients: BatchLayout) -> None:
        """Add each gradient, times its factor, to its client's total."""
        scaled = self.left * factors[:, None, None]
        # Below the smallest normal number rounding is no longer relative, and a huge input would make it large again.
        scaled.masked_fill_(scaled.abs() < torch.finfo(scaled.dtype).tiny, 0.0)
        clients.add_outer(self._part(total), scaled, self.right)

    def cleared(self, dropped: Tensor) -> OuterProductTerm:
        """The term with nothing in it of the examples that are dropped."""
        return replace(self, left=_without(self.left, dropped), right=_without(self.right, dropped))

    def full(self) -> DenseTerm:
        """The gradients themselves."""
        each = torch.bmm(self.left.transpose(1, 2), self.right)
        if math.prod(each.shape[1:]) == math.prod(self.shape):
            return DenseTerm(each.view(len(self.left), *self.shape))
        whole = each.new_zeros(len(self.left), *self.shape)
        part = self._part(whole)
        part.copy_(each.view_as(part))
        return DenseTerm(whole)

    def _part(self, total: Tensor) -> Tensor:
        """The part of a tensor, n x parameter, that the gradients are added to."""
        return total[(slice(None), slice(None), *(slice(own.start, own.stop) for own in self.inputs))]


@dataclass(frozen=True, kw_only=True)
class SparseRowsTerm:
    """Gradients that touch a few rows of a table: examples x rows x width in principle.

    Attributes:
        example: Which example each part belongs to.
        row: Which row of the table it goes to; no pair of example and row occurs twice, but with a part of zero.
        part: The gradient of that row.
        examples: How many there are.
        rows: Rows of the table.
        places: How many parts each example has, one example after the other; zero if their numbers differ.
    """

    example: Tensor
    row: Tensor
    part: Tensor
    examples: int
    rows: int
    places: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers the term holds."""
        return self.part.numel()

    def squares(self, exact: bool) -> Tensor:
        """The squared norm of each example's gradient."""
        if self.places:
            return squared_norms(self.part, exact).to(torch.float64).view(-1, self.places).sum(1)
        total = torch.zeros(self.examples, dtype=torch.float64, device=self.part.device)
        return total.index_add_(0, self.example, squared_norms(self.part, exact).to(torch.float64))

    def add(self, total: Tensor, factors: Tensor, clients: BatchLayout) -> None:
        """Add each gradient, times its factor, to its client's total."""
        place = clients.owner[self.example] * self.rows + self.row
        scaled = self.part * factors[self.example, None]
        total += sums_by(scaled.double(), place, len(total) * self.rows).view_as(total)

    def cleared(self, dropped: Tensor) -> SparseRowsTerm:
        """The term with nothing in it of the examples that are dropped."""
        return replace(self, part=_without(self.part, dropped[self.example]))

    def full(self) -> DenseTerm:
        """The gradients themselves."""
        place = self.example * self.rows + self.row
        return DenseTerm(sums_by(self.part, place, self.examples * self.rows).view(self.examples, self.rows, -1))


@dataclass(frozen=True)
class PlacedTerm:
    """Gradients for some of a parameter's numbers, in another order.

    Attributes:
        inner: The gradients for these numbers.
        place: Puts numbers, n x shape, where they belong in n parameters.
        shape: That of these numbers.
    """

    inner: Term
    place: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many numbers the term holds."""
        return self.inner.numbers

    def squares(self, exact: bool) -> Tensor:
        """The squared norm of each example's gradient."""
        return self.inner.squares(exact)

    def add(self, total: Tensor, factors: Tensor, clients: BatchLayout) -> None:
        """Add each gradient, times its factor, to its client's total."""
        own = total.new_zeros(len(total), *self.shape)
        self.inner.add(own, factors, clients)
        total += self.place(own)

    def cleared(self, dropped: Tensor) -> PlacedTerm:
        """The term with nothing in it of the examples that are dropped."""
        return PlacedTerm(self.inner.cleared(dropped), self.place, self.shape)

    def full(self) -> DenseTerm:
        """The gradients themselves."""
        return DenseTerm(self.place(self.inner.full().each))


def products(left: Tensor, right: Tensor, shape: tuple[int, ...], low: torch.dtype | None = None) -> Term:
    """Gradients left' right, formed in the dtype in which layers multiply or as a product, whichever is less work."""
    if smaller_as_product(left.shape[1], left.shape[2], right.shape[2]):
        return OuterProductTerm(left, right, shape)
    return DenseTerm(_formed(left.transpose(1, 2), right, low).view(len(left), *shape))


def _formed(left: Tensor, right: Tensor, low: torch.dtype | None) -> Tensor:
    if low is None:
        return torch.bmm(left, right)
    if left.is_cuda:
        # Tensor cores add in float32: what they have is written as it is.
        return torch.bmm(left.to(low), right.to(low), out_dtype=torch.float32).to(left.dtype)
    return torch.bmm(left.to(low), right.to(low)).to(left.dtype)


def smaller_as_product(positions: int, outputs: int, inputs: int) -> bool:
    """Whether norms from the products of positions are less work than forming inputs x outputs gradients."""
    return positions == 1 or positions * positions * (inputs + outputs) < _HOLD * inputs * outputs


def merged(terms: Sequence[Term]) -> Term:
    """One term for all uses of a parameter."""
    if len(terms) == 1:
        return terms[0]
    outer = [term for term in terms if isinstance(term, OuterProductTerm)]
    if len(outer) == len(terms) and len({term.inputs for term in outer}) == 1:
        left, right = (torch.cat(parts, 1) for parts in ([t.left for t in outer], [t.right for t in outer]))
        term = replace(outer[0], left=left, right=right)
        return term if smaller_as_product(left.shape[1], left.shape[2], right.shape[2]) else term.full()
    return DenseTerm(torch.stack([term.full().each for term in terms]).sum(0))


def sums_by(parts: Tensor, place: Tensor, places: int) -> Tensor:
    """Sums of the parts (n x width) with the same place, in an order that does not change from run to run."""
    out: Tensor = torch.ops.aten.embedding_dense_backward(parts, place, places, -1, False)
    return out


def _without(t: Tensor, dropped: Tensor) -> Tensor:
    return torch.where(dropped.view(-1, *[1] * (t.ndim - 1)), 0.0, t)


def _eps(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps
