"""The IDX format of MNIST and its relatives: a magic number, big-endian sizes, then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.types import HushError

UNSIGNED_BYTE = 8


def parse_idx(content: bytes, path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes with the given number of dimensions."""
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
        raise HushError(
            f"data file {path}: header {content[:4].hex() or 'empty'} is not that of an IDX file of unsigned bytes"
            f" with {dimensions} dimensions (0000080{dimensions})"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if len(content) - start != math.prod(shape):
        raise HushError(
            f"data file {path}: {len(content) - start} bytes after the header, but its sizes {shape} need"
            f" {math.prod(shape)}; download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
