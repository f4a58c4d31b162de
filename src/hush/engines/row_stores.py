"""Row stores of one process: where the updates of a round wait, in memory, on a device or in a file, a block at a time.

Each block of updates is kept as soon as it is computed, and read again for the few sums and samples that a recipe asks
for (`hush.recipes.stored_rows`), so that a process never holds more than a block of those in a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import torch
from torch import Tensor

from hush.engines.row_file import RowFile
from hush.recipes import Recipe
from hush.recipes.context import Columns, summed_parts
from hush.recipes.stored_rows import chosen_columns, summed
from hush.types import Layout, Task, Update, VectorFacts


def without_vectors(updates: Sequence[Update]) -> list[Update]:
    """Return updates without their vectors, which are kept elsewhere: what is checked of them is noted."""
    return [replace(update, vector=torch.empty(0), vector_facts=_vector_facts(update.vector)) for update in updates]


def _vector_facts(vector: Tensor) -> VectorFacts:
    return VectorFacts(vector.numel(), str(vector.dtype), float(_norms(vector[None])))


def _norms(rows: Tensor) -> Tensor:
    """Return the norm of each row in float64, without a copy of the rows."""
    return torch.stack([torch.linalg.vector_norm(row, dtype=torch.float64) for row in rows]).cpu()


def decoded(recipe: Recipe, tasks: dict[int, Task], updates: Sequence[Update]) -> Tensor:
    """Return the updates as the server decodes them, a row each."""
    return torch.stack(
        [
            recipe.project.decode(update.vector, tasks[update.client].layout, tasks[update.client].extras)
            for update in updates
        ]
    )


class BlockRows(ABC):
    """Rows in blocks that can be read one at a time: a `RowStore` of one process."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self._counts: list[int] = []
        self._norms: list[Tensor] = []

    @property
    def counts(self) -> Sequence[int]:
        """The number of rows in each block."""
        return self._counts

    def add(self, block: Tensor) -> None:
        """Keep the next block."""
        self._keep(len(self._counts), block)
        self._norms.append(_norms(block))
        self._counts.append(len(block))

    @abstractmethod
    def _keep(self, number: int, block: Tensor) -> None: ...

    @abstractmethod
    def block(self, number: int) -> Tensor:
        """Return one block."""

    def _readable(self, number: int) -> Tensor:
        """Return one block, of which little may be read and nothing written."""
        return self.block(number)

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""
        return torch.cat(self._norms)

    def columns(self, chosen: Sequence[Tensor], which: Columns) -> list[Tensor]:
        """Return some columns of the chosen rows of each block."""
        empty = which.of(torch.empty(0, self.parameters))
        return [
            chosen_columns(self._readable(number), own, which) if len(own) else empty
            for number, own in enumerate(chosen)
        ]

    def combined(self, weights: Sequence[Tensor], layout: Layout | None) -> Tensor:
        """Return the sum over all blocks of `summed`, or with a layout of `summed_parts`."""
        total = torch.zeros(weights[0].shape[-2], self.parameters, dtype=torch.float64)
        for number, own in enumerate(weights):
            if bool((own != 0).any()):
                block = self.block(number)
                total += summed(block, own) if layout is None else summed_parts(block, own, layout)
        return total


class MemoryRows(BlockRows):
    """Rows in memory."""

    def __init__(self, parameters: int) -> None:
        super().__init__(parameters)
        self._blocks: list[Tensor] = []

    def _keep(self, number: int, block: Tensor) -> None:
        self._blocks.append(block)

    def block(self, number: int) -> Tensor:
        """Return one block."""
        return self._blocks[number]


class DeviceRows(BlockRows):
    """Rows on the device that computed them. Samples and sums of them are formed there; only these travel."""

    def __init__(self, parameters: int) -> None:
        super().__init__(parameters)
        self._blocks: list[Tensor] = []

    def _keep(self, number: int, block: Tensor) -> None:
        self._blocks.append(block)

    def block(self, number: int) -> Tensor:
        """Return one block, in the memory of the host."""
        return self._blocks[number].cpu()

    def columns(self, chosen: Sequence[Tensor], which: Columns) -> list[Tensor]:
        """Return some columns of the chosen rows of each block."""
        return [
            which.of(block if len(own) == len(block) else block[own.to(block.device)]).cpu()
            for own, block in zip(chosen, self._blocks, strict=True)
        ]

    def combined(self, weights: Sequence[Tensor], layout: Layout | None) -> Tensor:
        """Return the sum over all blocks of `summed`, or with a layout of `summed_parts`."""
        total = self._blocks[0].new_zeros(weights[0].shape[-2], self.parameters, dtype=torch.float64)
        for own, block in zip(weights, self._blocks, strict=True):
            if bool((own != 0).any()):
                there = own.to(block.device)
                total += summed(block, there) if layout is None else summed_parts(block, there, layout)
        return total.cpu()


class FileRows(BlockRows):
    """Rows in a file of the temporary directory."""

    def __init__(self, parameters: int, resources: ExitStack) -> None:
        super().__init__(parameters)
        self._file = resources.enter_context(closing(RowFile()))

    def _keep(self, number: int, block: Tensor) -> None:
        self._file.add(block)

    def block(self, number: int) -> Tensor:
        """Return one block."""
        return self._file.read(number)

    def _readable(self, number: int) -> Tensor:
        return self._file.mapped(number)
