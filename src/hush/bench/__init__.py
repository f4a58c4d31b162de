"""Benchmarks against other libraries, measured in one run on the same tensors.

No large package is imported here, so that `python -m hush.bench.gpu` runs with PyTorch and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["run"]


def run(
    suites: Sequence[str], progress: Callable[[str, int, int], None] | None = None, parts: Sequence[str] = ()
) -> dict[str, Any]:
    """Run these suites, or these parts of one, or the suites that suit the machine.

    `progress` receives the next one, how many are done, and of how many.
    """
    from hush.bench.suites import run as measured

    return measured(suites, progress, parts)
