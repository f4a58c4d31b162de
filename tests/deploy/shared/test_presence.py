"""A file that says that a process lives: present, ended, died."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hush.deploy.shared import presence


def until_read(folder: Path) -> None:
    deadline = time.monotonic() + 5
    while not presence.read(folder):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_is_there_until_it_ends(tmp_path: Path) -> None:
    assert not presence.alive(presence.read(tmp_path))
    with presence.presence_file(tmp_path, lambda: {"address": "here:1"}):
        until_read(tmp_path)
        found = presence.read(tmp_path)
        assert presence.alive(found)
        assert (found["address"], found["pid"]) == ("here:1", os.getpid())
        assert (tmp_path / presence.FILE).stat().st_mode & 0o777 == 0o600
    assert presence.read(tmp_path) == {}


def test_a_process_that_died_is_not_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / presence.FILE).write_text(json.dumps({"time": time.time() - presence.SILENT - 1}))
    assert not presence.alive(presence.read(tmp_path))
    (tmp_path / presence.FILE).write_text('{"time": "never"}')
    assert presence.read(tmp_path) == {}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with presence.presence_file(tmp_path / "none", dict):
        time.sleep(0.05)
