"""The anchor, a file beside a ledger with its newest row, and the lock that tells whether a ledger is in use.

SQLite forgives a log whose end is damaged by forgetting that end. A ledger must not forget: the anchor names the newest
row that was ever committed, and a ledger without that row is refused.

Guarantees:
    - The anchor is written after the commit that it speaks of, in place, always with the same length: it names a row
      that is on the disk, this one or an earlier one.
    - `alone` is true only if no other open ledger uses the file. The lock ends with its process, however that ends.

Edge cases:
    - No anchor, or an empty one, proves nothing and is accepted here: the witness (`hush.privacy.ledger.witness`) knows
      the newest row as well, outside the folder.
    - After a power loss the anchor may be some rows behind. That is a weaker check, not a wrong one.
    - The lock is advisory (flock), and as good as the file system: keep ledgers on a local disk.
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
    """An open anchor file, with a lock on it until it is closed."""

    def __init__(self, ledger: Path, wait: float) -> None:
        self._path = files.beside(ledger, ".head")
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
        """Let others in."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self.alone = False

    def read(self) -> tuple[int, str] | None:
        """Number and hash of the newest row that is known of, if any."""
        return _parse(lambda: os.pread(self._file, _LENGTH + 1, 0), self._path)

    def write(self, seq: int, digest: str) -> None:
        """Remember the newest row."""
        first = os.fstat(self._file).st_size == 0
        os.pwrite(self._file, b"%020d:%s\n" % (seq, digest.encode()), 0)
        # Only a file that grows can come back from a power loss as neither old nor new.
        if first:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file and drop the lock."""
        os.close(self._file)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def peek(ledger: Path) -> tuple[int, str] | None:
    """What `Anchor.read` says, without a lock."""
    path = files.beside(ledger, ".head")
    return _parse(path.read_bytes, path) if path.exists() else None


def check(known: tuple[int, str] | None, rows: Sequence[Row]) -> None:
    """Raise `BrokenLedgerError` unless the row that the anchor names is among the rows."""
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
        time.sleep(0.005)  # another process may be in the middle of writing it
    raise BrokenLedgerError(f"{path.name} is damaged; remove it only if this ledger is certainly the latest copy")
