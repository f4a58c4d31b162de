"""Backups: what is in them, a ledger in use, damage, and the rehearsal of a restoration on both sides."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import stat
import tarfile
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.deploy.admin import audit_log
from hush.deploy.admin.backup import LIST, advice, restore, write
from hush.deploy.admin.folders import FederationFolder
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import Ledger, ledger
from hush.privacy.ledger.statement import describe, export
from hush.types import HushError, Policy
from tests.support.live_federation import config, until
from tests.support.loopback import Loopback

OFFER = config(2, 4)


class StoppedError(Exception):
    """In place of a crash after a saved round."""


def run(federation: Loopback, name: str, *, stop: int = 0, resume: bool = False) -> Path:
    out = federation.place.runs / name

    def progress(record: Any, left: Any) -> None:
        if record.round == stop:
            raise StoppedError

    if stop:
        with pytest.raises(StoppedError):
            federation.coordinator().run(OFFER, out, resume=resume, progress=progress)
    else:
        federation.coordinator().run(OFFER, out, resume=resume)
    return out


def federation(path: Path) -> Loopback:
    made = Loopback(path / "fed", config(2, 40))
    for policy in made.place.path.glob("kits/*/policy.toml"):
        policy.write_text(policy.read_text().replace("# lifetime = 2.0", "lifetime = 100.0"))
    made.join()
    return made


def lost(federation: Loopback, name: str, elsewhere: Path) -> Path:
    """Lose a member's machine: its kit, and what remembers its ledger. The rows are kept elsewhere."""
    kit = federation.place.path / "kits" / name
    federation.leave(name)
    rows = elsewhere / f"{name}.npz"
    shutil.copy(kit / "data.npz", rows)
    shutil.rmtree(kit)
    return rows


def reborn(federation: Loopback, name: str, backup: Path, rows: Path) -> Path:
    """Restore a member on another machine, whose witness knows nothing, and adopt the ledger there."""
    kit = federation.place.path / "kits" / name
    found = restore(backup, kit)
    assert any("hush ledger adopt" in line for line in advice(found, kit))
    shutil.copy(rows, kit / "data.npz")
    with pytest.raises(HushError, match="not known on this machine"):
        federation.join(name)
    Ledger.adopt(kit / "ledger.db").close()
    federation.join(name)
    return kit


def test_a_member_is_restored_from_its_latest_backup_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal: a backup after the run, the machine is lost, another one takes over. Spending continues."""
    made = federation(tmp_path)
    run(made, "one")
    kit = made.place.path / "kits" / "m001"
    before = describe(kit / "ledger.db")
    write(kit, tmp_path / "m001.tar.gz")
    rows = lost(made, "m001", tmp_path)
    monkeypatch.setenv("HUSH_WITNESS", str(tmp_path / "another-machine"))
    # The other member's machine is not this one: it is not restarted in this test.
    reborn(made, "m001", tmp_path / "m001.tar.gz", rows)
    run(made, "two")
    after = describe(kit / "ledger.db")
    assert after["charges"]["SENT"] == before["charges"]["SENT"] + 4
    assert after["spent"] > before["spent"] * 1.2
    assert len(after["adopted"]) == 1
    made.leave()


def test_an_older_backup_of_a_ledger_is_refused_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has the newest entry on record: the member's restored ledger lacks it."""
    made = federation(tmp_path)
    run(made, "one", stop=2)
    kit = made.place.path / "kits" / "m001"
    write(kit, tmp_path / "old.tar.gz")
    run(made, "one", resume=True)
    rows = lost(made, "m001", tmp_path)
    monkeypatch.setenv("HUSH_WITNESS", str(tmp_path / "another-machine"))
    reborn(made, "m001", tmp_path / "old.tar.gz", rows)
    charged = len([row for row in export(kit / "ledger.db") if row["kind"] == "RESERVED"])
    with pytest.raises(HushError, match="m001: its ledger is an old copy"):
        made.coordinator().run(config(2, 4, quorum=2), made.place.runs / "two")
    assert len([row for row in export(kit / "ledger.db") if row["kind"] == "RESERVED"]) == charged
    assert "an old copy" in audit_log.read(kit / "audit.jsonl")[-1]["reason"]
    made.leave()


def test_on_the_same_machine_the_witness_refuses_an_older_ledger(tmp_path: Path) -> None:
    made = federation(tmp_path)
    run(made, "one", stop=1)
    kit = made.place.path / "kits" / "m001"
    write(kit, tmp_path / "old.tar.gz")
    run(made, "one", resume=True)
    lost(made, "m001", tmp_path)
    restore(tmp_path / "old.tar.gz", kit)
    for attempt in (Ledger.open, Ledger.adopt):
        with pytest.raises(HushError, match=r"the witness in .* has recorded entry .* an old copy"):
            attempt(kit / "ledger.db")
    made.leave()


@pytest.mark.parametrize("late", [False, True])
def test_a_coordinator_is_restored_and_resumes_its_run(tmp_path: Path, late: bool) -> None:
    """From a backup of the same round nothing is lost. From an older one rounds are lost, and none is charged twice."""
    made = federation(tmp_path)
    run(made, "one", stop=2)
    found = write(made.place.path, tmp_path / "fed.tar.gz")
    assert (found.kind, found.name) == ("coordinator", "fed")
    if late:
        run(made, "one", resume=True, stop=3)
    rest, kits = tmp_path / "restored", made.place.path / "kits"
    restore(tmp_path / "fed.tar.gz", rest)
    shutil.rmtree(rest / "kits")
    (rest / "kits").symlink_to(kits)
    made.place = FederationFolder(rest)
    assert made.place.settings.address and made.place.certificate()
    out = run(made, "one", resume=True)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert len(rounds) == 4
    for charges in made.charges().values():
        assert sorted(number for _, number in charges) == [1, 2, 3, 4], "no round was charged twice"
    assert (out / "result.json").exists()
    made.leave()


def test_a_backup_has_no_rows_no_witness_and_belongs_to_its_owner(tmp_path: Path) -> None:
    made = federation(tmp_path)
    run(made, "one", stop=1)
    kit = made.place.path / "kits" / "m000"
    (kit / "more.csv").write_text("a,b\n1,2\n")
    out = tmp_path / "m000.tar.gz"
    assert write(kit, out).files > 6
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with tarfile.open(out) as archive:
        names = set(archive.getnames())
    assert {"kit.toml", "key.pem", "policy.toml", "ledger.db", "ca.crt", "audit.jsonl", LIST} <= names
    assert not [name for name in names if name.endswith((".npz", ".csv", ".head", "presence.json"))]
    restore(out, tmp_path / "again")
    assert stat.S_IMODE((tmp_path / "again").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "again").rglob("*") if p.is_file()} == {0o600}
    with pytest.raises(HushError, match="already exists"):
        write(kit, out)
    with pytest.raises(HushError, match="not empty"):
        restore(out, tmp_path / "again")
    with pytest.raises(HushError, match="neither a coordinator's directory nor a member's kit"):
        write(tmp_path, tmp_path / "x.tar.gz")
    made.leave()


def test_damaged_and_hostile_archives_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    made = federation(tmp_path)
    kit = made.place.path / "kits" / "m000"
    made.leave()
    out = tmp_path / "good.tar.gz"
    write(kit, out)
    content = out.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.tar.gz").write_text("nothing")

    def changed(name: str, change: dict[str, bytes], link: str = "") -> Path:
        path = tmp_path / name
        with tarfile.open(out) as before, tarfile.open(path, "w:gz") as after:
            for entry in before:
                text = change.pop(entry.name, before.extractfile(entry).read())
                entry.size = len(text)
                after.addfile(entry, io.BytesIO(text))
            for extra, text in change.items():
                entry = tarfile.TarInfo(extra)
                entry.size = len(text)
                after.addfile(entry, io.BytesIO(text))
            if link:
                entry = tarfile.TarInfo("link")
                entry.type, entry.linkname = tarfile.SYMTYPE, link
                after.addfile(entry)
        return path

    bad = [
        tmp_path / "cut.tar.gz", tmp_path / "text.tar.gz", tmp_path / "missing.tar.gz",
        changed("other.tar.gz", {"policy.toml": b"[budget]"}), changed("more.tar.gz", {"extra.txt": b"x"}),
        changed("up.tar.gz", {"../escaped.txt": b"x"}), changed("root.tar.gz", {"/tmp/escaped.txt": b"x"}),
        changed("link.tar.gz", {}, "/etc/passwd"),
    ]  # fmt: skip
    for path in bad:
        with pytest.raises(HushError, match=r"damaged|which a backup does not have"):
            restore(path, tmp_path / "target")
        assert not (tmp_path / "target").exists()
        assert not (tmp_path / "escaped.txt").exists()
    assert not list(tmp_path.glob(".restored-*"))


def test_a_ledger_is_copied_while_it_is_charged(tmp_path: Path) -> None:
    """Every copy is consistent: its chain is whole, and it has all charges up to some moment."""
    path = tmp_path / "live" / "ledger.db"
    path.parent.mkdir()
    Ledger.create(path, "a", Policy(1e6, 1e-5, "add-remove")).close()
    cost = Cost(what="update", kind="gaussian", noise=50.0, steps=1)
    ended, faults, done = threading.Event(), list[Exception](), [0]

    def charge() -> None:
        try:
            with Ledger.open(path) as ledger:
                while not ended.is_set():
                    receipt = ledger.reserve((cost,), "r", done[0] + 1)
                    ledger.seal(receipt, bytes(1 << 21 if done[0] % 5 == 0 else 100))
                    ledger.sent(receipt)
                    done[0] += 1
                    ended.wait(0.002)
        except Exception as error:
            faults.append(error)

    def more(than: int) -> bool:
        return done[0] > than or bool(faults)

    thread, sizes = threading.Thread(target=charge), list[int]()
    thread.start()
    try:
        for number in range(5):
            copy = tmp_path / f"copy{number}" / "ledger.db"
            copy.parent.mkdir()
            ledger.copy(path, copy)
            with closing(sqlite3.connect(copy)) as database:
                sizes.append(database.execute("SELECT COUNT(*) FROM rows").fetchone()[0])
            now = done[0]
            assert until(partial(more, now))
    finally:
        ended.set()
        thread.join()
    assert faults == []
    assert sizes == sorted(set(sizes)), "each copy has more of it"
    with pytest.raises(HushError, match="an old copy"):
        ledger.inspect(tmp_path / "copy0" / "ledger.db")
