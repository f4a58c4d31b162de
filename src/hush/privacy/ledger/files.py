"""The files of a ledger on disk: which exist, who may read them, and whether a new one may be created.

Guarantees:
    - A ledger is opened only if it is writable by its owner and not readable by other users (mode 0600).
    - A new ledger never replaces an old one, or the remains of one.

Edge cases:
    - A ledger whose anchor exists but whose file does not was lost or deleted, with everything it had counted: refused.
    - Reading a ledger (`check_present`) does not require write permission.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hush.types import HushError

_ENDS = ("", "-wal", "-shm", "-journal", ".head")


def sibling(ledger: Path, end: str) -> Path:
    """Return the file of a ledger with that suffix."""
    return ledger.with_name(ledger.name + end)


def check_present(ledger: Path) -> None:
    """Raise a `HushError` unless the file exists."""
    try:
        there = ledger.exists()
    except OSError as error:
        raise HushError(f"{str(ledger)[:200]}: {error.strerror}; accepted: a ledger file") from None
    if not there:
        lost = (
            ", but its .head file exists: the ledger was lost or deleted" if sibling(ledger, ".head").exists() else ""
        )
        raise HushError(f"{ledger}: not found{lost}; accepted: a ledger file")
    if not ledger.is_file():
        raise HushError(f"{ledger}: not a file; accepted: a ledger file")


def check_private(ledger: Path) -> None:
    """Raise a `HushError` unless the file exists, is writable, and is private to its owner."""
    check_present(ledger)
    mode = stat.S_IMODE(ledger.stat().st_mode)
    if not mode & stat.S_IWUSR or not os.access(ledger, os.W_OK):
        raise HushError(f"{ledger}: read-only (mode {mode:04o}); accepted: a ledger that can be written, mode 0600")
    if mode & 0o077:
        raise HushError(f"{ledger}: accessible to other users (mode {mode:04o}); accepted: mode 0600 (chmod 600)")


def claim(ledger: Path) -> None:
    """Create an empty file for a new ledger, or raise a `HushError`."""
    for end in _ENDS:
        if sibling(ledger, end).exists():
            raise HushError(
                f"{sibling(ledger, end)}: already exists; accepted: a name that was never used for a ledger"
            )
    try:
        os.close(os.open(ledger, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise HushError(f"{ledger}: cannot create a ledger here: {error.strerror}") from None


def abandon(ledger: Path) -> None:
    """Remove a claimed ledger that could not be created."""
    for end in _ENDS:
        sibling(ledger, end).unlink(missing_ok=True)


def keep(ledger: Path) -> None:
    """Sync the directory, so that a new file name survives a power loss."""
    directory = os.open(ledger.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
