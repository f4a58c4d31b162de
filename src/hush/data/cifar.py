"""CIFAR-10 in any of its layouts: binary or python batches, in folders or archives, or lossless WebP sheets.

Whatever the layout, a batch becomes the same records (a label byte, then 3,072 channel-first pixel bytes), whose
SHA-256 is known.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.data import sources
from hush.data.cifar_batches import read_batch
from hush.data.files import find, missing, read, read_bytes, verify
from hush.data.idx import parse_idx
from hush.types import HushError

SOURCE = sources.SOURCES["cifar10"]
BATCHES = {"train": tuple(f"data_batch_{at}" for at in range(1, 6)), "test": ("test_batch",)}
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
ROWS = 10_000
PIXELS = 3 * 32 * 32
# A python batch has about 31 MB; anything much larger is not one.
MAX_MEMBER = 64 << 20

Bytes = npt.NDArray[np.uint8]
Decode = Callable[[bytes, str], Bytes]


@dataclass(frozen=True)
class _Layout:
    """One published layout: where its batches are, and how a batch is converted to records."""

    folders: tuple[str, ...]
    archive: str
    suffix: str
    decode: Decode


def read_cifar10(root: Path, part: str) -> tuple[Bytes, Bytes]:
    """Return the images (n, 3, 32, 32) and the labels (n,) of one part, as bytes."""
    batches = BATCHES[part]
    for layout in LAYOUTS:
        if any(find(root, layout.folders, [batch + layout.suffix]) for batch in batches):
            return _join({batch: _from_folder(root, layout, batch) for batch in batches})
    for layout in LAYOUTS:
        archive = find(root, ("", "cifar10"), [layout.archive])
        if archive is not None:
            return _join(_from_archive(archive, layout, batches))
    if any(find(root, SHEET_FOLDERS, [f"{batch}.webp"]) for batch in batches):
        return _from_sheets(root, part)
    names = (f"{batches[0]}.bin", batches[0], *(layout.archive for layout in LAYOUTS), f"{batches[0]}.webp")
    raise missing(root, ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", ""), names, SOURCE)


def _join(batches: Mapping[str, Bytes]) -> tuple[Bytes, Bytes]:
    for batch, records in batches.items():
        verify(records.data, sources.CIFAR10_RECORDS[batch], f"{batch} of CIFAR-10 (content)", SOURCE)
    records = np.concatenate(list(batches.values()))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].copy()


def _from_folder(root: Path, layout: _Layout, batch: str) -> Bytes:
    name = batch + layout.suffix
    path = find(root, layout.folders, [name])
    if path is None:
        raise missing(root, layout.folders, [name], SOURCE)
    return layout.decode(read_bytes(path), str(path))


def _from_archive(path: Path, layout: _Layout, batches: tuple[str, ...]) -> dict[str, Bytes]:
    """Read the archive once, in memory: its members are never written to disk."""
    wanted = {f"{layout.folders[0]}/{batch}{layout.suffix}": batch for batch in batches}
    found: dict[str, Bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.name in wanted and member.isfile() else None
                if stream is not None and member.size <= MAX_MEMBER:
                    found[wanted[member.name]] = layout.decode(stream.read(), f"{path}:{member.name}")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise HushError(f"data file {path}: not a complete tar.gz file ({error}); download it from {SOURCE}") from None
    lacking = [name for name, batch in wanted.items() if batch not in found]
    if lacking:
        raise HushError(f"data file {path}: does not contain {', '.join(lacking)}; download it from {SOURCE}")
    return {batch: found[batch] for batch in batches}


def _decode_binary(content: bytes, what: str) -> Bytes:
    if len(content) != ROWS * (PIXELS + 1):
        raise HushError(f"data file {what}: {len(content)} bytes; expected {ROWS * (PIXELS + 1)}, from {SOURCE}")
    return np.frombuffer(content, np.uint8).reshape(ROWS, PIXELS + 1)


def _decode_python(content: bytes, what: str) -> Bytes:
    if len(content) > MAX_MEMBER:
        raise HushError(f"data file {what}: {len(content)} bytes; a CIFAR-10 batch has at most {MAX_MEMBER}")
    pixels, labels = read_batch(content, what)
    if pixels.shape != (ROWS, PIXELS) or len(labels) != ROWS or not all(0 <= label < 10 for label in labels):
        raise HushError(
            f"data file {what}: {pixels.shape} pixels, {len(labels)} labels; expected ({ROWS}, {PIXELS}), 0..9"
        )
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)


def _from_sheets(root: Path, part: str) -> tuple[Bytes, Bytes]:
    names = [f"{part}-labels-idx1-ubyte.gz", f"{part}-labels-idx1-ubyte"]
    path = find(root, SHEET_FOLDERS, names)
    if path is None:
        raise missing(root, SHEET_FOLDERS, names, SOURCE)
    labels = parse_idx(read(path, sources.CIFAR10_SHEETS, SOURCE), path, 1)
    images = np.concatenate([_sheet(root, batch) for batch in BATCHES[part]])
    if len(images) != len(labels):
        raise HushError(f"data file {path}: {len(labels)} labels for {len(images)} images")
    return images, labels


def _sheet(root: Path, batch: str) -> Bytes:
    from PIL import Image, UnidentifiedImageError

    path = find(root, SHEET_FOLDERS, [f"{batch}.webp"])
    if path is None:
        raise missing(root, SHEET_FOLDERS, [f"{batch}.webp"], SOURCE)
    content = read(path, sources.CIFAR10_SHEETS, SOURCE)
    try:
        with Image.open(io.BytesIO(content), formats=["WEBP"]) as sheet:
            grid = np.asarray(sheet.convert("RGB"))
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise HushError(f"data file {path}: not a readable WebP image ({error})") from None
    rows = ROWS // 20
    if grid.shape != (rows * 32, 640, 3):
        raise HushError(f"data file {path}: sheet of shape {grid.shape}; expected ({rows * 32}, 640, 3)")
    tiles = grid.reshape(rows, 32, 20, 32, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(ROWS, 3, 32, 32)


SHEET_FOLDERS = ("cifar10", "")
LAYOUTS = (
    _Layout(
        folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", ""),
        archive="cifar-10-binary.tar.gz",
        suffix=".bin",
        decode=_decode_binary,
    ),
    _Layout(
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", ""),
        archive="cifar-10-python.tar.gz",
        suffix="",
        decode=_decode_python,
    ),
)
