"""The blocks of updates that a worker holds in a round: in memory, and beyond a size in a file of its node.

A worker so needs no more memory than one process does, whatever its share of the updates.
"""

from __future__ import annotations

from torch import Tensor

from hush.engines.row_file import RowFile
from hush.recipes.context import SAMPLE


class Blocks:
    """Blocks by number. What is returned must not be written to.

    Args:
        most: Numbers that are in memory at most.
    """

    def __init__(self, most: int = SAMPLE) -> None:
        self._most = most
        self._memory: dict[int, Tensor] = {}
        self._filed: dict[int, int] = {}
        self._file: RowFile | None = None

    def keep(self, number: int, block: Tensor) -> None:
        """Keep a block, in place of one that had its number."""
        self._memory.pop(number, None)
        if sum(map(Tensor.numel, self._memory.values())) + block.numel() <= self._most:
            self._memory[number] = block
            return
        if self._file is None:
            self._file = RowFile()
        self._filed[number] = self._file.add(block)

    def __getitem__(self, number: int) -> Tensor:
        if number in self._memory:
            return self._memory[number]
        assert self._file is not None
        return self._file.mapped(self._filed[number])

    def clear(self) -> None:
        """Drop all blocks."""
        if self._file is not None:
            self._file.close()
        self._memory, self._filed, self._file = {}, {}, None
