"""Blocks in a file without a name: what is written is read, and a process that is killed leaves nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hush.engines.row_file import RowFile
from hush.types import HushError

_KILLED = """
import os, signal, torch
from hush.engines.row_file import RowFile
file = RowFile()
file.add(torch.ones(3, 1000))
assert float(file.mapped(0).sum()) == 3000
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_blocks_are_read_as_they_were_written() -> None:
    blocks = [torch.arange(6.0).reshape(2, 3), torch.zeros(1, 3), torch.full((4, 3), -2.5)]
    file = RowFile()
    assert [file.add(block) for block in blocks[:2]] == [0, 1]
    assert torch.equal(file.read(0), blocks[0])
    # Written behind all others, wherever was read last.
    assert file.add(blocks[2].t().contiguous().t()) == 2
    for number in (2, 0, 1):
        assert torch.equal(file.read(number), blocks[number])
        assert torch.equal(file.mapped(number), blocks[number])
    mapped = file.mapped(2)
    file.close()
    assert torch.equal(mapped, blocks[2])


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], env={"TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_no_room_is_said_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    file = RowFile()
    with pytest.raises(HushError, match=r"no room for the updates of a round.*another directory in TMPDIR"):
        file.add(torch.zeros(1, 3))
    file.close()
