"""The errors of a ledger: their classes, and the conversion of disk and database errors.

Guarantees:
    - Every message names the ledger, and says what can be done or what is certain.
    - A damaged ledger is a `BrokenLedgerError`, a locked one a `LockedError`, so that callers can distinguish them.

Edge cases:
    - A locked ledger is the only error after which the same ledger object may be used again.
"""

from __future__ import annotations

from hush.types import HushError

# SQLite's result codes, which are stable.
_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 13, 14, 26
_CERTAIN = "nothing was released; charges are not refunded"


class BrokenLedgerError(HushError):
    """The ledger was damaged or modified: rows are missing or changed."""


class BudgetSpentError(HushError):
    """The next charge would exceed the client's budget."""


class LockedError(HushError):
    """Another process holds the ledger; nothing was changed."""


def is_locked(error: Exception) -> bool:
    """Whether an error only means that another process holds the ledger."""
    return _code(error) in (_BUSY, _LOCKED)


def with_ledger(where: object, error: HushError) -> HushError:
    """Return the same error with the ledger's name in front, unless it names the client."""
    text = str(error)
    return error if text.startswith((str(where), "client ")) else type(error)(f"{where}: {text}", error.key)


def from_fault(where: object, error: Exception) -> HushError:
    """Return the error for an exception of the operating system or SQLite."""
    if isinstance(error, OSError):
        return HushError(f"{where}: {error.strerror or error}; {_CERTAIN}")
    if is_locked(error):
        return LockedError(f"{where}: locked by another process; try again later")
    code = _code(error)
    if code == _NOTADB:
        return HushError(f"{where}: not a ledger: {error}; accepted: a ledger file")
    if code in (_FULL, _IOERR, _READONLY, _CANTOPEN):
        return HushError(f"{where}: {error}; {_CERTAIN}")
    return BrokenLedgerError(f"{where}: damaged: {error}")


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
