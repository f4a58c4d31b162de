"""The answers of a simulated round, collected block by block: how many clients train at a time, and where updates wait.

A round of few numbers is collected in memory and handed over as it is. Otherwise each block of updates is written to a
file of its own as soon as it is computed, and read again for the few sums and samples that a recipe asks for
(`hush.recipes.rows`), so that a process never holds more than a block of them.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hush.recipes import Recipe
from hush.recipes.rows import SAMPLE, Columns, HeldRows, summed, summed_parts
from hush.server.loop import Answer, Answers, HeldAnswers
from hush.types import HeldVector, HushError, Layout, Task, Update

_CLIENTS = 2048  # whose jobs are in memory at a time
_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}  # of the parameters that train at a time


def clients_at_once(clients: int, parameters: int, device: str) -> int:
    """Return how many clients of a round train at a time: all of them, unless memory is to be spared."""
    if clients * parameters <= SAMPLE:
        return min(clients, _CLIENTS)
    return max(1, min(_CLIENTS, _NUMBERS[device] // parameters))


class RoundAnswers:
    """Collects the answers to a round's tasks. To be used as a context: files are removed at its end.

    With a size of `blocks` that is given, updates are kept and summed in these blocks even if they are few: what
    another engine computes in the same blocks is then equal to the last bit.
    """

    def __init__(
        self, recipe: Recipe, tasks: Sequence[Task], parameters: int, device: str, block: int | None = None
    ) -> None:
        self._recipe, self._tasks = recipe, {task.client: task for task in tasks}
        size = block or max(1, clients_at_once(len(tasks), parameters, device))
        self.blocks = [tasks[first : first + size] for first in range(0, len(tasks), size)]
        self._resources = ExitStack()
        self._answers: list[Answer] = []
        large = len(tasks) * parameters > SAMPLE
        self._store: BlockRows | None = FiledRows(parameters, self._resources) if large else None
        if block is not None and not large:
            self._store = KeptRows(parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def add(self, answers: Sequence[Answer]) -> None:
        """Take the answers of a block."""
        updates = [answer for answer in answers if isinstance(answer, Update)]
        if self._store is None or not updates:
            self._answers += answers
            return
        self._answers += [answer for answer in answers if not isinstance(answer, Update)]
        self._answers += held(updates)
        self._store.add(decoded(self._recipe, self._tasks, updates))

    def answers(self) -> Answers:
        """Return all answers."""
        return self._answers if self._store is None else HeldAnswers(self._answers, HeldRows.of(self._store))


def held(updates: Sequence[Update]) -> list[Update]:
    """Return updates without their vectors, which are kept elsewhere: what is checked of them is noted."""
    return [replace(update, vector=torch.empty(0), held=_noted(update.vector)) for update in updates]


def _noted(vector: Tensor) -> HeldVector:
    return HeldVector(vector.numel(), str(vector.dtype), float(vector.double().norm()))


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
        self._norms.append(torch.stack([row.double().norm() for row in block]))
        self._counts.append(len(block))

    @abstractmethod
    def _keep(self, number: int, block: Tensor) -> None: ...

    @abstractmethod
    def block(self, number: int) -> Tensor:
        """Return one block."""

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""
        return torch.cat(self._norms)

    def columns(self, chosen: Sequence[Tensor], which: Columns) -> list[Tensor]:
        """Return some columns of the chosen rows of each block."""
        empty = which.of(torch.empty(0, self.parameters))
        return [which.of(self.block(number))[own] if len(own) else empty for number, own in enumerate(chosen)]

    def combined(self, weights: Sequence[Tensor], layout: Layout | None) -> Tensor:
        """Return the sum over all blocks of `summed`, or with a layout of `summed_parts`."""
        total = torch.zeros(weights[0].shape[-2], self.parameters, dtype=torch.float64)
        for number, own in enumerate(weights):
            if bool((own != 0).any()):
                block = self.block(number)
                total += summed(block, own) if layout is None else summed_parts(block, own, layout)
        return total


class KeptRows(BlockRows):
    """Rows in memory."""

    def __init__(self, parameters: int) -> None:
        super().__init__(parameters)
        self._blocks: list[Tensor] = []

    def _keep(self, number: int, block: Tensor) -> None:
        self._blocks.append(block)

    def block(self, number: int) -> Tensor:
        """Return one block."""
        return self._blocks[number]


class FiledRows(BlockRows):
    """Rows in files of a temporary directory, a file for each block."""

    def __init__(self, parameters: int, resources: ExitStack) -> None:
        super().__init__(parameters)
        self._directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="hush-updates-")))

    def _keep(self, number: int, block: Tensor) -> None:
        room, need = shutil.disk_usage(self._directory).free, 4 * block.numel()
        if need > room:
            raise HushError(
                f"{self._directory}: no room for the updates of a round: they take {need / 2**30:.1f} GiB more, "
                f"{room / 2**30:.1f} GiB are free; accepted: another directory in TMPDIR, fewer clients or a smaller "
                "model"
            )
        block.numpy().tofile(self._path(number))

    def block(self, number: int) -> Tensor:
        """Return one block."""
        read = np.fromfile(self._path(number), dtype=np.float32)
        return torch.from_numpy(read).reshape(self._counts[number], self.parameters)

    def _path(self, number: int) -> Path:
        return self._directory / f"block-{number}"
