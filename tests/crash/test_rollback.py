"""Ledgers that were rolled back, rewritten, deleted or moved: what a witness outside their folder finds out."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BrokenLedgerError, Ledger, book, schema, statement, witness
from hush.types import HushError, Policy
from tests.support.fork_server import command

POLICY = Policy(2.0, 1e-5)
COSTS = (Cost(what="model update", kind="gaussian", noise=60.0, steps=1),)
NAME = "client.ledger"
QUICK, SOAK = 3, 50


def spend(path: Path, run: str, rounds: int) -> None:
    with Ledger.open(path) as ledger:
        for number in range(1, rounds + 1):
            receipt = ledger.reserve(COSTS, run, number)
            ledger.seal(receipt, b"bytes")
            ledger.sent(receipt)


def hush(*words: object) -> str:
    """What a `hush ledger` command prints."""
    done = command("ledger", *words, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def head(folder: Path) -> Path:
    return folder / f"{NAME}.head"


@contextlib.contextmanager
def unlocked(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database with its triggers off, as someone without the key would change it."""
    with contextlib.closing(sqlite3.connect(folder / NAME)) as db:
        triggers = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'"))
        for name in triggers:
            db.execute(f"DROP TRIGGER {name}")
        yield db
        for statement_ in triggers.values():
            db.execute(statement_)
        db.commit()


def rehash(folder: Path, first: int = 2) -> None:
    """Make the charges from a row on cheaper, hash the chain again, and have the anchor name its new end."""
    with unlocked(folder) as db:
        rows = list(db.execute("SELECT * FROM rows ORDER BY seq"))
        db.execute("DELETE FROM rows")
        previous = book.START
        for row in rows:
            detail = row[7].replace('"noise":60.0', '"noise":6000.0').replace('"client":7', '"client":8')
            made = book.make_row(*row[:7], detail if row[0] >= first else row[7], previous)  # type: ignore[call-arg]
            previous = made.hash
            db.execute(schema.INSERT, made)
    head(folder).write_bytes(b"%020d:%s\n" % (len(rows), previous.encode()))


def whole_folder(old: Path, now: Path) -> None:
    shutil.rmtree(now)
    shutil.copytree(old, now)


def ledger_alone(old: Path, now: Path) -> None:
    shutil.copy(old / NAME, now / NAME)


def without_head(old: Path, now: Path) -> None:
    shutil.copy(old / NAME, now / NAME)
    head(now).unlink()


def with_empty_head(old: Path, now: Path) -> None:
    shutil.copy(old / NAME, now / NAME)
    head(now).write_bytes(b"")


def old_and_grown(old: Path, now: Path) -> None:
    """An old copy that was worked with elsewhere until it is longer than the original."""
    whole_folder(old, now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUSH_WITNESS", f"{now.parent}-elsewhere")
        Ledger.adopt(now / NAME).close()
        spend(now / NAME, "elsewhere", 12)


def rehashed(_: Path, now: Path) -> None:
    rehash(now)


def rehashed_from_its_first_row(_: Path, now: Path) -> None:
    rehash(now, 1)


def rehashed_without_macs(_: Path, now: Path) -> None:
    rehash(now)
    with unlocked(now) as db:
        db.execute("DELETE FROM macs")


def rehashed_as_an_older_format(_: Path, now: Path) -> None:
    rehash(now)
    with unlocked(now) as db:
        db.execute("DROP TABLE macs")
        db.execute("DROP TABLE covered")
        db.execute("PRAGMA user_version=1")


def deleted_and_created_anew(_: Path, now: Path) -> None:
    shutil.rmtree(now)
    now.mkdir()
    Ledger.create(now / NAME, 7, POLICY).close()


def replaced_by_another(_: Path, now: Path) -> None:
    fresh = now.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    Ledger.create(fresh / NAME, 7, POLICY).close()
    whole_folder(fresh, now)


KINDS: list[Callable[[Path, Path], None]] = [
    whole_folder, ledger_alone, without_head, with_empty_head, old_and_grown, rehashed, rehashed_from_its_first_row,
    rehashed_without_macs, rehashed_as_an_older_format, deleted_and_created_anew, replaced_by_another,
]  # fmt: skip


def restore(directory: Path, kind: Callable[[Path, Path], None], times: int) -> list[str]:
    """The refusals to open and to adopt a ledger that is rolled back repeatedly; the true one still opens."""
    refusals = []
    now, old, true = (directory / name for name in ("now", "old", "true"))
    now.mkdir()
    Ledger.create(now / NAME, 7, POLICY).close()
    for number in range(times):
        spend(now / NAME, f"before {number}", 1)
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(now, old)
        spend(now / NAME, f"after {number}", 1 + number % 3)
        shutil.rmtree(true, ignore_errors=True)
        shutil.copytree(now, true)
        for use in (Ledger.open, Ledger.adopt):
            with pytest.raises(HushError) as found:
                kind(old, now)
                use(now / NAME).close()
            refusals.append(str(found.value))
            whole_folder(true, now)
            shutil.rmtree(directory / "elsewhere", ignore_errors=True)
    assert statement.describe(now / NAME)["witnessed"] is True
    spend(now / NAME, "last", 1)
    return refusals


def one_line_each(refusals: list[str]) -> bool:
    return all("accepted: " in text and "\n" not in text for text in refusals)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_rollback_is_refused(tmp_path: Path, kind: Callable[[Path, Path], None]) -> None:
    refusals = restore(tmp_path, kind, QUICK)
    assert len(refusals) == 2 * QUICK
    assert one_line_each(refusals), refusals


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fifty_rollbacks_are_refused(tmp_path: Path, kind: Callable[[Path, Path], None]) -> None:
    refusals = restore(tmp_path, kind, SOAK)
    assert len(refusals) == 2 * SOAK
    assert one_line_each(refusals), refusals


def test_of_two_copies_that_are_open_at_the_same_time_one_goes_on(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    Ledger.create(tmp_path / "one" / NAME, "a", POLICY).close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with Ledger.open(tmp_path / "one" / NAME) as one, Ledger.open(tmp_path / "two" / NAME) as two:
        one.reserve(COSTS, "run", 1)
        with pytest.raises(BrokenLedgerError, match="has recorded entry 2: an old copy"):
            two.reserve(COSTS, "run", 1)
        one.reserve(COSTS, "run", 2)
        assert (one.rounds, two.rounds) == (2, 0)


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger from another machine."""
    home = str(witness.here().directory)
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-another-machine")
    path = tmp_path / NAME
    Ledger.create(path, 7, POLICY).close()
    spend(path, "there", 2)
    monkeypatch.setenv("HUSH_WITNESS", home)
    return path


def test_a_moved_ledger_is_adopted_and_keeps_that_on_record(
    moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HushError, match=r"not known on this machine: .* hush ledger adopt"):
        Ledger.open(moved)
    described = statement.describe(moved)
    assert (described["chain_ok"], described["witnessed"], described["adopted"]) == (True, False, [])
    assert "adopted" in hush("adopt", moved)
    shown = hush("show", moved)
    assert "registered on this machine" in shown
    assert "in entry 8" in shown
    assert [note["row"] for note in statement.describe(moved)["adopted"]] == [8]
    spend(moved, "here", 2)
    with pytest.raises(HushError, match="nothing to adopt"):
        Ledger.adopt(moved)
    # Back on the first machine: what happened meanwhile follows on what it knows.
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-another-machine")
    with pytest.raises(HushError, match="hush ledger adopt"):
        Ledger.open(moved)
    Ledger.adopt(moved).close()
    spend(moved, "there again", 1)
    assert [note["row"] for note in statement.describe(moved)["adopted"]] == [8, 15]


def test_a_ledger_moves_with_its_witness_unseen(moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(Path(f"{tmp_path}-another-machine"), Path(f"{tmp_path}-new-machine"))
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-new-machine")
    (tmp_path / "new").mkdir()
    for end in ("", ".head"):
        shutil.move(f"{moved}{end}", tmp_path / "new" / f"{NAME}{end}")
    spend(tmp_path / "new" / NAME, "here", 1)
    assert statement.describe(tmp_path / "new" / NAME)["adopted"] == []


def test_a_ledger_of_format_1_is_adopted(tmp_path: Path) -> None:
    path = tmp_path / NAME
    Ledger.create(path, 7, POLICY).close()
    spend(path, "before", 2)
    with unlocked(tmp_path) as db:
        db.execute("DROP TABLE macs")
        db.execute("DROP TABLE covered")
        db.execute("PRAGMA user_version=1")
    for use in (Ledger.open, statement.verify):
        with pytest.raises(HushError, match=r"earlier version of Hush \(format 1\)"):
            use(path)
    Ledger.adopt(path).close()
    spend(path, "after", 1)
    assert statement.verify(path) == 11


def test_a_deleted_ledger_is_given_up_before_another_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "books" / NAME
    path.parent.mkdir()
    Ledger.create(path, 7, POLICY).close()
    spend(path, "before", 2)
    with pytest.raises(HushError, match="still exists"):
        statement.retire(path.parent)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    with pytest.raises(BrokenLedgerError, match=r"another ledger belongs here \(.*, 7 rows\).*hush ledger retire"):
        Ledger.create(path, 7, POLICY)
    assert not path.exists()
    assert f"{path}: retired" in hush("retire", path.parent)
    with pytest.raises(HushError, match="no ledger is recorded at this path"):
        statement.retire(path.parent)
    Ledger.create(path, 7, POLICY).close()
    assert len(statement.describe(path)["replaces"]) == 1
    assert "replaces" in hush("show", path)


def test_a_witness_that_is_behind_is_no_fault(tmp_path: Path) -> None:
    """As after a crash between the commit and the witness; opening brings it up to date."""
    path = tmp_path / NAME
    Ledger.create(path, 7, POLICY).close()
    name = next(statement.export(path))["hash"]
    kept = witness.here().head(name)
    spend(path, "run", 2)
    file = witness.here().directory / "heads" / name
    file.write_bytes(b"%020d:%s\n" % (kept[0], kept[1].encode()))
    Ledger.open(path).close()
    assert witness.here().head(name)[0] == 7
    witness.here().remember(name, 2, "0" * 64)
    assert witness.here().head(name)[0] == 7, "a head never goes back"


def test_the_files_of_a_witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-state/w")
    path = tmp_path / NAME
    Ledger.create(path, 7, POLICY).close()
    key = Path(f"{tmp_path}-state/w/key")
    assert {stat.S_IMODE(file.stat().st_mode) for file in key.parent.rglob("*") if file.is_file()} == {0o600}
    assert key.read_text().strip() not in path.read_bytes().decode("latin-1")
    key.chmod(0o640)
    with pytest.raises(HushError, match=r"key: accessible to other users \(mode 0640\)"):
        Ledger.open(path)
    key.chmod(0o600)
    key.rename(tmp_path / "lost")
    with pytest.raises(HushError, match="hush ledger adopt"):
        Ledger.open(path)
    (tmp_path / "lost").rename(key)
    Ledger.open(path).close()
    monkeypatch.setenv("HUSH_WITNESS", str(path))
    with pytest.raises(HushError, match="HUSH_WITNESS"):
        Ledger.create(tmp_path / "other", 7, POLICY)


def test_where_the_witness_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HUSH_WITNESS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert witness.here().directory == tmp_path / "hush"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert witness.here().directory == tmp_path / ".local" / "state" / "hush"


def test_rows_that_nobody_would_write_are_refused() -> None:
    fresh = book.Book()
    for kind in (book.ADOPTED, book.COVERED, book.REPLACES):
        with pytest.raises(HushError):
            fresh.replay(book.make_row(1, 0, "", kind, "", 0, 0, "", book.START))


def test_a_witness_in_the_ledgers_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be copied and restored together with what it watches."""
    for inside in (str(tmp_path / "witness"), str(tmp_path), "witness"):
        monkeypatch.setenv("HUSH_WITNESS", inside)
        with pytest.raises(HushError, match="outside the ledger's directory"):
            Ledger.create(tmp_path / "a.ledger", 0, Policy(1.0, 1e-5))
        assert not (tmp_path / "a.ledger").exists()


def test_a_file_that_was_never_made_whole_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.ledger").touch(mode=0o600)
    with pytest.raises(HushError, match="delete it and run again"):
        Ledger.open(tmp_path / "a.ledger")
