"""The database schema of a ledger file, and how a file shows that it is one.

Guarantees:
    - The database itself refuses to change or delete a row.
    - `check` accepts a file with exactly these tables and triggers, word for word, and of a version that we know.

Edge cases:
    - A file of a newer version is refused with its version, since its rows may mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from hush.privacy.ledger.errors import BrokenLedgerError
from hush.types import HushError

APPLICATION_ID = 0x48555348  # "HUSH": distinguishes our files from other SQLite files
_VERSION = 2
_GROWS = "ON rows BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
_TABLES = {
    "rows": "CREATE TABLE rows(seq INTEGER PRIMARY KEY, at INTEGER, salt TEXT, kind TEXT, run TEXT, round INTEGER, "
    "attempt INTEGER, detail TEXT, previous TEXT, hash TEXT)",
    "payloads": "CREATE TABLE payloads(seq INTEGER PRIMARY KEY, bytes BLOB)",
    "unchanged": f"CREATE TRIGGER unchanged BEFORE UPDATE {_GROWS}",
    "undeleted": f"CREATE TRIGGER undeleted BEFORE DELETE {_GROWS}",
    "macs": "CREATE TABLE macs(seq INTEGER PRIMARY KEY, key TEXT, mac TEXT)",
    "covered": "CREATE TABLE covered(seq INTEGER PRIMARY KEY, added BLOB, removed BLOB)",
}

MAKE = (f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={_VERSION}", *_TABLES.values())
UPGRADE = (f"PRAGMA user_version={_VERSION}", _TABLES["macs"], _TABLES["covered"])
KIND, VERSION, TABLES = "PRAGMA application_id", "PRAGMA user_version", "SELECT name, sql FROM sqlite_master"
ROWS = "SELECT rows.*, macs.key, macs.mac FROM rows LEFT JOIN macs USING (seq) WHERE seq>? ORDER BY seq"
INSERT = "INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?,?)"
FIRST = "SELECT hash FROM rows WHERE seq=1"
COVERED, INSERT_COVERED = "SELECT * FROM covered", "INSERT INTO covered VALUES (?,?,?)"
INSERT_MAC = "INSERT INTO macs VALUES (?,?,?)"


def check(kind: int, version: int, tables: Mapping[str, str]) -> None:
    """Raise a `HushError` unless the results of `KIND`, `VERSION` and `TABLES` are those of a ledger."""
    if kind == 0 and not tables:
        raise HushError("empty: a process stopped while creating it, before any charge; delete it and run again")
    if kind != APPLICATION_ID:
        raise HushError("a SQLite file, but not a ledger; accepted: a ledger file")
    if version > _VERSION:
        raise HushError(f"written by a newer version of Hush (format {version}); accepted: format {_VERSION}")
    if version == 1:
        raise HushError(
            "written by an earlier version of Hush (format 1), which had no key; accepted: format 2; "
            "convert it with hush ledger adopt FILE"
        )
    if version != _VERSION or tables != _TABLES:
        raise BrokenLedgerError("its tables are not those of a ledger")
