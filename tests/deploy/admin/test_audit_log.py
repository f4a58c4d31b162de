"""Lines have levels; a long log is renamed and continued, also by several processes at once."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from hush.deploy.admin import audit_log
from hush.deploy.admin.audit_log import AuditLog


def test_every_line_has_a_level(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.note("task", run="r")
    log.note("charged", run="r")
    log.note("refused", code="limits")
    log.note("refused", code="pending")
    log.note("closed", refused={})
    log.note("closed", refused={"north": "offline"})
    assert [line["level"] for line in audit_log.read(log.path)] == [
        "debug", "info", "warning", "debug", "info", "warning",
    ]  # fmt: skip
    assert log.path.stat().st_mode & 0o777 == 0o600


def _write(path: str, name: str) -> None:
    audit_log.LONGEST, audit_log.KEPT = 2000, 50
    log = AuditLog(Path(path))
    for number in range(100):
        log.note("charged", process=name, number=number)


@pytest.mark.slow
def test_no_line_is_lost_when_processes_rotate_a_log_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(path), name)) for name in "abc"]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
        assert each.exitcode == 0
    files = sorted(tmp_path.glob("audit.jsonl*"))
    assert len(files) > 5
    assert all(file.stat().st_size < 3000 for file in files)
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted((line["process"], line["number"]) for line in lines) == [(n, i) for n in "abc" for i in range(100)]


def test_the_oldest_of_many_logs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LONGEST", 1)
    monkeypatch.setattr(audit_log, "KEPT", 3)
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(6):
        log.note("charged", number=number)
    kept = [json.loads(audit_log.older(log.path, n).read_text())["number"] for n in (1, 2, 3)]
    assert kept == [5, 4, 3]
    assert not audit_log.older(log.path, 4).exists()
