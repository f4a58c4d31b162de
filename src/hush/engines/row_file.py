"""A row file: blocks of rows, one behind the other, in a temporary file without a name.

It is gone with the process that wrote it, however that ends: nothing remains of a process that was killed.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings

import numpy as np
import torch
from torch import Tensor

from hush.types import HushError


def read_only(array: np.ndarray) -> Tensor:
    """Return an array that may not be written to as a tensor. Nothing may write to it, which PyTorch cannot know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


_PAGE = 4096


class RowFile:
    """Blocks of float32 rows in a file of the temporary directory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="hush-updates-")  # noqa: SIM115
        self._places: list[tuple[int, tuple[int, ...]]] = []
        self._end = 0

    def add(self, block: Tensor) -> int:
        """Write the next block, and return its number, or raise a `HushError` if there is no room for it."""
        directory, need = tempfile.gettempdir(), 4 * block.numel()
        room = shutil.disk_usage(directory).free
        if need > room:
            raise HushError(
                f"{directory}: no room for the updates of a round: they take {need / 2**30:.1f} GiB more, "
                f"{room / 2**30:.1f} GiB are free; accepted: another directory in TMPDIR, fewer clients or a smaller "
                "model"
            )
        self._file.seek(self._end)
        self._file.write(block.contiguous().numpy().data)
        self._file.flush()
        self._places.append((self._end, tuple(block.shape)))
        # Sums over a block may differ in their last bits with its alignment in memory: all blocks begin with a page.
        self._end += -(-need // _PAGE) * _PAGE
        return len(self._places) - 1

    def read(self, number: int) -> Tensor:
        """Return one block, read into memory."""
        start, shape = self._places[number]
        block = torch.empty(shape)
        self._file.seek(start)
        self._file.readinto(block.numpy().data)
        return block

    def mapped(self, number: int) -> Tensor:
        """Return one block, of which only what is used is read. It must not be written to."""
        start, shape = self._places[number]
        return read_only(np.memmap(self._file, dtype=np.float32, mode="r", offset=start, shape=shape))

    def close(self) -> None:
        """Give up the file."""
        self._file.close()
