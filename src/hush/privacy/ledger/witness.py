"""The witness: what this machine remembers about ledgers outside their folders, a secret key and the newest rows.

    key                     32 random bytes, in hexadecimal
    heads/<ledger>          number and hash of the newest row that was ever committed here
    places/<hash of path>   which ledger was made or opened at a path

The directory is $HUSH_WITNESS; else $XDG_STATE_HOME/hush, or ~/.local/state/hush. A ledger's name here is the hash of
its first row, so that it is the same ledger wherever its file lies.

Guarantees:
    - A head is written after the commit that it speaks of, and never goes back. A witness may be behind its ledger
      after a crash: that is no fault. A ledger that lacks the row which its head names was rolled back or rewritten.
    - A head is locked from before a row is added until it names that row (`advancing`): of two copies of a ledger that
      are open at the same time, one can go on.
    - The key is made once, for its owner alone (mode 0600). Without it nobody can make the MAC of a row.
    - A directory that another user owns or can write to is refused.

Edge cases:
    - Whoever restores or writes this directory together with the ledger is not found out. Neither is whoever takes the
      ledger to a machine with another witness, but it has to be adopted there, and keeps that on record.
    - A lost key, or a lost directory, leaves ledgers that are refused until they are adopted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hush.privacy.ledger import files
from hush.privacy.ledger.book import Row
from hush.privacy.ledger.errors import BrokenLedgerError, LockedError
from hush.types import HushError

_LINE = re.compile(rb"([0-9]{20}):([0-9a-f]{64})\n")
_NAME = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{64}\n")
_WAIT = 5.0
_LOST = (
    "accepted: its latest copy; if it is lost, treat the budget of its rows as spent: use other rows, and a ledger "
    "with another name"
)


@dataclass(frozen=True)
class Key:
    """The secret key of a witness."""

    secret: bytes

    @property
    def name(self) -> str:
        """An identifier that distinguishes this key from others and reveals nothing else."""
        return self._derived("name")[:16]

    @property
    def rows(self) -> bytes:
        """The key of the fingerprints of training rows."""
        return bytes.fromhex(self._derived("rows"))

    def mac(self, digest: str) -> str:
        """The MAC of a row with this hash."""
        return self._derived(f"row {digest}")

    def _derived(self, text: str) -> str:
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class PathRecord:
    """Which ledger is at a path, and whether its owner retired it."""

    path: str
    ledger: str
    retired: bool = False


@dataclass(frozen=True)
class Advance:
    """The head of a ledger while rows are added: the stored head, and a function that updates it."""

    known: tuple[int, str]
    write: Callable[[int, str], None]


@dataclass(frozen=True)
class Witness:
    """The witness in a directory, which may not exist yet."""

    directory: Path

    def find_key(self) -> Key | None:
        """Return the key, if there is one."""
        path = self.directory / "key"
        with _naming_errors(path):
            try:
                _check_own(self.directory)
                mode = stat.S_IMODE(path.stat().st_mode)
                text = path.read_text(encoding="ascii", errors="replace")
            except FileNotFoundError:
                return None
        if mode & 0o077:
            raise HushError(f"{path}: accessible to other users (mode {mode:04o}); accepted: mode 0600 (chmod 600)")
        if not _KEY.fullmatch(text):
            raise HushError(f"{path}: damaged; accepted: the original key file")
        return Key(bytes.fromhex(text))

    def key(self) -> Key:
        """Return the key; it is created if there is none."""
        found = self.find_key()
        if found is not None:
            return found
        path, made = self.directory / "key", self.directory / f"key.{os.getpid()}"
        with _naming_errors(self.directory):
            self._make("")
            _write(made, f"{os.urandom(32).hex()}\n".encode())
            # The link fails if another process was first, in which case its key is used.
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
            made.unlink()
            files.keep(path)
        return self.key()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this witness."""
        self.key()
        with _naming_errors(self.directory):
            file = os.open(self.directory / "key", os.O_RDONLY | os.O_CLOEXEC)
        with _closing(file):
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def head(self, ledger: str) -> tuple[int, str] | None:
        """Number and hash of the newest recorded row of a ledger: number 0 if none was committed yet."""
        path = self.directory / "heads" / ledger
        with _naming_errors(path):
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            with _closing(file):
                fcntl.flock(file, fcntl.LOCK_SH)
                return _parsed(os.pread(file, 87, 0), path)

    def remember(self, ledger: str, seq: int, digest: str) -> None:
        """Record the newest row of a ledger, unless a newer one is recorded."""
        path = self.directory / "heads" / ledger
        line = _line(seq, digest)
        with _naming_errors(path):
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                self._make("heads")
                _replace(path, line)
                return
            with _closing(file):
                fcntl.flock(file, fcntl.LOCK_EX)
                if _parsed(os.pread(file, 87, 0), path)[0] < seq:
                    # In place and with constant length: after a power loss the file has the old line or the new one.
                    os.pwrite(file, line, 0)

    @contextlib.contextmanager
    def advancing(self, ledger: str) -> Iterator[Advance]:
        """The head of a ledger, locked while rows are added; `LockedError` if another process keeps it locked."""
        path = self.directory / "heads" / ledger
        with _naming_errors(path):
            if not path.exists():
                self.remember(ledger, 0, "0" * 64)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with _closing(file):
            deadline = time.monotonic() + _WAIT
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise LockedError(f"{path}: locked by another process for more than {_WAIT:g} s; try again later")
                time.sleep(0.001)

            def write(seq: int, digest: str) -> None:
                with _naming_errors(path):
                    os.pwrite(file, _line(seq, digest), 0)

            with _naming_errors(path):
                known = _parsed(os.pread(file, 87, 0), path)
            yield Advance(known, write)

    def check(self, known: tuple[int, str] | None, rows: Sequence[Row]) -> None:
        """Raise `BrokenLedgerError` if a ledger lacks the row of its head, which must be read before the rows.

        The order matters: a head that is read later may name a row that another process has added in the meantime.
        """
        if known is not None:
            found = rows[known[0] - 1].hash if 0 < known[0] <= len(rows) else ""
            self.check_newest(known, len(rows), found)

    def check_newest(self, known: tuple[int, str], rows: int, found: str) -> None:
        """The same for a ledger with this many rows, in which the row of the head has the hash `found`."""
        seq, digest = known
        if seq > rows:
            raise BrokenLedgerError(
                f"it ends at entry {rows}, but the witness in {self.directory} has recorded entry {seq}: an old "
                f"copy; {_LOST}"
            )
        if seq and found != digest:
            raise BrokenLedgerError(
                f"entry {seq} is not the one that the witness in {self.directory} has recorded: a changed or forked "
                "copy; "
                f"{_LOST}"
            )

    def place(self, path: Path) -> PathRecord | None:
        """Return what is recorded about a path."""
        file = self._place(path)
        with _naming_errors(file):
            try:
                return _read_path_record(file)
            except FileNotFoundError:
                return None

    def check_place(self, path: Path, ledger: str = "") -> PathRecord | None:
        """Return what is recorded about a path; a `HushError` if it belongs to another ledger."""
        found = self.place(path)
        if found is not None and not found.retired and found.ledger != ledger:
            head = self.head(found.ledger)
            raise BrokenLedgerError(
                f"{path}: another ledger belongs here ({found.ledger[:12]}, {head[0] if head else 0} rows), which was "
                "deleted, moved or replaced; accepted: that ledger, or another name. If the rows that it covered are "
                f"never used again: hush ledger retire {path}"
            )
        return found

    def occupy(self, path: Path, ledger: str) -> None:
        """Record that a ledger is at a path."""
        self._note(PathRecord(str(path.resolve()), ledger))

    def retire(self, path: Path) -> list[PathRecord]:
        """Retire the ledgers that were at this path or in this directory and no longer exist; returns them."""
        wanted, given_up = path.resolve(), list[PathRecord]()
        for file in sorted((self.directory / "places").glob("[!.]*")):
            with _naming_errors(file):
                found = _read_path_record(file)
            if not found.retired and (wanted == Path(found.path) or wanted in Path(found.path).parents):
                if Path(found.path).exists():
                    raise HushError(f"{found.path}: still exists; accepted: a ledger that was deleted or moved")
                given_up.append(found)
        for found in given_up:
            self._note(replace(found, retired=True))
        return given_up

    def _note(self, place: PathRecord) -> None:
        file = self._place(Path(place.path))
        with _naming_errors(file):
            self._make("places")
            _replace(file, json.dumps(asdict(place)).encode())

    def _place(self, path: Path) -> Path:
        return self.directory / "places" / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()

    def _make(self, name: str) -> None:
        (self.directory / name).mkdir(parents=True, exist_ok=True, mode=0o700)


def here(ledger: str | Path | None = None) -> Witness:
    """The witness of this machine and user; a `HushError` if it is next to or below the ledger."""
    found = _here()
    if ledger is None:
        return found
    folder = Path(ledger).resolve().parent
    if not found.directory.is_absolute() or folder in (found.directory.resolve(), *found.directory.resolve().parents):
        raise HushError(
            f"HUSH_WITNESS: {found.directory} would be copied or restored together with {ledger}; accepted: an "
            "absolute path outside the ledger's directory"
        )
    return found


def _here() -> Witness:
    named = os.environ.get("HUSH_WITNESS")
    if named:
        return Witness(Path(named))
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return Witness((Path(state) if state else Path.home() / ".local" / "state") / "hush")
    except RuntimeError:
        raise HushError("no home directory for the ledger witness; set HUSH_WITNESS to a directory") from None


def check_mac(key: Key | None, seq: int, digest: str, made_by: str | None, mac: str | None) -> bool:
    """Whether a row was made with this key; `BrokenLedgerError` if it claims to be and was not."""
    if key is None or made_by != key.name:
        return False
    if not hmac.compare_digest(str(mac), key.mac(digest)):
        raise BrokenLedgerError(f"entry {seq} has an invalid MAC: a changed copy; {_LOST}")
    return True


def _check_own(directory: Path) -> None:
    """Raise a `HushError` if other users own the directory or can write to it, and so could restore old heads."""
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & 0o022:
        raise HushError(
            f"{directory}: owned by user {found.st_uid}, mode {mode:04o}, so that others can write to it; accepted: a "
            "directory of your own for HUSH_WITNESS (chmod 700)"
        )


def _read_path_record(file: Path) -> PathRecord:
    """Parse the record of a path, or raise a `HushError`."""
    try:
        found = PathRecord(**json.loads(file.read_bytes()))
    except (ValueError, TypeError):
        found = None
    if found is None or not (isinstance(found.path, str) and _NAME.fullmatch(str(found.ledger))):
        raise HushError(f"{file}: damaged; accepted: the original file")
    return found


def _line(seq: int, digest: str) -> bytes:
    return b"%020d:%s\n" % (seq, digest.encode())


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parsed(text: bytes, path: Path) -> tuple[int, str]:
    found = _LINE.fullmatch(text)
    if found is None:
        raise HushError(f"{path}: damaged; accepted: the original file")
    return int(found[1]), found[2].decode()


def _write(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with _closing(file):
        os.write(file, content)
        os.fsync(file)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    _write(beside, content)
    beside.replace(path)
    files.keep(path)


@contextlib.contextmanager
def _closing(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def _naming_errors(path: Path) -> Iterator[None]:
    """Convert errors of the witness's files to errors that name them and the remedy."""
    try:
        yield
    except OSError as error:
        raise HushError(
            f"{path}: {error.strerror or error}; accepted: a private directory outside the ledger directories "
            "(HUSH_WITNESS)"
        ) from error
