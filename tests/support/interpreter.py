"""Triton's kernels in tests: on a GPU if there is one, else in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.paths import ROOT

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if CUDA else "cpu")
on_either = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="run by test_the_interpreter_agrees, or on a GPU")
on_a_gpu = pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")


def runs_itself() -> pytest.MarkDecorator:
    """Skip the test that starts the interpreter where the tests of its file run anyhow, or cannot."""
    missing = importlib.util.find_spec("triton") is None
    return pytest.mark.skipif(CUDA or INTERPRETED or missing, reason="they run by themselves, or Triton is missing")


def check_interpreted(file: str, *arguments: str) -> None:
    """Run all tests of a file with Triton's kernels interpreted."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", str(Path(file)), *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
