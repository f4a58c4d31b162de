"""The rows of a ledger and the hash chain that ties them together.

Guarantees:
    - A row's hash covers everything in it and the hash of the row before, so that no row can be changed, dropped from
      the middle, repeated or moved without breaking the chain at that place.
    - `read` accepts exactly ten fields of the right types, and a row only where it belongs.
    - Anyone can recompute a hash: it is the SHA-256 of three lines, `seq at salt kind round attempt previous`, `run`
      and `detail`.

Edge cases:
    - The chain alone cannot tell that its last rows were cut off, or that the whole is an old copy. The head tells:
      kept beside the ledger (`hush.privacy.ledger.anchor`) and echoed by the server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from hush.types import HushError

START = "0" * 64
_HEAD = re.compile(r"([1-9][0-9]{0,18}):([0-9a-f]{64})")
_TYPES = (int, int, str, str, str, int, int, str, str, str)


class BrokenLedgerError(HushError):
    """The ledger is not what was written: rows are missing or changed."""


class Row(NamedTuple):
    """One line of a ledger: something that happened, never to be changed.

    `at` is the client's clock in seconds, for people only. `salt` is drawn anew for each row of a file, so that a copy
    which goes its own way never has the rows of the original. `detail` depends on `kind` (see `book`).
    """

    seq: int
    at: int
    salt: str
    kind: str
    run: str
    round: int
    attempt: int
    detail: str
    previous: str
    hash: str

    @property
    def head(self) -> str:
        """The row's number and hash, as receipts carry them and servers echo them."""
        return f"{self.seq}:{self.hash}"


def make(
    seq: int, at: int, salt: str, kind: str, run: str, number: int, attempt: int, detail: str, previous: str
) -> Row:
    """The row after the one whose hash is `previous`."""
    # Only the last of the three can hold a newline: no two rows give the same text.
    text = f"{seq} {at} {salt} {kind} {number} {attempt} {previous}\n{run}\n{detail}"
    return Row(seq, at, salt, kind, run, number, attempt, detail, previous, hashlib.sha256(text.encode()).hexdigest())


def read(raw: Sequence[object], after: int, previous: str) -> Row:
    """The stored row that follows row number `after`, or `BrokenLedgerError`."""
    place = f"row {after + 1}"
    if len(raw) != len(_TYPES) or any(type(value) is not kind for value, kind in zip(raw, _TYPES, strict=True)):
        raise BrokenLedgerError(f"{place} is not a row")
    row = Row._make(raw)
    if row.seq != after + 1:
        raise BrokenLedgerError(f"{place} is missing: row {row.seq} follows row {after}")
    if (
        row.previous != previous
        or row != make(*row[:-1])
        or not (row.salt + row.kind).isalnum()
        or not row.run.isprintable()
    ):
        raise BrokenLedgerError(f"{place} is not what was written")
    return row


def parse_head(text: str) -> tuple[int, str]:
    """Row number and hash of a head, or a `HushError`."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise HushError(f"head: found {text[:100]!r}; accepted: a row number, a colon and 64 hexadecimal digits")
    return int(found[1]), found[2]
