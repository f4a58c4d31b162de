"""The files of a run directory: tensors that are written from memory are read back as safetensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from hush.server.run_directory import write_tensors_atomically
from tests.support.paths import ROOT

_MEMORY = """
import resource, sys, torch
from pathlib import Path
from hush.server.run_directory import write_tensors_atomically
tensors = {"control": torch.ones(25, 1_000_000)}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
write_tensors_atomically(Path(sys.argv[1]), tensors)
print(peak() - before)
"""


def test_tensors_of_all_types_and_shapes_are_read_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "bytes": torch.arange(3, dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]),
        "numbers": torch.arange(6).reshape(2, 3),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(0.5, dtype=torch.float64),
        "half": torch.randn(5).bfloat16(),
        "turned": torch.randn(4, 3).T,
        'a "name" with \u00e4': torch.randn(7),
    }
    write_tensors_atomically(tmp_path / "x", tensors)
    found = load_file(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    plain = {"a": torch.randn(3, 2), "b": torch.arange(4)}
    write_tensors_atomically(tmp_path / "y", plain)
    assert len((tmp_path / "y").read_bytes()) == len(save(plain))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_writing_takes_no_copy_of_the_tensors(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(tmp_path / "x")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(done.stdout) < 20, "MiB, of 95 that are written"
