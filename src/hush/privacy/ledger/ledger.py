"""A client's own record of what it has spent: append-only, hash-chained, and the only maker of receipts.

    receipt = ledger.reserve(plan, 3, run="spring")    1. charged, on the disk, before any work
    ...                                                2. train
    ledger.seal(receipt, payload)                      3. the bytes and their SHA-256, on the disk
    ...                                                4. send exactly these bytes, and then
    ledger.sent(receipt)

Guarantees:
    - A charge is on the disk (SQLite, one transaction, synchronous=FULL) before `reserve` returns, sealed bytes before
      `seal` returns. So spent >= released, whenever the process dies or the power fails.
    - A charge that would take the client beyond its budget raises `BudgetSpentError` and charges nothing. The budget is
      for the life of the ledger, over all runs. Nothing is ever refunded.
    - A round of a run is charged once. If that charge burned, a higher attempt may be charged, and is charged again.
    - On opening, a charge without sealed bytes is BURNED; sealed bytes are `pending`, to be sent as they are.
    - Opening checks every row. A damaged ledger, or one that lacks a row it once had, is refused; `check_head` refuses
      an old copy of which only the server knows that it is old.
    - Processes that share a ledger take turns, and each sees the charges of the others.
    - After an error of the disk a ledger object does nothing more, since a second fsync may lie: open it again.

Edge cases:
    - While another process has the ledger open, no charge is burned on opening: it may be in training there.
    - The bytes of the charge that was sent last are kept (`sealed`), for a server that lost them and asks again.
    - SQLite's log (`-wal`) belongs to the ledger as long as it exists. Keep ledgers on a local disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from hush.privacy.cost import Cost
from hush.privacy.ledger import anchor, balance, book, chain, faults, files, schema, terms
from hush.privacy.ledger.account import Account, costs_of
from hush.privacy.ledger.anchor import Anchor
from hush.privacy.ledger.book import BURNED, READY, RESERVED, SENT, Book, Charge, Stamp
from hush.privacy.ledger.chain import BrokenLedgerError, Row
from hush.privacy.ledger.faults import Hook
from hush.privacy.ledger.terms import Terms
from hush.privacy.plan import PrivacyPlan
from hush.types import Accountant, HushError, Policy, Receipt

_SYNCHRONOUS = "FULL"
_WAIT = 5.0


class Ledger(Account):
    """An open ledger. Make one with `in_memory`, `create` or `open`."""

    def __init__(self, db: sqlite3.Connection, held: Book, where: str, keeper: Anchor | None, hook: Hook) -> None:
        super().__init__(held)
        self._db = db
        self._where = where
        self._anchor = keeper
        self._hook = hook
        self._stopped = ""

    @staticmethod
    def in_memory(client: int | str, policy: Policy, accountant: Accountant = "pld") -> Ledger:
        """A ledger for the length of one simulation."""
        agreed = Terms(client, policy, accountant)
        terms.check(agreed)
        db = sqlite3.connect(":memory:", isolation_level=None, cached_statements=16)
        return Ledger(db, _start(db, agreed, (0, "")), f"client {client}", None, faults.ignore)

    @staticmethod
    def create(path: str | Path, client: int | str, policy: Policy, accountant: Accountant = "pld") -> Ledger:
        """Make a new ledger file, for its owner's eyes alone."""
        path = Path(path)
        agreed = Terms(client, policy, accountant)
        terms.check(agreed)
        files.claim(path)
        try:
            with _translated(path), contextlib.closing(_connect(path, "mode=rw", _WAIT)) as db:
                _make_durable(db)
                _start(db, agreed, _stamp())
                files.keep(path)
        except BaseException:
            files.abandon(path)
            raise
        return Ledger.open(path)

    @staticmethod
    def open(
        path: str | Path,
        policy: Policy | None = None,
        accountant: Accountant | None = None,
        *,
        wait: float = _WAIT,
        hook: Hook = faults.ignore,
    ) -> Ledger:
        """Open a ledger file, check all of it, and burn what a dead process left in training.

        Args:
            path: The file.
            policy: What the client insists on now: the stored policy or a tighter one, which then is stored.
            accountant: The stored one.
            wait: How many seconds to wait for another process.
            hook: Called with the name of each point of the protocol as it is passed, for fault tests.
        """
        path = Path(path)
        files.check_private(path)
        with contextlib.ExitStack() as opened, _translated(path):
            keeper = Anchor(path, wait)
            opened.callback(keeper.close)
            known = keeper.read()
            db = opened.enter_context(contextlib.closing(_connect(path, "mode=rw", wait)))
            _, held = _load(db, known)
            _make_durable(db)
            ledger = Ledger(db, held, str(path), keeper, hook)
            ledger._settle(policy, accountant)
            opened.pop_all()
        return ledger

    def close(self) -> None:
        """Close the file. What is reserved and not sealed burns when it is opened again."""
        self._db.close()
        if self._anchor is not None:
            self._anchor.close()
        self._anchor, self._stopped = None, "closed"

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reserve(self, plan: PrivacyPlan, round_number: int, *, run: str = "", attempt: int = 1) -> Receipt:
        """Charge one round of the plan, or raise `BudgetSpentError`."""
        return self.reserve_costs(costs_of(plan), run, round_number, attempt)

    def reserve_costs(self, costs: Sequence[Cost], run: str, round_number: int, attempt: int = 1) -> Receipt:
        """Charge all that one round releases, or raise `BudgetSpentError`."""
        if not costs:
            raise HushError(f"{self._where}: nothing to reserve; accepted: at least one cost")
        with self._writing("reserve"):
            self._book.may_reserve(run, round_number, attempt)
            self._check(balance.plus(self._book.totals, costs))
            row = self._append(RESERVED, run, round_number, attempt, book.costs_text(tuple(costs)))
        return self._receipt(self._book.charges[row.seq])

    def seal(self, receipt: Receipt, payload: bytes) -> None:
        """Fix the bytes that this charge releases. Only these may ever be sent for it."""
        digest = hashlib.sha256(payload).hexdigest()
        with self._writing("seal"):
            charge = self._book.of(receipt.head)
            if charge.state not in (READY, SENT) or charge.sha256 != digest:
                self._follow(charge, READY, digest)
                self._db.execute("INSERT INTO payloads VALUES (?,?)", (charge.row.seq, payload))

    def sent(self, receipt: Receipt) -> None:
        """Note that the sealed bytes went out."""
        with self._writing("sent"):
            charge = self._book.of(receipt.head)
            if charge.state != SENT:
                for (seq,) in self._db.execute("SELECT seq FROM payloads").fetchall():
                    if self._book.charges[seq].state == SENT:
                        self._db.execute("DELETE FROM payloads WHERE seq=?", (seq,))
                self._follow(charge, SENT)

    def burn(self, receipt: Receipt) -> None:
        """Give a reservation up: it stays spent, and nothing can be sealed for it any more."""
        with self._writing("burn"):
            self._follow(self._book.of(receipt.head), BURNED)

    def pending(self) -> list[tuple[Receipt, bytes]]:
        """What was sealed and not noted as sent, oldest first: to be sent as it is."""
        charges = self._fresh().charges.values()
        return [found for each in charges if each.state == READY and (found := self._sealed(each)) is not None]

    def sealed(self, run: str, round_number: int) -> tuple[Receipt, bytes] | None:
        """The sealed bytes of a round, for a server that asks again, as long as they are kept."""
        charge = self._fresh().newest(run, round_number)
        return self._sealed(charge) if charge is not None and charge.state in (READY, SENT) else None

    def check_head(self, echoed: str) -> None:
        """Raise `BrokenLedgerError` if this ledger lacks the head that the server saw last (none: the empty text)."""
        if not echoed:
            return
        self._fresh()
        seq, digest = chain.parse_head(echoed)
        with _translated(self._where):
            found = self._db.execute("SELECT hash FROM rows WHERE seq=?", (seq,)).fetchone()
        if found != (digest,):
            raise BrokenLedgerError(
                f"{self._where}: the server has seen a row {seq} of this client's ledger that is not in this file: an "
                "old copy, or another ledger; accepted: the newest copy"
            )

    def _settle(self, policy: Policy | None, accountant: Accountant | None) -> None:
        """Agree on the terms, and burn what nobody can be training any more."""
        stored, keeper = self._book.terms, self._anchor
        wanted = Terms(stored.client, policy or stored.policy, accountant or stored.accountant)
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
        if keeper is not None and alone:
            keeper.write(self._book.rows, self._book.hash)
            keeper.share()

    @contextlib.contextmanager
    def _writing(self, step: str) -> Iterator[None]:
        """One durable transaction, or none at all."""
        before, committed = self._book.rows, False
        try:
            self._usable()
            self._db.execute("BEGIN IMMEDIATE")
            # Nobody else writes to a ledger in memory: its book is up to date, unless an interrupt has emptied it.
            if self._anchor is not None or not self._book.rows:
                self._fresh()
            before = self._book.rows
            yield
            self._hook(f"{step} inserted")
            self._db.execute("COMMIT")
            committed = True
            self._hook(f"{step} committed")
            if self._anchor is not None:
                self._anchor.write(self._book.rows, self._book.hash)
            self._hook(f"{step} anchored")
        except (OSError, sqlite3.Error) as error:
            if not faults.busy(error):
                self._stopped = f"stopped by an earlier error ({error}); open it again"
            raise faults.of(self._where, error) from error
        finally:
            if not committed:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                if self._book.rows != before:
                    self._book = Book()

    def _fresh(self) -> Book:
        """The book, with the rows that others have added."""
        self._usable()
        policy = self._book.terms.policy
        with _translated(self._where):
            for raw in self._db.execute(schema.ROWS, (self._book.rows,)):
                self._book.replay(raw)
        if self._book.terms.policy != policy:
            self._approved = {}
        return self._book

    def _usable(self) -> None:
        if self._stopped:
            raise HushError(f"{self._where}: {self._stopped}")

    def _append(self, kind: str, run: str = "", number: int = 0, attempt: int = 0, detail: str = "") -> Row:
        stamp = (0, "") if self._anchor is None else _stamp()
        row = self._book.append(stamp, kind, run, number, attempt, detail)
        self._db.execute(schema.INSERT, row)
        return row

    def _follow(self, charge: Charge, kind: str, detail: str = "") -> None:
        self._book.may_follow(charge, kind)
        self._append(kind, charge.row.run, charge.row.round, charge.row.attempt, detail)

    def _receipt(self, of: Charge) -> Receipt:
        return Receipt(self._book.terms.client, of.row.round, of.serial, of.row.run, of.row.head)

    def _sealed(self, charge: Charge) -> tuple[Receipt, bytes] | None:
        with _translated(self._where):
            found = self._db.execute("SELECT bytes FROM payloads WHERE seq=?", (charge.row.seq,)).fetchone()
        return None if found is None else (self._receipt(charge), found[0])


def stated(client: int, round_number: int, serial: int, run: str, head: str) -> Receipt:
    """A receipt that another client's ledger is said to have made: a claim to be kept and echoed, and no proof here."""
    return Receipt(client, round_number, serial, run, head)


def inspect(path: str | Path) -> tuple[list[Row], Book]:
    """All rows of a ledger file and what they add up to, checked, and without changing anything."""
    path = Path(path)
    files.check_present(path)
    with _translated(path):
        known = anchor.peek(path)
        log = files.beside(path, "-wal")
        # Without a log nobody is writing, and reading need not leave lock files behind.
        mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        with contextlib.closing(_connect(path, mode, _WAIT)) as db:
            return _load(db, known)


def _connect(path: Path, mode: str, wait: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=wait, isolation_level=None, uri=True)


def _stamp() -> Stamp:
    return int(time.time()), uuid.uuid4().hex


def _make_durable(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
        raise HushError("this file system cannot keep SQLite's log; accepted: a local disk")
    db.execute(f"PRAGMA synchronous={_SYNCHRONOUS}")
    db.execute("PRAGMA fullfsync=ON")


def _start(db: sqlite3.Connection, agreed: Terms, stamp: Stamp) -> Book:
    """Make the tables and the first row, all at once."""
    started = Book()
    db.execute("BEGIN IMMEDIATE")
    for statement in schema.MAKE:
        db.execute(statement)
    db.execute(schema.INSERT, started.append(stamp, book.OPENED, detail=terms.write(agreed)))
    db.execute("COMMIT")
    return started


def _load(db: sqlite3.Connection, known: tuple[int, str] | None) -> tuple[list[Row], Book]:
    """Read and check everything in the file, as it is at one moment."""
    db.execute("BEGIN")
    ((kind,),), ((version,),) = db.execute(schema.KIND), db.execute(schema.VERSION)
    schema.check(kind, version, dict(db.execute(schema.TABLES)))
    if db.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise BrokenLedgerError("its pages are damaged")
    read = Book()
    rows = [read.replay(raw) for raw in db.execute(schema.ROWS, (0,))]
    if not rows:
        raise BrokenLedgerError("it has no rows")
    anchor.check(known, rows)
    read.check_payloads(dict(db.execute("SELECT seq, bytes FROM payloads")))
    db.execute("COMMIT")
    return rows, read


@contextlib.contextmanager
def _translated(where: str | Path) -> Iterator[None]:
    """Let out no error but a `HushError` that names the ledger."""
    try:
        yield
    except HushError as error:
        raise faults.named(where, error) from error.__cause__
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        raise faults.of(where, error) from error
