"""A cache on disk of the fixed features of a run's rows, so that another run on the same rows does not compute them.

A file holds the features of an array of rows. Its name is the SHA-256 of these rows, of what computes the features
(`Model.features_key`: code, and the weights of an encoder), and of PyTorch's version and the kind of device; so nothing
is looked up that could be out of date.

Guarantees:
    - Files are written under another name and renamed when they are complete: runs may write and read at the same time.
    - The folder belongs to its user alone (mode 700), since features of rows say what the rows do.
    - All files together take at most `MOST` bytes; those that were not used for longest are deleted. An array that
      alone is larger, or for which the disk has no room, is not stored.
    - Features of `LARGE` bytes or more are never in memory as a whole: they are computed, ordered and read as files
      that are mapped into memory, whose pages the system drops when it needs room.

Edge cases:
    - Members of a federation store nothing: it is simulations that use the cache.
    - A file that cannot be read, or the folder, is as if it were not there; whatever fails, features are computed.
    - Where no disk has room for large features, they are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_log = logging.getLogger("hush")
VARIABLE = "HUSH_CACHE"  # the folder, or "off"
MOST = 8 << 30
LARGE = 1 << 30
_ROOM = 1 << 30  # that stays free on the disk
_CHUNK = 4096  # rows whose features are computed and written at a time


def folder() -> Path | None:
    """Return the folder of the cache, or none if it is switched off."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() == "off":
        return None
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hush"
    return base / "features"


def features_of(
    compute: Callable[[Tensor], Tensor],
    fingerprint: str,
    rows: npt.NDArray[np.float32],
    device: torch.device,
    order: Tensor | None = None,
) -> Tensor:
    """Return the features of rows, on the CPU; from the cache if they are there, else computed on a device and stored.

    Args:
        compute: The features of a batch, of which each row depends on its own row alone.
        fingerprint: Of what `compute` computes; if empty, nothing is stored.
        rows: The rows.
        device: Where features are computed.
        order: Which of the rows to return, and in what order; by default all of them, as they are.
    """
    place = folder() if fingerprint and len(rows) else None
    path = None if place is None else place / f"{_key(fingerprint, rows, device)}.npy"
    found = None if path is None else _read(path, len(rows))
    if found is None:
        found = _computed(compute, rows, device, place)
        if path is not None:
            try:
                if _store(path, found) and found.numel() * found.element_size() >= LARGE:
                    # The stored file in place of the one without a name, which frees its room on the disk.
                    stored = _read(path, len(rows))
                    found = found if stored is None else stored
            except OSError as error:
                _log.warning("features are not stored in %s: %s", place, error.strerror or error)
    return found if order is None else _ordered(found, order, place)


def _key(fingerprint: str, rows: npt.NDArray[np.float32], device: torch.device) -> str:
    key_parts = (1, fingerprint, torch.__version__, device.type, rows.shape, str(rows.dtype))
    digest = hashlib.sha256(repr(key_parts).encode())
    digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _computed(
    compute: Callable[[Tensor], Tensor], rows: npt.NDArray[np.float32], device: torch.device, place: Path | None
) -> Tensor:
    parts = torch.from_numpy(np.ascontiguousarray(rows)).split(_CHUNK)
    first = compute(parts[0].to(device)).cpu()
    out = _room_for((len(rows), *first.shape[1:]), first.dtype, place)
    out[: len(first)] = first
    for number, part in enumerate(parts[1:], 1):
        out[number * _CHUNK : number * _CHUNK + len(part)] = compute(part.to(device)).cpu()
    return out


def _ordered(found: Tensor, order: Tensor, place: Path | None) -> Tensor:
    """Return rows of features in an order."""
    out = _room_for((len(order), *found.shape[1:]), found.dtype, place)
    for start in range(0, len(order), _CHUNK):
        torch.index_select(found, 0, order[start : start + _CHUNK], out=out[start : start + _CHUNK])
    return out


def _room_for(shape: Sequence[int], dtype: torch.dtype, place: Path | None) -> Tensor:
    """Return a tensor to write to: in memory, or, where it is large, in a file that is mapped and has no name."""
    size = math.prod(shape) * dtype.itemsize
    if size >= LARGE and dtype == torch.float32:
        for directory in (place, Path(tempfile.gettempdir())):
            with contextlib.suppress(OSError):
                if directory == place and place is not None:
                    place.mkdir(parents=True, exist_ok=True, mode=0o700)
                if directory is not None and shutil.disk_usage(directory).free >= size + _ROOM:
                    with tempfile.TemporaryFile(dir=directory) as file:
                        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=tuple(shape)))
    return torch.empty(tuple(shape), dtype=dtype)


def _read(path: Path, rows: int) -> Tensor | None:
    """Return the features in a file, mapped into memory: pages that a run does not touch are not read."""
    try:
        # Writing to it changes this process's copy of a page alone.
        mapped = np.load(path, mmap_mode="c", allow_pickle=False)
        os.utime(path)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(mapped) if len(mapped) == rows and mapped.dtype == np.float32 else None


def _store(path: Path, features: Tensor) -> bool:
    """Write the features to a file, and return whether there was room for it."""
    size = features.numel() * features.element_size()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if size > MOST or features.dtype != torch.float32 or shutil.disk_usage(path.parent).free < size + _ROOM:
        return False
    _make_room(path.parent, MOST - size)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, features.numpy(), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return True


def _make_room(place: Path, most: int) -> None:
    """Delete the files that were not used for longest until the others take at most so many bytes."""
    files = []
    for path in place.glob("*.npy"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= size
