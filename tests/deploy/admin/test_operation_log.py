"""The operation log of real commands: JSON lines from a level on, to a file or to standard error."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from hush.deploy.admin import operation_log
from hush.deploy.admin.audit_log import LOGGER, AuditLog
from hush.types import HushError

PROGRAM = """
import sys
from hush.deploy.admin import operation_log
from hush.deploy.admin.audit_log import AuditLog
operation_log.start(sys.argv[1], sys.argv[2], "join")
log = AuditLog(__import__("pathlib").Path(sys.argv[3]))
log.note("task", run="r")
log.note("charged", run="r")
log.note("refused", reason="\\x1b[2J a\\nb")
print(operation_log.log_message("hello"))
"""


def lines(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["task", "charged", "refused", "message"]),
        ("info", ["charged", "refused", "message"]),
        ("warning", ["refused"]),
        ("error", []),
    ],
)
def test_lines_from_a_level_on(tmp_path: Path, level: str, events: list[str]) -> None:
    file, audit = tmp_path / "log.jsonl", tmp_path / "audit.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file), level, str(audit)], capture_output=True, text=True, check=True
    )
    assert [line["event"] for line in lines(file.read_text())] == events
    assert {line["process"] for line in lines(file.read_text())} <= {"join"}
    assert len(lines(audit.read_text())) == 3, "the audit log is complete at any level"
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "\x1b" not in file.read_text()


def test_on_standard_error_lines_are_in_place_of_sentences(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-", "info", str(tmp_path / "audit.jsonl")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
    assert [line["event"] for line in lines(done.stderr)] == ["charged", "refused", "message"]


def test_without_an_operation_log_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AuditLog(tmp_path / "audit.jsonl").note("refused", reason="why")
    assert capsys.readouterr() == ("", "")
    assert not operation_log.log_message("words")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(HushError, match="--log-level: found 'loud'; accepted: debug, info, warning, error"):
        operation_log.check_level("loud")
    with pytest.raises(HushError, match=r"--log-file: .* cannot be written"):
        operation_log.start(str(tmp_path / "none" / "log"), "info", "run")
    assert not [each for each in logging.getLogger(LOGGER).handlers if isinstance(each, RotatingFileHandler)]
