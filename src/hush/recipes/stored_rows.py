"""Stored rows: the updates of a round that stay where they were computed, in files or on the workers of a cluster.

Guarantees:
    - `StoredRows` forms sums block by block in float64: what they are to seven digits does not depend on blocks, and
      where the blocks are equal, not at all on where they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hush.recipes.context import Columns, Rows
from hush.types import Layout


class RowStore(Protocol):
    """Where rows are stored: in memory, on a disk, or by the workers of a cluster, in blocks of consecutive rows."""

    @property
    def counts(self) -> Sequence[int]:
        """The number of rows in each block."""
        ...

    @property
    def parameters(self) -> int:
        """The number of columns."""
        ...

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""
        ...

    def columns(self, chosen: Sequence[Tensor], which: Columns) -> list[Tensor]:
        """Return some columns of the chosen rows of each block."""
        ...

    def combined(self, weights: Sequence[Tensor], layout: Layout | None) -> Tensor:
        """Return the sum over all blocks of `summed` (weights k x rows), or with a layout of `summed_parts`."""
        ...

    def block(self, number: int) -> Tensor:
        """Return one block."""
        ...


def chosen_columns(block: Tensor, own: Tensor, which: Columns) -> Tensor:
    """Return some columns of some rows of a block. Other rows are not read: time is in proportion to what is chosen."""
    if 2 * len(own) > len(block):
        return which.of(block)[own]
    return torch.cat([which.of(block[:0]), *(which.of(block[row : row + 1]) for row in own.tolist())])


def summed(block: Tensor, weights: Tensor) -> Tensor:
    """Return sums of a block's rows in float64, k x p, formed in the precision of the block."""
    return (weights.to(block.dtype) @ block).double()


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRows(Rows):
    """Rows of a store: some of them, scaled and moved as asked for. Nothing of this touches the store.

    Attributes:
        store: Where they are.
        chosen: The number of each row in the store.
        factors: What each row is multiplied by.
        models: The models between which rows are moved, models x p, if they are.
        worked: The model that each row was computed on.
        to: The model that each is moved to.
    """

    store: RowStore
    chosen: Tensor
    factors: Tensor
    models: Tensor | None = None
    worked: tuple[int, ...] = ()
    to: tuple[int, ...] = ()

    @classmethod
    def of(cls, store: RowStore) -> StoredRows:
        """Return all rows of a store."""
        total = sum(store.counts)
        return cls(store=store, chosen=torch.arange(total), factors=torch.ones(total, dtype=torch.float64))

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        return len(self.chosen), self.store.parameters

    def take(self, chosen: Tensor) -> Rows:
        """Return some of the rows."""
        at = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen
        worked = tuple(self.worked[i] for i in at.tolist()) if self.worked else ()
        to = tuple(self.to[i] for i in at.tolist()) if self.to else ()
        return replace(self, chosen=self.chosen[at], factors=self.factors[at], worked=worked, to=to)

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64; of moved rows, computed anew."""
        if self.models is None:
            return self.store.norms()[self.chosen] * self.factors
        return torch.cat([block.double().norm(dim=1) for _, block in self.blocks()])

    def scaled(self, factors: Tensor) -> Rows:
        """Return the rows times a factor each."""
        if self.models is not None:
            raise ValueError("rows are scaled before they are moved")
        return replace(self, factors=self.factors * factors)

    def rebased(self, models: Tensor, worked: Sequence[int], to: Sequence[int]) -> Rows:
        """Return the rows as updates of other models."""
        if list(worked) == list(to):
            return self
        return replace(self, models=models, worked=tuple(worked), to=tuple(to))

    def columns(self, which: Columns) -> Tensor:
        """Return some columns of all rows, gathered."""
        numbers = self._by_block(torch.arange(len(self.chosen)))
        found = self.store.columns([self.chosen[at] - first for at, first in numbers], which)
        out = torch.empty(len(self.chosen), found[0].shape[1], dtype=found[0].dtype)
        for (at, _), part in zip(numbers, found, strict=True):
            out[at] = part
        if bool((self.factors != 1).any()):
            out *= self.factors[:, None].to(out.dtype)
        if self.models is not None:
            moved = which.of(self.models)
            out += moved[list(self.worked)] - moved[list(self.to)]
        return out

    def combined(self, weights: Tensor) -> Tensor:
        """Return the sum of the rows with one weight each (p), or with several (k x p)."""
        several = weights.double().reshape(-1, len(self.chosen))
        total = self.store.combined(self._spread(several * self.factors), None)
        if self.models is not None:
            total += self._moves(several) @ self.models.double()
        return total.float().reshape(*weights.shape[:-1], -1)

    def combined_parts(self, weights: Tensor, layout: Layout) -> Tensor:
        """Return sums of the rows, with weights of their own in each tensor."""
        several = weights.double()
        total = self.store.combined(self._spread(several * self.factors), layout)
        if self.models is not None:
            parts = zip(several, self.models.double().split(layout.sizes, dim=1), strict=True)
            total += torch.cat([self._moves(own) @ part for own, part in parts], dim=1)
        return total

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows, a block at a time, with their places, where rows are in the order of the store."""
        if bool((self.chosen.diff() <= 0).any()):
            raise ValueError("blocks are read in the order of the store")
        begun = 0
        for number, (at, first) in enumerate(self._by_block(torch.arange(len(self.chosen)))):
            if not len(at):
                continue
            block = self.store.block(number)[self.chosen[at] - first]
            block = block * self.factors[at, None].to(block.dtype)
            if self.models is not None:
                block += torch.stack([self.models[self.worked[i]] - self.models[self.to[i]] for i in at.tolist()])
            yield slice(begun, begun + len(at)), block
            begun += len(at)

    def _by_block(self, places: Tensor) -> list[tuple[Tensor, int]]:
        """Return which rows each block has, and the number of its first row in the store."""
        counts = torch.tensor(list(self.store.counts))
        ends = counts.cumsum(0)
        of = torch.bucketize(self.chosen, ends, right=True)
        parts = places[of.argsort(stable=True)].split(torch.bincount(of, minlength=len(counts)).tolist())
        return list(zip(parts, (ends - counts).tolist(), strict=True))

    def _spread(self, weights: Tensor) -> list[Tensor]:
        """Return weights of these rows as weights of all rows of each block."""
        counts = list(self.store.counts)
        everyone = torch.zeros(*weights.shape[:-1], sum(counts), dtype=torch.float64)
        everyone[..., self.chosen] = weights
        return list(everyone.split(counts, dim=-1))

    def _moves(self, weights: Tensor) -> Tensor:
        """Return how often each model is added, less how often it is taken away: k x models."""
        assert self.models is not None
        counted = torch.zeros(len(weights), len(self.models), dtype=torch.float64)
        counted.index_add_(1, torch.tensor(self.worked), weights)
        return counted.index_add_(1, torch.tensor(self.to), -weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectedRows:
    """Rows of which some are replaced by their projection onto a subspace about a middle. Only their sum is asked for.

    A weighted sum of projections is the projection of the weighted sum, so no row is ever projected by itself.

    Attributes:
        rows: All rows.
        kept: Which rows are kept as they are.
        middle: The point that the subspace goes through, p.
        basis: Directions of each tensor, k x p.
        layout: How a row splits into tensors.
    """

    rows: Rows
    kept: Tensor
    middle: Tensor
    basis: Tensor
    layout: Layout

    def combined(self, weights: Tensor) -> Tensor:
        """Return the sum with one weight each, p."""
        given = weights.double()
        whole, inside = self.rows.combined(torch.stack([given * self.kept, given * ~self.kept])).double()
        mass = (given * ~self.kept).sum()
        around = (inside - mass * self.middle)[None]
        pairs = zip(around.split(self.layout.sizes, dim=1), self.basis.split(self.layout.sizes, dim=1), strict=True)
        projected = torch.cat([(part @ basis.T) @ basis for part, basis in pairs], dim=1)[0]
        total: Tensor = whole + mass * self.middle + projected
        return total.float()
