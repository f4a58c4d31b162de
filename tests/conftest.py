"""Shared settings: where real data are, and a small config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def small() -> dict[str, Any]:
    """A run of a second or two."""
    return {
        "seed": 1,
        "rounds": 4,
        "data": {"name": "digits", "clients": 6, "partition": "iid"},
        "model": {"name": "logreg"},
        "privacy": {"budgets": [0.3, 0.5, 1.0, 2.0, 4.0, 8.0], "delta": 1e-4, "clip": 1.0},
        "local": {"batch_size": [16, 32], "epochs": 1, "lr": 0.1},
        "recipe": {"name": "robust-hdp"},
    }


@pytest.fixture(scope="session")
def data_root() -> str:
    """The directory with the public dataset files, or a skip that says what to set."""
    root = os.environ.get("HUSH_DATA") or (str(BESIDE) if BESIDE.is_dir() else "")
    if not root:
        pytest.skip("needs the public dataset files: set HUSH_DATA to their directory")
    return root
