"""The anchor: a file next to a ledger that names its newest row, and a lock that shows whether the ledger is in use.

SQLite recovers from a log with a damaged end by dropping that end. A ledger must not lose rows: the anchor names the
newest row that was committed, and a ledger without that row is refused.

Guarantees:
    - The anchor is written after the commit, in place, and always with the same length. It names a row that is on disk:
      the newest one or an earlier one.
    - `alone` is true only if no other open ledger uses the file. The lock ends with its process, however that ends.

Edge cases:
    - A missing or empty anchor proves nothing and is accepted here: the witness (`hush.privacy.ledger.witness`) records
      the newest row as well, in another folder.
    - After a power loss the anchor may be some rows behind, which makes the check weaker but not wrong.
    - The lock is advisory (flock) and depends on the file system: keep ledgers on a local disk.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hush.privacy.ledger import files
from hush.privacy.ledger.book import Row
from hush.privacy.ledger.errors import BrokenLedgerError, LockedError

_LINE = re.compile(rb"([0-9]{20}):([0-9a-f]{64})\n")
_LENGTH = 86
_NEWEST = "accepted: the latest copy"


class Anchor:
    """An open anchor file, locked until it is closed."""

    def __init__(self, ledger: Path, wait: float) -> None:
        self._path = files.sibling(ledger, ".head")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.alone = self._lock(fcntl.LOCK_EX)
            deadline = time.monotonic() + wait
            while not (self.alone or self._lock(fcntl.LOCK_SH)):
                if time.monotonic() > deadline:
                    raise LockedError(f"locked by another process for more than {wait:g} s; try again later")
                time.sleep(0.005)
        except BaseException:
            os.close(self._file)
            raise

    def share(self) -> None:
        """Downgrade to a shared lock."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self.alone = False

    def read(self) -> tuple[int, str] | None:
        """Number and hash of the newest recorded row, if any."""
        return _parse(lambda: os.pread(self._file, _LENGTH + 1, 0), self._path)

    def write(self, seq: int, digest: str) -> None:
        """Record the newest row."""
        first = os.fstat(self._file).st_size == 0
        os.pwrite(self._file, b"%020d:%s\n" % (seq, digest.encode()), 0)
        # Only writes that extend a file can be half complete after a power loss.
        if first:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def peek(ledger: Path) -> tuple[int, str] | None:
    """Return what `Anchor.read` returns, without taking a lock."""
    path = files.sibling(ledger, ".head")
    return _parse(path.read_bytes, path) if path.exists() else None


def check(known: tuple[int, str] | None, rows: Sequence[Row]) -> None:
    """Raise `BrokenLedgerError` unless the row named by the anchor is among the rows."""
    if known is None:
        return
    seq, digest = known
    if seq > len(rows):
        raise BrokenLedgerError(
            f"it ends at entry {len(rows)}, but had {seq} entries: damaged, or an old copy; {_NEWEST}"
        )
    if seq < 1 or rows[seq - 1].hash != digest:
        raise BrokenLedgerError(
            f"entry {seq} is not the one that was written here: another ledger, or a changed copy; {_NEWEST}"
        )


def _parse(read: Callable[[], bytes], path: Path) -> tuple[int, str] | None:
    for _ in range(3):
        text = read()
        found = _LINE.fullmatch(text)
        if found or not text:
            return (int(found[1]), found[2].decode()) if found else None
        time.sleep(0.005)  # another process may be writing it
    raise BrokenLedgerError(f"{path.name} is damaged; remove it only if this ledger is certainly the latest copy")
