"""Find, read and verify data files: if the digest of a file is known, it is verified before parsing."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hush.types import HushError

# Far above any file read here; it prevents a small malicious archive from filling the memory.
MAX_BYTES = 1 << 30


def data_root(root: str | os.PathLike[str] | None, name: str) -> Path:
    """Return the data directory: the argument, or the environment variable HUSH_DATA."""
    found = root if root is not None else os.environ.get("HUSH_DATA")
    if not found:
        raise HushError(
            f'data.name: "{name}" is read from files, but no data directory is set; set --data DIR or HUSH_DATA=DIR',
            "data.name",
        )
    path = Path(found)
    if not path.is_dir():
        raise HushError(f"data directory {path}: no such directory; set it with --data DIR or HUSH_DATA=DIR")
    return path


def find(root: Path, folders: Sequence[str], names: Sequence[str]) -> Path | None:
    """Return the first existing file, trying every name in a folder before going to the next folder."""
    for folder in folders:
        for name in names:
            path = root / folder / name
            try:
                if path.is_file():
                    return path
            except OSError as error:
                raise HushError(f"data file {path}: cannot be read ({error.strerror})") from None
    return None


def missing(root: Path, folders: Sequence[str], names: Sequence[str], source: str) -> HushError:
    """Return the error for a file that is in none of the folders."""
    looked = ", ".join(str(root / folder) for folder in folders)
    return HushError(f"data file {' or '.join(names)}: not found in {looked}; download it from {source}")


def verify(content: bytes | memoryview, expected: str, what: str | Path, source: str) -> None:
    """Raise a `HushError` for content whose SHA-256 is not the published one."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise HushError(
            f"data file {what}: SHA-256 {found[:12]}... instead of {expected[:12]}...; download it again from {source}"
        )


def read(path: Path, digests: Mapping[str, str], source: str) -> bytes:
    """Return the verified bytes of a file, decompressed if it ends in `.gz`.

    `digests` maps file names to SHA-256. A file that is not listed is not verified: its reader checks the structure.
    """
    content = read_bytes(path)
    if path.name in digests:
        verify(content, digests[path.name], path, source)
    return gunzip(content, path) if path.suffix == ".gz" else content


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; an operating system error becomes a `HushError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise HushError(f"data file {path}: cannot be read ({error.strerror})") from None


def gunzip(content: bytes, path: Path) -> bytes:
    """Decompress gzip content; truncated, corrupt or excessively large content is an error."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            result = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise HushError(f"data file {path}: not a complete gzip file ({error}); download it again") from None
    if len(result) > MAX_BYTES:
        raise HushError(f"data file {path}: expands to more than {MAX_BYTES} bytes; expected a published data file")
    return result
