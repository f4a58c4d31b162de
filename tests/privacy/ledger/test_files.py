"""Files that are no ledgers, or not ours to use, and terms that a ledger does not accept."""

from __future__ import annotations

import contextlib
import fcntl
import math
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BrokenLedgerError, BudgetSpentError, Ledger, LockedError, files, statement, terms
from hush.privacy.ledger.terms import LedgerTerms
from hush.types import HushError, Policy
from tests.support.ledger_jobs import pending

POLICY = Policy(1.0, 1e-4)
SMALL = (Cost(what="model update", kind="gaussian", noise=50.0, steps=1),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "client 1?#.ledger"
    with Ledger.create(made, 1, POLICY) as ledger:
        receipt = ledger.reserve(SMALL, "", 1)
        ledger.seal(receipt, b"bytes")
    return made


def refused(path: Path) -> str:
    """What opening says is wrong, in one line; nothing is changed."""
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(HushError) as found:
        Ledger.open(path, wait=0.2)
    assert "\n" not in str(found.value)
    assert path.name in str(found.value)
    assert (path.read_bytes() if path.is_file() else b"") == before
    return str(found.value)


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for statement_ in statements:
            db.execute(statement_)


def test_files_are_for_the_owner_alone(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.reserve(SMALL, "", 2)
        names = {file.name.removeprefix(path.name): file for file in path.parent.iterdir()}
        assert set(names) == {"", "-wal", "-shm", ".head"}
        assert {stat.S_IMODE(file.stat().st_mode) for file in names.values()} == {0o600}
    path.chmod(0o640)
    assert re.search(r"accessible to other users \(mode 0640\); accepted: mode 0600", refused(path))


def test_what_is_not_there(path: Path, tmp_path: Path) -> None:
    assert re.search("not found; accepted: a ledger file", refused(tmp_path / "nowhere"))
    assert re.search("not a file", refused(tmp_path))
    path.unlink()
    assert re.search("the ledger was lost or deleted", refused(path))


def test_a_new_ledger_takes_no_old_place(path: Path, tmp_path: Path) -> None:
    with pytest.raises(HushError, match=r"client 1\?#.ledger: already exists"):
        Ledger.create(path, 1, POLICY)
    path.unlink()
    with pytest.raises(HushError, match=r"client 1\?#.ledger.head: already exists"):
        Ledger.create(path, 1, POLICY)
    with pytest.raises(HushError, match="cannot create a ledger here: No such file or directory"):
        Ledger.create(tmp_path / "no" / "where", 1, POLICY)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 100, bytes(range(256)) * 64])
def test_not_a_ledger(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    assert re.search("not a ledger" if content else "empty: .* delete it and run again", refused(path))
    for look in (statement.describe, statement.verify, statement.export):
        with pytest.raises(HushError, match=r"not a ledger|empty"):
            look(path)


def test_another_database(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    change(other, "CREATE TABLE rows(a)")
    other.chmod(0o600)
    assert re.search("a SQLite file, but not a ledger", refused(other))
    change(path, "CREATE TABLE more(a)")
    assert re.search("its tables are not those of a ledger", refused(path))


def test_a_newer_version(path: Path) -> None:
    change(path, "PRAGMA user_version=3")
    assert re.search(r"newer version of Hush \(format 3\); accepted: format 2", refused(path))
    with pytest.raises(HushError, match="newer version"):
        statement.describe(path)


def test_read_only(path: Path) -> None:
    path.chmod(0o400)
    assert re.search(r"read-only \(mode 0400\)", refused(path))
    assert statement.verify(path) == 3


def test_a_locked_ledger(path: Path) -> None:
    code = (
        "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute('BEGIN IMMEDIATE'); print(1,flush=True); input()"
    )
    with Ledger.open(path, wait=0.2) as ledger:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        other = subprocess.Popen([sys.executable, "-c", code, str(path)], **pipes)  # type: ignore[call-overload]
        other.stdout.readline()
        with pytest.raises(LockedError, match="locked by another process; try again later"):
            ledger.reserve(SMALL, "", 2)
        assert ledger.rounds == 1
        other.communicate(b"\n")
        assert ledger.reserve(SMALL, "", 2).serial == 2


def test_a_ledger_that_another_process_is_opening(path: Path) -> None:
    with path.with_name(path.name + ".head").open() as head:
        fcntl.flock(head, fcntl.LOCK_EX)
        assert re.search(r"locked by another process for more than 0.2 s", refused(path))
    Ledger.open(path, wait=0.2).close()


def test_a_ledger_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "keep", fail)
    with pytest.raises(HushError, match="No space left on device"):
        Ledger.create(tmp_path / "l", 1, POLICY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"epsilon":1.0}',
        '{"accountant":"pld","client":1,"delta":1e-4,"epsilon":1.0,"format":2,"relation":"add-remove"}',
        '{"accountant":"pld","client":1,"delta":1e-4,"epsilon":true,"format":1,"relation":"add-remove"}',
        '{"accountant":"pld","client":1.5,"delta":1e-4,"epsilon":1.0,"format":1,"relation":"add-remove"}',
        '{"accountant":["pld"],"client":1,"delta":1e-4,"epsilon":1.0,"format":1,"relation":"add-remove"}',
        '{"accountant":"pld","client":1,"delta":1e-4,"epsilon":-1.0,"format":1,"relation":"add-remove"}',
    ],
)
def test_terms_that_nobody_wrote(text: str) -> None:
    with pytest.raises(BrokenLedgerError):
        terms.read(text)


def test_terms_are_read_as_they_were_written() -> None:
    for policy in (POLICY, Policy(math.inf, 1e-9, "replace-one")):
        for agreed in (LedgerTerms(3, policy, "pld"), LedgerTerms("ä <b>", policy, "rdp")):
            assert terms.read(terms.write(agreed)) == agreed
        assert terms.read_policy(terms.write_policy(policy)) == policy


def test_rows_cannot_be_changed(path: Path) -> None:
    for statement_ in ("UPDATE rows SET detail=''", "DELETE FROM rows"):
        with pytest.raises(sqlite3.IntegrityError, match="a ledger is append-only"):
            change(path, statement_)


@pytest.mark.parametrize(
    ("statements", "match"),
    [
        (["UPDATE rows SET detail=replace(detail, '50.0', '99.0') WHERE seq=2"], "entry 2 was changed"),
        (["UPDATE rows SET at=at+1 WHERE seq=3"], "entry 3 was changed"),
        (["UPDATE rows SET salt=x'00' WHERE seq=1"], "entry 1 is malformed"),
        (["DELETE FROM rows WHERE seq=2"], "entry 2 is missing"),
        (["DELETE FROM rows WHERE seq=3"], "it ends at entry 2, but had 3 entries"),
        (["DELETE FROM rows"], "it has no entries"),
        (["UPDATE payloads SET bytes=x'00'"], "bytes stored for entry 2 differ from what was written"),
        (["DELETE FROM payloads"], "bytes stored for entry 2 differ from what was written"),
        (["INSERT INTO payloads VALUES (1, x'00')"], "bytes stored for entry 1 differ"),
    ],
)
def test_whoever_changes_rows_all_the_same_is_found_out(path: Path, statements: list[str], match: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        triggers = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'"))
    change(path, *(f"DROP TRIGGER {name}" for name in triggers), *statements, *triggers.values())
    assert re.search(match, refused(path))
    with pytest.raises(BrokenLedgerError, match=match):
        statement.verify(path)
    described = statement.describe(path)
    assert described["chain_ok"] is False
    assert set(described) == {"path", "chain_ok", "fault"}


def test_a_rewritten_chain_is_found_out_by_its_anchor(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with Ledger.create(other, 1, POLICY) as ledger:
        for number in range(1, 5):
            ledger.reserve(SMALL, "", number)
    shutil.copy(other, path)
    assert re.search("entry 3 is not the one that was written here: another ledger", refused(path))


def test_a_damaged_or_missing_anchor(path: Path) -> None:
    head = path.with_name(path.name + ".head")
    text = head.read_bytes()
    head.write_bytes(text[:-2])
    assert re.search("head is damaged; remove it only if", refused(path))
    for harmless in (lambda: head.write_bytes(b""), head.unlink):
        harmless()  # type: ignore[no-untyped-call]
        with Ledger.open(path) as ledger:
            assert len(pending(ledger)) == 1
        assert head.read_bytes() == text


def test_a_full_disk(path: Path) -> None:
    with Ledger.open(path) as ledger:
        receipt = ledger.reserve(SMALL, "", 2)
        ((pages,),) = ledger._db.execute("PRAGMA page_count")
        ledger._db.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(HushError, match=r"database or disk is full; nothing was released"):
            ledger.seal(receipt, bytes(10**6))
        with pytest.raises(HushError, match="open it again"):
            ledger.sent(receipt)
    with Ledger.open(path) as ledger:
        assert ledger.rounds == 2
        assert ledger.next_attempt("", 2) == 2


def test_a_policy_may_be_tightened_and_not_loosened(path: Path) -> None:
    with Ledger.open(path) as ledger:
        spent = ledger.spent()
    Ledger.open(path, POLICY, "pld").close()
    assert statement.verify(path) == 3
    for policy, text in (
        (Policy(1.1, 1e-4), "epsilon: found 1.1; accepted: at most 1, this ledger's lifetime policy"),
        (Policy(1.0, 2e-4), "delta: found 0.0002; accepted: at most 0.0001"),
        (Policy(1.0, 1e-4, "replace-one"), "relation: found replace-one; accepted: add-remove"),
        (Policy(-1.0, 1e-4), "epsilon: found -1.0; accepted: a positive number"),
    ):
        with pytest.raises(HushError, match=text):
            Ledger.open(path, policy)
    with pytest.raises(HushError, match="accountant: found rdp; accepted: pld"):
        Ledger.open(path, accountant="rdp")
    with Ledger.open(path, Policy(spent / 2, 1e-4)) as ledger:
        assert ledger.left() == 0.0
        with pytest.raises(BudgetSpentError):
            ledger.reserve(SMALL, "", 2)
    with Ledger.open(path) as ledger:
        assert ledger.terms.policy.epsilon == spent / 2
    with pytest.raises(HushError, match="at most"):
        Ledger.open(path, POLICY)


def test_a_policy_tightened_elsewhere_ends_what_was_approved(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger._approved = {("gaussian", 50.0, 1.0, 0, 0): 10**9}
        ledger.reserve(SMALL, "", 2)
        Ledger.open(path, Policy(1e-3, 1e-4)).close()
        with pytest.raises(BudgetSpentError):
            ledger.reserve(SMALL, "", 3)


@pytest.mark.parametrize(
    ("client", "policy", "accountant", "text"),
    [
        (True, POLICY, "pld", "client: found True"),
        ("", POLICY, "pld", "client: found ''"),
        ("a\nb", POLICY, "pld", "client: found"),
        (1, Policy(float("nan"), 1e-4), "pld", "epsilon: found nan"),
        (1, Policy(1.0, 1.0), "pld", "delta: found 1.0"),
        (1, Policy(1.0, 1e-4, "swap"), "pld", "relation: unknown relation 'swap'"),  # type: ignore[arg-type]
        (1, POLICY, "prv", "accountant: unknown accountant 'prv'"),
    ],
)
def test_terms_that_no_ledger_keeps(tmp_path: Path, client: Any, policy: Policy, accountant: str, text: str) -> None:
    with pytest.raises(HushError, match=text):
        Ledger.create(tmp_path / "l", client, policy, accountant)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HushError, match=text):
        Ledger.in_memory(client, policy, accountant)  # type: ignore[arg-type]


def test_a_closed_ledger(path: Path) -> None:
    ledger = Ledger.open(path)
    ledger.close()
    ledger.close()
    for use in (
        ledger.spent,
        lambda: pending(ledger),
        lambda: ledger.reserve(SMALL, "", 2),
        lambda: ledger.check_head("1:"),
    ):
        with pytest.raises(HushError, match=r"ledger: closed"):
            use()
