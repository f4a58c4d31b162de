"""A cache on disk of the fixed features of a run's rows, so that another run on the same rows does not compute them.

A file holds the features of an array of rows. Its name is the SHA-256 of these rows, of the code that computes the
features, and of PyTorch's version and the kind of device; so nothing is looked up that could be out of date.

Guarantees:
    - Files are written under another name and renamed when they are complete: runs may write and read at the same time.
    - The folder belongs to its user alone (mode 700), since features of rows say what the rows do.
    - All files together take at most `MOST` bytes; those that were not used for longest are deleted. An array that
      alone is larger, or for which the disk has no room, is not stored.

Edge cases:
    - Members of a federation store nothing: it is simulations that use the cache.
    - A file that cannot be read, or the folder, is as if it were not there; whatever fails, features are computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_log = logging.getLogger("hush")
VARIABLE = "HUSH_CACHE"  # the folder, or "off"
MOST = 8 << 30
_ROOM = 1 << 30  # that stays free on the disk
_CHUNK = 4096  # rows whose features are computed and written at a time
Array = npt.NDArray[np.float32]


def folder() -> Path | None:
    """Return the folder of the cache, or none if it is switched off."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() == "off":
        return None
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hush"
    return base / "features"


def features_of(
    compute: Callable[[Tensor], Tensor], fingerprint: str, rows: npt.NDArray[np.float32], device: torch.device
) -> Tensor:
    """Return the features of rows, on the CPU; from the cache if they are there, else computed on a device and stored.

    Args:
        compute: The features of a batch, of which each row depends on its own row alone.
        fingerprint: Of what `compute` computes; if empty, nothing is stored.
        rows: The rows.
        device: Where features are computed.
    """
    place = folder() if fingerprint and len(rows) else None
    if place is None:
        return _computed(compute, rows, device)
    path = place / f"{_key(fingerprint, rows, device)}.npy"
    found = _read(path, len(rows))
    if found is not None:
        return found
    computed = _computed(compute, rows, device)
    try:
        _store(path, computed)
    except OSError as error:
        _log.warning("features are not stored in %s: %s", place, error.strerror or error)
    return computed


def _key(fingerprint: str, rows: npt.NDArray[np.float32], device: torch.device) -> str:
    key_parts = (1, fingerprint, torch.__version__, device.type, rows.shape, str(rows.dtype))
    digest = hashlib.sha256(repr(key_parts).encode())
    digest.update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _computed(compute: Callable[[Tensor], Tensor], rows: npt.NDArray[np.float32], device: torch.device) -> Tensor:
    parts = torch.from_numpy(np.ascontiguousarray(rows)).split(_CHUNK)
    first = compute(parts[0].to(device)).cpu()
    out = torch.empty(len(rows), *first.shape[1:], dtype=first.dtype)
    out[: len(first)] = first
    for number, part in enumerate(parts[1:], 1):
        out[number * _CHUNK : number * _CHUNK + len(part)] = compute(part.to(device)).cpu()
    return out


def _read(path: Path, rows: int) -> Tensor | None:
    """Return the features in a file, mapped into memory: pages that a run does not touch are not read."""
    try:
        # Writing to it changes this process's copy of a page alone.
        mapped = np.load(path, mmap_mode="c", allow_pickle=False)
        os.utime(path)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(mapped) if len(mapped) == rows and mapped.dtype == np.float32 else None


def _store(path: Path, features: Tensor) -> None:
    size = features.numel() * features.element_size()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if size > MOST or features.dtype != torch.float32 or shutil.disk_usage(path.parent).free < size + _ROOM:
        return
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


def _make_room(place: Path, most: int) -> None:
    """Delete the files that were not used for longest until the others take at most so many bytes."""
    held = []
    for path in place.glob("*.npy"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            held.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in held)
    for _, size, path in sorted(held):
        if total <= most:
            return
        path.unlink(missing_ok=True)
        total -= size
