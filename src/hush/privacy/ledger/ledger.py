"""The ledger: a client's own record of what it has spent, append-only, hash-chained, and the only maker of receipts.

    receipt = ledger.reserve(costs, "spring", 3)       1. charged, on the disk, before any work
    ...                                                2. train
    ledger.seal(receipt, payload)                      3. the bytes and their SHA-256, on the disk
    ...                                                4. send exactly these bytes, and then
    ledger.sent(receipt)

Guarantees:
    - A charge is on the disk (SQLite, one transaction, synchronous=FULL) before `reserve` returns, sealed bytes before
      `seal` returns. So spent >= released, whenever the process dies or the power fails.
    - A charge that would take the client beyond its budget raises `BudgetSpentError` and charges nothing. The budget is
      for the life of the ledger, over all runs. Nothing is ever refunded.
    - A round of a run is charged once. If that charge is forfeited, a higher attempt may be charged.
    - On opening, a charge without sealed bytes is forfeited; sealed bytes are `pending`, to be sent as they are.
    - Opening checks every row. A damaged ledger, or one that lacks a row which its anchor or this machine's witness has
      seen, is refused, and so is one that the witness does not know (`adopt`). `check_head` refuses an old copy of
      which only the server knows that it is old.
    - Processes that share a ledger take turns, and each sees the charges of the others. Of copies of a ledger that are
      open at the same time, one can be written.
    - After an error of the disk a ledger object does nothing more, since a second fsync may lie: open it again.

Edge cases:
    - While another process has the ledger open, no charge is forfeited on opening: it may be in training there.
    - The bytes that were sent last in each run are kept (`sealed`), for a server that lost them and asks again, until
      it acknowledges them (`acknowledge`); of the runs in which it never does, those of the latest few.
    - Large sealed bytes are in files beside the ledger (`hush.privacy.ledger.payloads`), and belong to it.
    - SQLite's log (`-wal`) belongs to the ledger as long as it exists. Keep ledgers on a local disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hush.privacy.accounting.cost import Cost
from hush.privacy.accounting.privacy_filter import NOTHING
from hush.privacy.ledger import (
    anchor,
    book,
    errors,
    files,
    fingerprints,
    payloads,
    schema,
    terms,
    totals,
    witness,
)
from hush.privacy.ledger.account import Account
from hush.privacy.ledger.anchor import Anchor
from hush.privacy.ledger.book import BURNED, READY, RESERVED, SENT, Book, Charge, Row, Stamp
from hush.privacy.ledger.errors import BrokenLedgerError
from hush.privacy.ledger.fingerprints import Prints
from hush.privacy.ledger.terms import LedgerTerms
from hush.privacy.ledger.witness import Key, Witness
from hush.types import Accountant, HushError, Policy, Receipt

Failpoint: TypeAlias = Callable[[str], None]  # called with the name of each point of the protocol, for fault injection

_SYNCHRONOUS = "FULL"
_RUNS_KEPT = 8
_WAIT = 5.0
_COPIES = 5  # attempts to copy a ledger that is in use
_UNKNOWN = (
    "not known on this machine: the witness in {} has no record of it. If it was moved here and is the latest "
    "copy, run: hush ledger adopt {}. The ledger records the adoption"
)


class Coverage(NamedTuple):
    """The rows that a ledger covers now, all rows that it ever covered, and whether it has been charged."""

    now: Prints
    ever: Prints
    charged: bool


class Ledger(Account):
    """An open ledger. Create one with `in_memory`, `create` or `open`."""

    def __init__(
        self, db: sqlite3.Connection, ledger_book: Book, where: str, failpoint: Failpoint | None = None,
        keeper: Anchor | None = None,
        seen_by: Witness | None = None, key: Key | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ledger_book)
        self._db = db
        self._where = where
        self._file = None if keeper is None else Path(where)
        self._anchor = keeper
        self._witness = seen_by
        self._key = key
        self._failpoint = failpoint
        self._stopped = ""
        self._name = ledger_book.name
        self._bound: int | None = None

    @staticmethod
    def in_memory(client: int | str, policy: Policy, accountant: Accountant = "pld") -> Ledger:
        """A ledger for one simulation, which is not stored."""
        agreed = LedgerTerms(client, policy, accountant)
        terms.check(agreed)
        db = sqlite3.connect(":memory:", isolation_level=None, cached_statements=16)
        return Ledger(db, _start(db, agreed, (0, "")), f"client {client}")

    @staticmethod
    def create(path: str | Path, client: int | str, policy: Policy, accountant: Accountant = "pld") -> Ledger:
        """Create a ledger file that only its owner can read."""
        path = Path(path)
        agreed = LedgerTerms(client, policy, accountant)
        terms.check(agreed)
        here = witness.here(path)
        files.claim(path)
        try:
            before, key = here.check_place(path), here.key()
            with _translated(path), contextlib.closing(_connect(path, "mode=rw", _WAIT)) as db:
                _make_durable(db)
                made = _begin(db, agreed, _stamp(), key)
                if before is not None:
                    _insert(db, made.append(_stamp(), book.REPLACES, detail=before.ledger), key)
                # Before the commit, so that the witness knows every ledger that exists, whenever the process dies.
                here.remember(made.name, 0, made.hash)
                db.execute("COMMIT")
                files.keep(path)
        except BaseException:
            files.abandon(path)
            raise
        here.occupy(path, made.name)
        return Ledger.open(path)

    @staticmethod
    def adopt(path: str | Path, *, wait: float = _WAIT) -> Ledger:
        """Open a ledger that this machine does not know, and record that its owner declares it to be the latest copy.

        A ledger of which this machine knows a newer or a different row is still refused.
        """
        path = Path(path)
        files.check_private(path)
        here = witness.here(path)
        with contextlib.ExitStack() as opened, _translated(path):
            db, keeper, known = _attached(path, wait, opened)
            _upgrade(db)
            key = here.key()
            _, ledger_book, vouched = _load(path, db, known, here, key, _seen(db, here))
            if vouched:
                raise HushError("already registered on this machine; nothing to adopt")
            here.check_place(path, ledger_book.name)
            _make_durable(db)
            here.remember(ledger_book.name, 0, ledger_book.hash)
            ledger = Ledger(db, ledger_book, str(path), None, keeper, here, key)
            with ledger._writing("adopt"):
                ledger._append(book.ADOPTED, detail=key.name)
            here.occupy(path, ledger_book.name)
            ledger._settle(None, None)
            opened.pop_all()
        return ledger

    @staticmethod
    def open(
        path: str | Path,
        policy: Policy | None = None,
        accountant: Accountant | None = None,
        *,
        wait: float = _WAIT,
        failpoint: Failpoint | None = None,
    ) -> Ledger:
        """Open a ledger file, check all of it, and forfeit charges without sealed bytes that a dead process left.

        Args:
            path: The file.
            policy: The client's current policy: the stored one, or a stricter one, which is then stored.
            accountant: The stored accountant.
            wait: How many seconds to wait for another process.
            failpoint: Called with the name of each point of the protocol, for fault injection.
        """
        path = Path(path)
        files.check_private(path)
        here = witness.here(path)
        with contextlib.ExitStack() as opened, _translated(path):
            db, keeper, known = _attached(path, wait, opened)
            key = here.find_key()
            _, ledger_book, vouched = _load(path, db, known, here, key, _seen(db, here))
            if not vouched:
                raise HushError(_UNKNOWN.format(here.directory, path))
            if here.check_place(path, ledger_book.name) is None:
                here.occupy(path, ledger_book.name)
            _make_durable(db)
            ledger = Ledger(db, ledger_book, str(path), failpoint, keeper, here, key)
            ledger._settle(policy, accountant)
            opened.pop_all()
        return ledger

    def close(self) -> None:
        """Close the file. Charges that are not sealed are forfeited when it is opened again."""
        self._db.close()
        if self._anchor is not None:
            self._anchor.close()
        self._anchor, self._stopped = None, "closed"

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reserve(
        self, costs: Sequence[Cost], run: str, round_number: int, attempt: int = 1, sealed: bytes | None = None
    ) -> Receipt:
        """Charge everything that one round releases, or raise `BudgetSpentError`.

        What the round releases may be settled beforehand: bytes given as `sealed` are sealed in the same transaction,
        so that no process can die between the charge and the seal.
        """
        if not costs:
            raise HushError(f"{self._where}: nothing to reserve; accepted: at least one cost")
        with self._writing("reserve"):
            self._book.may_reserve(run, round_number, attempt)
            if self._bound is not None and self._bound < self._book.covered_first:
                raise HushError(
                    f"{self._where}: another run started at the same time has registered different rows; start again"
                )
            conversion = self._admitted(self._book, costs, run)
            if conversion is not None:
                self._append(book.PLANNED, run, detail=book.planned_text(costs, conversion))
            row = self._append(RESERVED, run, round_number, attempt, book.costs_text(tuple(costs)))
            if sealed is not None:
                self._follow(self._book.charges[row.seq], READY, hashlib.sha256(sealed).hexdigest())
                payloads.store(self._db, self._file, row.seq, sealed)
        return self._receipt(self._book.charges[row.seq])

    def approve(self, costs: Iterable[Cost], run: str = "") -> None:
        """Admit the schedule of a run, of which rounds may have been charged, as a whole; or raise `BudgetSpentError`.

        All of it must have been fixed before its first release. Single charges within it are then admitted, unless
        other runs spend the budget in the meantime.
        """
        whole, charged = totals.add_costs({}, costs), totals.add_costs({}, self.charged(run))
        rest = {key: max(0, steps - charged.get(key, 0)) for key, steps in whole.items()}
        remaining = totals.totals_as_costs(rest)
        conversion = self._admitted(self._fresh(), remaining, run)
        first = not self._book.first and bool(remaining) and math.isfinite(self._book.terms.policy.epsilon)
        if conversion is not None or first:
            with self._writing("plan"):
                conversion = self._admitted(self._book, remaining, run)
                if conversion is not None or not self._book.first:
                    detail = book.planned_text(remaining, conversion or NOTHING)
                    self._append(book.PLANNED, run, detail=detail)
        self._approved = totals.add_costs(self._book.totals, remaining)

    def tighten(self, policy: Policy) -> None:
        """Apply a stricter policy from now on, permanently; a looser one is a `HushError`."""
        if policy != self._fresh().terms.policy:
            with self._writing("tighten"):
                terms.check_tighter(replace(self._book.terms, policy=policy), self._book.terms)
                self._append(book.POLICY, detail=terms.write_policy(policy))
            self._approved = {}

    def seal(self, receipt: Receipt, payload: bytes) -> None:
        """Store the bytes that this charge releases. No other bytes may be sent for it."""
        digest = hashlib.sha256(payload).hexdigest()
        with self._writing("seal"):
            charge = self._book.of(receipt.head)
            if charge.state not in (READY, SENT) or charge.sha256 != digest:
                self._follow(charge, READY, digest)
                payloads.store(self._db, self._file, charge.row.seq, payload)
                if self._failpoint is not None:
                    self._failpoint("seal stored")

    def sent(self, receipt: Receipt) -> None:
        """Record that the sealed bytes were sent."""
        with self._writing("sent"):
            charge, over = self._book.of(receipt.head), set[int]()
            if charge.state != SENT:
                latest: dict[str, int] = {charge.row.run: charge.row.seq}
                for seq, row in sorted(self._kept().items(), reverse=True):
                    if len(latest) < _RUNS_KEPT:
                        latest.setdefault(row.run, seq)
                over = set(self._kept()) - set(latest.values())
                payloads.drop(self._db, over)
                self._follow(charge, SENT)
        payloads.remove(self._file, over)

    def acknowledge(self, run: str, before: int | None = None) -> None:
        """Delete what was sent in a run, in rounds before this one: the server has what it needs of them.

        Asked for such a round again, the client has nothing to send. Nothing else changes. Before the run ends, only
        files are deleted: small bytes in the database make room for the next ones anyway, without a transaction more.
        """
        self._fresh()
        over = {seq for seq, row in self._kept().items() if row.run == run and (before is None or row.round < before)}
        payloads.remove(self._file, over)
        if over and before is None:
            with self._writing("acknowledge"):
                payloads.drop(self._db, over)

    def _kept(self) -> dict[int, Row]:
        """The charges whose bytes were sent and are still stored."""
        charges = self._book.charges
        seqs = payloads.numbers(self._db, self._file)
        return {seq: charges[seq].row for seq in seqs if seq in charges and charges[seq].state == SENT}

    def forfeit(self, receipt: Receipt) -> None:
        """Forfeit a charge: it remains spent, and nothing can be sealed for it any more."""
        with self._writing("forfeit"):
            self._follow(self._book.of(receipt.head), BURNED)

    def forfeit_unsealed(self, run: str, round_number: int) -> None:
        """Forfeit a round's charge if nothing is sealed for it, because the process that made it can no longer seal."""
        found = self._fresh().newest(run, round_number)
        if found is not None and found.state == RESERVED:
            with self._writing("forfeit"):
                now = self._book.newest(run, round_number)
                if now is not None and now.state == RESERVED:
                    self._follow(now, BURNED)

    def sealed(self, run: str, round_number: int) -> tuple[Receipt, bytes] | None:
        """The sealed bytes of a round, if they are still stored, for a server that asks again."""
        charge = self._fresh().newest(run, round_number)
        return self._sealed(charge) if charge is not None and charge.state in (READY, SENT) else None

    @property
    def where(self) -> str:
        """The ledger's file."""
        return self._where

    def coverage(self) -> Coverage:
        """The rows that this ledger covers, by their fingerprints under this machine's key."""
        ledger_book = self._fresh()
        with _translated(self._where):
            return _coverage(self._db, ledger_book, self._key)

    def cover(self, added: Prints, removed: Prints, *, charged: bool) -> None:
        """Register new rows and missing rows. Missing rows remain covered by this ledger.

        `charged` is the state that the decision was based on: it is a `HushError` if another process has charged the
        ledger since. If another process replaces the rows before the first charge, this object makes no further
        charges.
        """
        if self._key is None:
            raise HushError(f"{self._where}: a ledger in memory covers no rows; accepted: a ledger file")
        blobs = fingerprints.write(added), fingerprints.write(removed)
        if not (added or removed):
            self._bound = self._fresh().rows
            return
        with self._writing("cover"):
            if bool(self._book.charges) != charged:
                raise HushError(f"{self._where}: another run has charged it in the meantime; start again")
            row = self._append(book.COVERED, detail=book.covered_text(self._key.name, *blobs))
            self._db.execute(schema.INSERT_COVERED, (row.seq, *blobs))
        self._bound = row.seq

    def check_head(self, echoed: str) -> None:
        """Raise `BrokenLedgerError` if this ledger lacks the head that the server saw last (none: the empty text)."""
        if not echoed:
            return
        self._fresh()
        seq, digest = book.parse_head(echoed)
        with _translated(self._where):
            found = self._hash(seq)
        if found != digest:
            raise BrokenLedgerError(
                f"{self._where}: the server has recorded entry {seq} of this client's ledger, which is not in this "
                "file: an "
                "old copy, or another ledger; accepted: the latest copy"
            )

    def _settle(self, policy: Policy | None, accountant: Accountant | None) -> None:
        """Check the terms, and forfeit charges that no process can be working on."""
        stored, keeper = self._book.terms, self._anchor
        wanted = LedgerTerms(stored.client, policy or stored.policy, accountant or stored.accountant)
        terms.check_tighter(wanted, stored)
        alone = keeper is not None and keeper.alone
        orphans = [charge for charge in self._book.charges.values() if charge.state == RESERVED and alone]
        if orphans or wanted.policy != stored.policy:
            with self._writing("open"):
                for charge in orphans:
                    self._follow(charge, BURNED)
                terms.check_tighter(wanted, self._book.terms)
                if wanted.policy != stored.policy:
                    self._append(book.POLICY, detail=terms.write_policy(wanted.policy))
        if alone:
            payloads.remove(self._file, payloads.orphaned_files(self._file, self._book.charges))
        if keeper is not None and alone:
            keeper.write(self._book.rows, self._book.hash)
            keeper.share()
        if self._witness is not None:
            # After a crash it may be some rows behind.
            self._witness.remember(self._book.name, self._book.rows, self._book.hash)

    @contextlib.contextmanager
    def _writing(self, step: str) -> Iterator[None]:
        """One durable transaction; on an error nothing is written."""
        before, committed, locks = self._book.rows, False, contextlib.ExitStack()
        try:
            self._usable()
            head = None if self._witness is None else locks.enter_context(self._witness.advancing(self._name))
            self._db.execute("BEGIN IMMEDIATE")
            # No other process writes to a ledger in memory: its book is up to date, unless an interrupt has cleared it.
            if self._anchor is not None or not self._book.rows:
                self._fresh()
            before = self._book.rows
            if self._witness is not None and head is not None:
                with _translated(self._where):
                    self._witness.check_newest(head.known, before, self._hash(head.known[0]))
            yield
            if self._failpoint is not None:
                self._failpoint(f"{step} inserted")
            self._db.execute("COMMIT")
            committed = True
            if self._failpoint is not None:
                self._failpoint(f"{step} committed")
            if self._anchor is not None:
                self._anchor.write(self._book.rows, self._book.hash)
            if self._failpoint is not None:
                self._failpoint(f"{step} anchored")
            if head is not None:
                head.write(self._book.rows, self._book.hash)
            if self._failpoint is not None:
                self._failpoint(f"{step} witnessed")
        except (OSError, sqlite3.Error) as error:
            if not errors.is_locked(error):
                self._stopped = f"stopped by an earlier error ({error}); open it again"
            raise errors.from_fault(self._where, error) from error
        finally:
            if not committed:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                if self._book.rows != before:
                    self._book = Book()
            locks.close()

    def _fresh(self) -> Book:
        """The book, including rows written by other processes."""
        self._usable()
        policy = self._book.terms.policy
        with _translated(self._where):
            vouched = True
            for raw in self._db.execute(schema.ROWS, (self._book.rows,)):
                vouched = _replayed(self._book, raw, self._key)
            if not vouched and self._key is not None:
                raise BrokenLedgerError(
                    "its latest entry was written with another key: it was adopted elsewhere in the meantime"
                )
        if self._book.terms.policy != policy:
            self._approved = {}
        return self._book

    def _hash(self, seq: int) -> str:
        """The hash of a row, or the empty text."""
        found = self._db.execute("SELECT hash FROM rows WHERE seq=?", (seq,)).fetchone()
        return "" if found is None else str(found[0])

    def _usable(self) -> None:
        if self._stopped:
            raise HushError(f"{self._where}: {self._stopped}")

    def _append(self, kind: str, run: str = "", number: int = 0, attempt: int = 0, detail: str = "") -> Row:
        stamp = (0, "") if self._anchor is None else _stamp()
        row = self._book.append(stamp, kind, run, number, attempt, detail)
        _insert(self._db, row, self._key)
        return row

    def _follow(self, charge: Charge, kind: str, detail: str = "") -> None:
        self._book.may_follow(charge, kind)
        self._append(kind, charge.row.run, charge.row.round, charge.row.attempt, detail)

    def _receipt(self, of: Charge) -> Receipt:
        return Receipt(self._book.terms.client, of.row.round, of.serial, of.row.run, of.row.head)

    def _sealed(self, charge: Charge) -> tuple[Receipt, bytes] | None:
        with _translated(self._where):
            found = payloads.find(self._db, self._file, charge.row.seq)
        return None if found is None else (self._receipt(charge), found)


def claimed_receipt(client: int, round_number: int, serial: int, run: str, head: str) -> Receipt:
    """Return a receipt as another client's ledger is said to have made it: a claim that is stored, not a proof."""
    return Receipt(client, round_number, serial, run, head)


def inspect(path: str | Path) -> tuple[list[Row], Book]:
    """Return all rows of a ledger file and the book, checked, without changing anything."""
    rows, ledger_book, _ = examine(path)
    return rows, ledger_book


def examine(path: str | Path) -> tuple[list[Row], Book, bool]:
    """The same, and whether this machine's witness confirms it. A ledger that contradicts the witness is refused."""
    with _reading(Path(path)) as (db, known):
        here = witness.here(path)
        return _load(Path(path), db, known, here, here.find_key(), _seen(db, here))


def copy(path: str | Path, target: Path) -> None:
    """Write a consistent copy of a ledger, which may be in use, with its sealed files; the copy is checked.

    The copy is a backup: it is usable only as long as nothing was charged since, which this machine's witness and the
    server know.
    """
    path, fault = Path(path), BrokenLedgerError(f"{path}: cannot be copied")
    for _ in range(_COPIES):
        with _reading(path) as (db, _):
            here = witness.here(path)
            seen = _seen(db, here)
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.closing(sqlite3.connect(target)) as made:
                db.backup(made)
        payloads.copy(path, target)
        try:
            # What was charged since the copy began need not be in it.
            with _reading(target) as (db, known):
                _load(target, db, known, here, here.find_key(), seen)
        except BrokenLedgerError as error:
            # Another process deleted a payload between two steps: once more.
            fault = error
            files.abandon(target)
            payloads.discard(target)
        else:
            return
    raise fault


def coverage(path: str | Path) -> Coverage:
    """Return `Ledger.coverage` without opening the ledger for use; this machine must know the ledger."""
    with _reading(Path(path)) as (db, known):
        here = witness.here(path)
        key = here.find_key()
        _, ledger_book, vouched = _load(Path(path), db, known, here, key, _seen(db, here))
        if not vouched:
            raise HushError(_UNKNOWN.format(here.directory, path))
        return _coverage(db, ledger_book, key)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[sqlite3.Connection, tuple[int, str] | None]]:
    """A read-only connection, and the content of the anchor."""
    files.check_present(path)
    with _translated(path):
        known = anchor.peek(path)
        log = files.sibling(path, "-wal")
        # Without a log no process is writing, and reading need not create lock files.
        mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        with contextlib.closing(_connect(path, mode, _WAIT)) as db:
            yield db, known


def _coverage(db: sqlite3.Connection, ledger_book: Book, key: Key | None) -> Coverage:
    now: Prints = Counter()
    ever: Prints = Counter()
    first = min(ledger_book.charges, default=None)
    blobs = {seq: (added, removed) for seq, added, removed in db.execute(schema.COVERED)}
    for row in ledger_book.notes:
        if row.kind == book.COVERED and key is not None and book.covered_key(row.detail) == key.name:
            added, removed = (fingerprints.read(blob) for blob in blobs[row.seq])
            now = now + added - removed
            # Rows that were replaced before the first charge were never used in a release.
            ever = now if first is None or row.seq < first else ever | now
    return Coverage(now, ever, first is not None)


def _connect(path: Path, mode: str, wait: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=wait, isolation_level=None, uri=True)


def _stamp() -> Stamp:
    return int(time.time()), uuid.uuid4().hex


def _make_durable(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
        raise HushError("this file system does not support SQLite's write-ahead log; accepted: a local disk")
    db.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
    db.execute("PRAGMA fullfsync=ON")


def _start(db: sqlite3.Connection, agreed: LedgerTerms, stamp: Stamp) -> Book:
    """Create the tables and the first row in one transaction."""
    started = _begin(db, agreed, stamp, None)
    db.execute("COMMIT")
    return started


def _begin(db: sqlite3.Connection, agreed: LedgerTerms, stamp: Stamp, key: Key | None) -> Book:
    """The same up to the commit."""
    started = Book()
    db.execute("BEGIN IMMEDIATE")
    for statement in schema.MAKE:
        db.execute(statement)
    _insert(db, started.append(stamp, book.OPENED, detail=terms.write(agreed)), key)
    return started


def _insert(db: sqlite3.Connection, row: Row, key: Key | None) -> None:
    db.execute(schema.INSERT, row)
    if key is not None:
        db.execute(schema.INSERT_MAC, (row.seq, key.name, key.mac(row.hash)))


def _replayed(ledger_book: Book, raw: Sequence[Any], key: Key | None) -> bool:
    """Check and apply a stored row; return whether it was made with this key."""
    row = ledger_book.replay(raw[:-2])
    return witness.check_mac(key, row.seq, row.hash, *raw[-2:])


def _upgrade(db: sqlite3.Connection) -> None:
    """Add the tables that a ledger of format 1 lacks. Its rows do not change."""
    ((kind,),), ((version,),) = db.execute(schema.KIND), db.execute(schema.VERSION)
    if kind == schema.APPLICATION_ID and version == 1:
        db.execute("BEGIN IMMEDIATE")
        for statement in schema.UPGRADE:
            db.execute(statement)
        db.execute("COMMIT")


def _attached(
    path: Path, wait: float, opened: contextlib.ExitStack
) -> tuple[sqlite3.Connection, Anchor, tuple[int, str] | None]:
    """A ledger file's connection and anchor, which are closed with `opened`, and the head in the anchor."""
    keeper = Anchor(path, wait)
    opened.callback(keeper.close)
    known = keeper.read()
    return opened.enter_context(contextlib.closing(_connect(path, "mode=rw", wait))), keeper, known


def _seen(db: sqlite3.Connection, here: Witness) -> tuple[int, str] | None:
    """Return the last entry of this ledger that the witness has recorded."""
    ((kind,),) = db.execute(schema.KIND)
    first = db.execute(schema.FIRST).fetchone() if kind == schema.APPLICATION_ID else None
    return here.head(first[0]) if first is not None and re.fullmatch("[0-9a-f]{64}", str(first[0])) else None


def _load(
    path: Path,
    db: sqlite3.Connection,
    known: tuple[int, str] | None,
    here: Witness,
    key: Key | None,
    seen: tuple[int, str] | None,
) -> tuple[list[Row], Book, bool]:
    """Read and check a consistent snapshot of the file, and whether the witness knows it, by head and key.

    `seen` is what the witness had recorded before: the snapshot must not be older.
    """
    db.execute("BEGIN")
    ((kind,),), ((version,),) = db.execute(schema.KIND), db.execute(schema.VERSION)
    schema.check(kind, version, dict(db.execute(schema.TABLES)))
    if db.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise BrokenLedgerError("its database pages are damaged")
    read, rows, vouched = Book(), list[Row](), False
    for raw in db.execute(schema.ROWS, (0,)):
        vouched = _replayed(read, raw, key)
        rows.append(Row._make(raw[:-2]))
    if not rows:
        raise BrokenLedgerError("it has no entries")
    anchor.check(known, rows)
    here.check(seen, rows)
    read.check_payloads(payloads.stored(db, path, read.charges))
    read.check_covered({seq: (added, removed) for seq, added, removed in db.execute(schema.COVERED)})
    db.execute("COMMIT")
    return rows, read, vouched and seen is not None


@contextlib.contextmanager
def _translated(where: str | Path) -> Iterator[None]:
    """Convert all errors to a `HushError` that names the ledger."""
    try:
        yield
    except HushError as error:
        raise errors.with_ledger(where, error) from error.__cause__
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise errors.from_fault(where, error) from error
