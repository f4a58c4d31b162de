"""Findings about a machine: each is right about something that is well, and about the same thing when it is not."""

from __future__ import annotations

import datetime
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.admin import findings, keys
from hush.deploy.transport.about import installed, read_versions
from hush.types import HushError

Usage = namedtuple("Usage", "total used free")


def test_room_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((1 << 40, "ok"), (1 << 30, "warning"), (1 << 20, "error")):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: Usage(1 << 41, 0, free))
        assert findings.disk(tmp_path).level == level


def test_secrets_that_others_can_read(tmp_path: Path) -> None:
    for name in ("key.pem", "ledger.db"):
        keys.write_secret(tmp_path / name, b"x")
    files = [tmp_path / name for name in ("key.pem", "ledger.db", "missing")]
    assert [each.level for each in findings.private(files)] == ["ok"]
    (tmp_path / "key.pem").chmod(0o640)
    (found,) = findings.private(files)
    assert (found.level, found.remedy) == ("error", f"chmod 600 {tmp_path / 'key.pem'}")
    assert findings.writable(tmp_path) == []
    tmp_path.chmod(0o777)
    assert findings.writable(tmp_path)[0].remedy == f"chmod go-w {tmp_path}"


def test_a_certificate_is_reported_before_it_ends(tmp_path: Path) -> None:
    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    day = datetime.timedelta(days=1)
    for first, last, level, words in (
        (now - day, now + 100 * day, "ok", "for 100 more days"),
        (now - day, now + 29 * day, "warning", "for 29 more days"),
        (now - 9 * day, now - day, "error", "expired on 2029-12-31"),
        (now + day, now + 9 * day, "error", "is valid from"),
    ):
        found = findings.certificate("it", (first, last), "renew it", now)
        assert found.level == level and words in found.words
        assert (found.remedy == "renew it") == (words in ("for 29 more days", "expired on 2029-12-31"))


def test_clocks_and_what_flower_accepts_of_them() -> None:
    levels = {0.5: "ok", -1.5: "ok", 3.0: "warning", -60.0: "warning", 5.5: "error", -301.0: "error"}
    assert {ahead: findings.clock("its", ahead, "synchronise").level for ahead in levels} == levels


def test_versions_of_the_other_side() -> None:
    own = installed()
    assert findings.own_versions(own).level == "ok"
    assert findings.own_versions({**own, "flwr": "none"}).level == "error"
    assert findings.other_versions("it", own, own).level == "ok"
    assert findings.other_versions("it", own, {**own, "hush": "9"}).level == "ok"
    newer = findings.other_versions("it", own, {**own, "protocol": "99"})
    assert newer.level == "error" and "same protocol" in newer.remedy
    assert findings.other_versions("it", own, {}).level == "warning"
    for text in (b"", b"[1]", b'{"hush": 3}', b"{" * 1000):
        assert read_versions(text) == {}
    assert read_versions(b'{"hush": "\\u001b[2J", "x": "y"}') == {"hush": "\\x1b[2J"}


def test_what_fails_is_a_finding_with_its_remedy() -> None:
    def fails() -> str:
        raise HushError("broken")

    assert findings.checked("it", lambda: "well", "mend it").line == "ok       it: well"
    assert findings.checked("it", fails, "mend it").line == "error    it: broken; mend it"
    assert findings.checked("it", lambda: Path("/nowhere").read_text(), "mend it").level == "error"


def test_a_renewed_certificate_keeps_its_hosts(tmp_path: Path) -> None:
    keys.make_authority(tmp_path, "study", 10)
    keys.make_server(tmp_path, ["fl.example.org", "10.0.0.7"], 10)
    before = (tmp_path / "server.crt").read_bytes(), (tmp_path / "server.key").read_bytes()
    keys.renew_server(tmp_path, ["localhost"], 20)
    assert keys._hosts(tmp_path / "server.crt") == ["localhost", "fl.example.org", "10.0.0.7"]
    keys.check_server(tmp_path)
    after = (tmp_path / "server.crt").read_bytes(), (tmp_path / "server.key").read_bytes()
    assert before[0] != after[0] and before[1] != after[1]
    assert not list(tmp_path.glob(".renewed*"))
    assert keys.validity(tmp_path / "server.crt")[1] > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=19)
