"""Benchmarks against other libraries, measured in one run on the same tensors.

Nothing heavy is imported here, so that `python -m hush.bench.gpu` runs where there is PyTorch and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["run"]


def run(suites: Sequence[str]) -> dict[str, Any]:
    """Measure the suites named, or those that suit the machine."""
    from hush.bench.suites import run as measured

    return measured(suites)
