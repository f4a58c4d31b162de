"""Ledgers with a damaged byte, a missing end, or from yesterday."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BrokenLedgerError, Ledger, statement, witness
from hush.seeds import rng
from hush.types import HushError, Policy
from tests.support.ledger_jobs import pending

COSTS = (Cost(what="model update", kind="poisson-gaussian", noise=5.0, steps=5, rate=0.1),)
POLICY = Policy(8.0, 1e-5)
NAMES = ("client.ledger", "client.ledger-wal", "client.ledger.head")


def rounds(ledger: Ledger, numbers: range) -> str:
    """Work through these rounds, and leave the last one sealed and unsent."""
    for number in numbers:
        receipt = ledger.reserve(COSTS, "spring", number)
        ledger.seal(receipt, b"%05d" % number * 60)
        if number != numbers[-1]:
            ledger.sent(receipt)
    return receipt.head


def copy(source: Path, target: Path) -> None:
    """Copy a ledger, and what a witness knew of it then where the source has that: the copy is then the newest."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in NAMES:
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    if (source / "heads").exists():
        shutil.copytree(source / "heads", witness.here().directory / "heads", dirs_exist_ok=True)


def content(path: Path) -> object:
    with Ledger.open(path) as ledger:
        unsent = pending(ledger)
    return [row for row in statement.export(path) if row["kind"] != "BURNED"], unsent


@pytest.fixture(scope="module", params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that was closed, in one file; or one whose process was killed, with most of it in SQLite's log."""
    directory, work = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("work")
    with Ledger.create(work / NAMES[0], 7, POLICY) as ledger:
        rounds(ledger, range(1, 7))
        if request.param == "killed":
            copy(work, directory)
            assert (directory / NAMES[1]).stat().st_size > 50_000
    if request.param == "closed":
        copy(work, directory)
    name = next(statement.export(directory / NAMES[0]))["hash"]
    (directory / "heads").mkdir()
    shutil.copy(witness.here().directory / "heads" / name, directory / "heads" / name)
    return directory


def damaged(whole: Path, here: Path, offset: int, change: int) -> None:
    """A copy in which one byte is changed, or, if the change is 0, all from that byte on is cut off."""
    copy(whole, here)
    for name in NAMES:
        path = here / name
        size = path.stat().st_size if path.exists() else 0
        if offset < size:
            data = bytearray(path.read_bytes())
            data[offset] ^= change
            path.write_bytes(data if change else data[:offset])
            return
        offset -= size


def test_damage_is_detected_or_harmless(whole: Path, tmp_path: Path) -> None:
    copy(whole, tmp_path / "0")
    expected = content(tmp_path / "0" / NAMES[0])
    size = sum((whole / name).stat().st_size for name in NAMES if (whole / name).exists())
    draw = rng(5, "damage")
    detected = 0
    for number in range(250):
        here = tmp_path / "1"
        damaged(whole, here, int(draw.integers(size)), int(draw.integers(1, 256)) if number % 2 else 0)
        try:
            found = content(here / NAMES[0])
        except HushError as error:
            assert "\n" not in str(error)
            detected += 1
        else:
            assert found == expected, number
    assert detected > 125


def test_every_byte_of_a_row_counts(whole: Path, tmp_path: Path) -> None:
    """Wherever the text of a row lies, changing it is detected."""
    copy(whole, tmp_path / "0")
    rows = list(statement.export(tmp_path / "0" / NAMES[0]))
    log = (whole / NAMES[1]).read_bytes() if (whole / NAMES[1]).exists() else b""
    for row in rows:
        digest = row["hash"].encode()
        # What is in the log counts, and there the last copy of a page.
        name = NAMES[1] if digest in log else NAMES[0]
        data = bytearray((whole / name).read_bytes())
        data[data.rfind(digest) + 10] ^= 1
        copy(whole, tmp_path / "1")
        (tmp_path / "1" / name).write_bytes(data)
        with pytest.raises(HushError):
            Ledger.open(tmp_path / "1" / NAMES[0])


def test_a_lost_log_is_detected(tmp_path: Path) -> None:
    """SQLite opens a database whose log is gone or torn as if the end had never been written."""
    (tmp_path / "work").mkdir()
    with Ledger.create(tmp_path / "work" / NAMES[0], 7, POLICY) as ledger:
        rounds(ledger, range(1, 7))
        copy(tmp_path / "work", tmp_path / "gone")
        copy(tmp_path / "work", tmp_path / "torn")
    (tmp_path / "gone" / NAMES[1]).unlink()
    log = tmp_path / "torn" / NAMES[1]
    log.write_bytes(log.read_bytes()[:-5000])
    for name in ("gone", "torn"):
        path = tmp_path / name / NAMES[0]
        with pytest.raises(BrokenLedgerError, match=r"ends at entry \d+, but had 18 entries: damaged, or an old copy"):
            Ledger.open(path)
        # Without the anchor beside it the witness knows.
        (tmp_path / name / NAMES[2]).unlink()
        with pytest.raises(BrokenLedgerError, match=r"the witness in .* has recorded entry 18: an old copy"):
            Ledger.open(path)


def test_an_old_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the witness of the machine; and on a machine where it was adopted, by whoever echoes its newest head."""
    draw = rng(6, "restores")
    here, at_home, elsewhere = tmp_path / "now", str(witness.here().directory), str(tmp_path / "elsewhere")
    here.mkdir()
    with Ledger.create(here / NAMES[0], 7, POLICY) as ledger:
        echoed = rounds(ledger, range(1, 3))
    for number in range(50):
        copy(here, tmp_path / f"{number}")
        with Ledger.open(here / NAMES[0]) as ledger:
            ledger.check_head(echoed)
            begin = ledger.rounds + 1
            echoed = rounds(ledger, range(begin, begin + int(draw.integers(1, 3))))
            ledger.check_head(echoed)
        # Yesterday's copy, and one of any day before.
        for old in (number, int(draw.integers(number + 1))):
            copy(tmp_path / f"{old}", tmp_path / "restored")
            with pytest.raises(BrokenLedgerError, match=r"the witness in .* has recorded entry"):
                Ledger.open(tmp_path / "restored" / NAMES[0])
            shutil.rmtree(elsewhere, ignore_errors=True)
            monkeypatch.setenv("HUSH_WITNESS", elsewhere)
            restored = Ledger.adopt(tmp_path / "restored" / NAMES[0])
            with restored, pytest.raises(BrokenLedgerError, match="the server has recorded entry"):
                restored.check_head(echoed)
            monkeypatch.setenv("HUSH_WITNESS", at_home)
    # Nor does it help a copy to repeat the same rounds at once: it has other rows.
    shutil.rmtree(elsewhere)
    monkeypatch.setenv("HUSH_WITNESS", elsewhere)
    with Ledger.adopt(tmp_path / "49" / NAMES[0]) as ledger:
        rounds(ledger, range(begin, begin + 5))
        assert int(ledger.head.split(":")[0]) > int(echoed.split(":")[0])
        with pytest.raises(BrokenLedgerError, match="an old copy, or another ledger"):
            ledger.check_head(echoed)


def test_an_old_copy_beside_a_newer_anchor_does_not_even_open(tmp_path: Path) -> None:
    path = tmp_path / NAMES[0]
    with Ledger.create(path, 7, POLICY) as ledger:
        rounds(ledger, range(1, 3))
    old = path.read_bytes()
    with Ledger.open(path) as ledger:
        rounds(ledger, range(3, 5))
    path.write_bytes(old)
    with pytest.raises(BrokenLedgerError, match="an old copy"):
        Ledger.open(path)
    assert statement.describe(path)["chain_ok"] is False
