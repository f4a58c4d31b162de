"""CIFAR-100 (`cifar100`) in its binary version: `train.bin` and `test.bin`, in a folder or in the published archive.

A record is a byte for the coarse label, one for the fine label, and 3,072 channel-first pixel bytes. The digests of
these files are not known here: lengths and labels are checked.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.data import sources
from hush.data.files import find, missing, read_bytes
from hush.types import HushError

Bytes = npt.NDArray[np.uint8]

SOURCE = sources.SOURCES["cifar100"]
FOLDERS = ("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", "")
ARCHIVE = "cifar-100-binary.tar.gz"
ROWS = {"train": 50_000, "test": 10_000}
CLASSES = 100
MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
_PIXELS = 3 * 32 * 32


def read_cifar100(root: Path, part: str) -> tuple[Bytes, Bytes]:
    """Return the images (n, 3, 32, 32) and the fine labels (n,) of one part, as bytes."""
    name = f"{part}.bin"
    path = find(root, FOLDERS[:-1], [name])
    if path is not None:
        return _decoded(read_bytes(path), str(path), part)
    archive = find(root, ("", "cifar100"), [ARCHIVE])
    if archive is None:
        raise missing(root, FOLDERS, [name, ARCHIVE], SOURCE)
    return _decoded(_member(archive, f"cifar-100-binary/{name}", part), f"{archive}:{name}", part)


def _decoded(content: bytes, what: str, part: str) -> tuple[Bytes, Bytes]:
    expected = _length(part)
    if len(content) != expected:
        raise HushError(f"data file {what}: {len(content)} bytes; expected {expected}, from {SOURCE}")
    records = np.frombuffer(content, np.uint8).reshape(ROWS[part], 2 + _PIXELS)
    labels = records[:, 1]
    if int(labels.max()) >= CLASSES:
        raise HushError(f"data file {what}: label {int(labels.max())}; expected 0 to {CLASSES - 1}, from {SOURCE}")
    return records[:, 2:].reshape(-1, 3, 32, 32), labels.copy()


def _length(part: str) -> int:
    return ROWS[part] * (2 + _PIXELS)


def _member(archive: Path, wanted: str, part: str) -> bytes:
    """Read one member of the archive in memory: nothing is written to disk."""
    try:
        with tarfile.open(archive, "r|gz") as opened:
            for member in opened:
                stream = opened.extractfile(member) if member.name == wanted and member.isfile() else None
                if stream is not None and member.size == _length(part):
                    return stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        reason = f"not a complete tar.gz file ({error})"
        raise HushError(f"data file {archive}: {reason}; download it from {SOURCE}") from None
    raise HushError(f"data file {archive}: does not contain {wanted} as published; download it from {SOURCE}")
