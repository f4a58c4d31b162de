"""Where the repository is, and how a process of its own finds the tests' helpers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Published dataset files and the papers' tables may lie beside the repository.
SHARED = ROOT.parent / "shared"


def helper(module: str, *arguments: object) -> list[str]:
    """The command line that runs a module of `tests.support` in a process of its own."""
    return [sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of such a process: one arithmetic thread, and the repository on the path of modules."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path, **changes}
