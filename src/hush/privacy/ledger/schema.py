"""The tables of a ledger file, and how a file shows that it is one.

Guarantees:
    - The database itself refuses to change or delete a row.
    - `check` accepts a file with exactly these tables and triggers, word for word, and of a version that we know.

Edge cases:
    - A file of a newer version is refused with its version, since its rows may mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from hush.privacy.ledger.chain import BrokenLedgerError
from hush.types import HushError

_KIND = 0x48555348  # "HUSH": tells our files from other SQLite files
_VERSION = 1
_GROWS = "ON rows BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END"
_TABLES = {
    "rows": "CREATE TABLE rows(seq INTEGER PRIMARY KEY, at INTEGER, salt TEXT, kind TEXT, run TEXT, round INTEGER, "
    "attempt INTEGER, detail TEXT, previous TEXT, hash TEXT)",
    "payloads": "CREATE TABLE payloads(seq INTEGER PRIMARY KEY, bytes BLOB)",
    "unchanged": f"CREATE TRIGGER unchanged BEFORE UPDATE {_GROWS}",
    "undeleted": f"CREATE TRIGGER undeleted BEFORE DELETE {_GROWS}",
}

MAKE = (f"PRAGMA application_id={_KIND}", f"PRAGMA user_version={_VERSION}", *_TABLES.values())
KIND, VERSION, TABLES = "PRAGMA application_id", "PRAGMA user_version", "SELECT name, sql FROM sqlite_master"
ROWS = "SELECT * FROM rows WHERE seq>? ORDER BY seq"
INSERT = "INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?,?)"


def check(kind: int, version: int, tables: Mapping[str, str]) -> None:
    """Raise a `HushError` unless the answers to `KIND`, `VERSION` and `TABLES` are those of a ledger."""
    if kind != _KIND:
        raise HushError("not a ledger but another SQLite file; accepted: a ledger file")
    if version > _VERSION:
        raise HushError(f"written by a newer version of Hush (format {version}); accepted: format {_VERSION}")
    if version != _VERSION or tables != _TABLES:
        raise BrokenLedgerError("its tables are not those of a ledger")
