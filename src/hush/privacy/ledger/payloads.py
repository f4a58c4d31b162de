"""Sealed payloads of a ledger: small ones in its database, large ones in files of their own, in a folder beside it.

SQLite writes a row twice, and its file never shrinks: an update of 45 MB would cost the ledger 90 MB of writing for
each round, and remain in its size. A file is written once, and is gone when it is deleted.

Guarantees:
    - `store` returns when the payload is on the disk under the number of its charge, before the ledger says so.
    - A file counts only for a charge that the ledger has as computed or sent; any other was left by a process that
      died, and is deleted when the ledger is opened.

Edge cases:
    - Files belong to the ledger: whoever moves a ledger takes them along. If the file of an answer that is still to be
      sent is missing, the ledger is broken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hush.privacy.ledger import files
from hush.privacy.ledger.book import READY, SENT, Charge

LARGE = 1 << 20  # bytes: payloads up to this size are in the database
_END = ".sealed"


class Database(Protocol):
    """What is used here of a connection to the ledger's database."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Run a statement."""
        ...

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        """Run a statement for each set of parameters."""
        ...


def store(db: Database, ledger: Path | None, seq: int, payload: bytes) -> None:
    """Store a payload; in the database it is part of the caller's transaction."""
    if ledger is None or len(payload) <= LARGE:
        db.execute("INSERT INTO payloads VALUES (?,?)", (seq, payload))
        return
    folder = files.sibling(ledger, _END)
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        files.keep(ledger)
    path = folder / str(seq)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        rest = memoryview(payload)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)
    files.keep(path)


def find(db: Database, ledger: Path | None, seq: int) -> bytes | None:
    """Return a payload, if it is still stored."""
    found = db.execute("SELECT bytes FROM payloads WHERE seq=?", (seq,)).fetchone()
    if found is not None:
        return bytes(found[0])
    with contextlib.suppress(FileNotFoundError):
        return None if ledger is None else (files.sibling(ledger, _END) / str(seq)).read_bytes()
    return None


def numbers(db: Database, ledger: Path | None) -> set[int]:
    """Return the numbers of the charges that a payload is stored for."""
    return {seq for (seq,) in db.execute("SELECT seq FROM payloads")} | set(_files(ledger))


def stored(db: Database, ledger: Path, charges: Mapping[int, Charge]) -> dict[int, object]:
    """Return all payloads by the number of their charge."""
    kept: dict[int, object] = dict(db.execute("SELECT seq, bytes FROM payloads"))
    for seq, path in _files(ledger).items():
        if seq in charges and charges[seq].state in (READY, SENT):
            with contextlib.suppress(FileNotFoundError):
                kept[seq] = path.read_bytes()
    return kept


def drop(db: Database, seqs: Iterable[int]) -> None:
    """Delete payloads from the database, as part of the caller's transaction."""
    db.executemany("DELETE FROM payloads WHERE seq=?", [(seq,) for seq in seqs])


def remove(ledger: Path | None, seqs: Iterable[int]) -> None:
    """Delete the files of these charges, after the transaction in which they were dropped."""
    files = _files(ledger)
    for seq in seqs:
        if seq in files:
            files[seq].unlink(missing_ok=True)


def copy(ledger: Path, target: Path) -> None:
    """Copy the files of a ledger's payloads to those of its copy."""
    for seq, path in _files(ledger).items():
        folder = files.sibling(target, _END)
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (folder / str(seq)).write_bytes(path.read_bytes())


def discard(ledger: Path) -> None:
    """Delete all payload files of a copy."""
    for path in _files(ledger).values():
        path.unlink(missing_ok=True)


def orphaned_files(ledger: Path | None, charges: Mapping[int, Charge]) -> set[int]:
    """Return the numbers of files that belong to no computed or sent charge."""
    return {seq for seq in _files(ledger) if seq not in charges or charges[seq].state not in (READY, SENT)}


def _files(ledger: Path | None) -> dict[int, Path]:
    if ledger is None:
        return {}
    try:
        return {int(path.name): path for path in files.sibling(ledger, _END).iterdir() if path.name.isdigit()}
    except FileNotFoundError:
        return {}
