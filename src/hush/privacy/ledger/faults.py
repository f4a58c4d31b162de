"""What a fault of the disk or of the database means for a client, in one line.

Guarantees:
    - Every message names the ledger, and says what can be done or what is certain.
    - A damaged ledger is a `BrokenLedgerError`, a busy one a `LockedError`: callers can tell them apart.

Edge cases:
    - A busy ledger is the only fault after which the same ledger object may be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hush.privacy.ledger.chain import BrokenLedgerError
from hush.types import HushError

# SQLite's result codes, which never change.
_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 13, 14, 26
_CERTAIN = "nothing was released, and what was charged stays charged"


Hook: TypeAlias = Callable[[str], None]


class LockedError(HushError):
    """Another process holds the ledger; nothing was changed."""


def ignore(point: str) -> None:
    """The hook that does nothing. Fault tests bring their own, which fails at a point of the protocol."""


def busy(error: Exception) -> bool:
    """Whether an error only says that another process is at work."""
    return _code(error) in (_BUSY, _LOCKED)


def named(where: object, error: HushError) -> HushError:
    """The same error with the ledger's name before it, unless it names the client."""
    text = str(error)
    return error if text.startswith((str(where), "client ")) else type(error)(f"{where}: {text}", error.key)


def of(where: object, error: Exception) -> HushError:
    """The error for anything that the operating system or SQLite reports."""
    if isinstance(error, OSError):
        return HushError(f"{where}: {error.strerror or error}; {_CERTAIN}")
    if busy(error):
        return LockedError(f"{where}: locked by another process; try again later")
    code = _code(error)
    if code == _NOTADB:
        return HushError(f"{where}: not a ledger: {error}; accepted: a ledger file")
    if code in (_FULL, _IOERR, _READONLY, _CANTOPEN):
        return HushError(f"{where}: {error}; {_CERTAIN}")
    return BrokenLedgerError(f"{where}: damaged: {error}")


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
