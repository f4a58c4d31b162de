"""Benchmarks against other libraries, measured in one run on the same tensors.

No large package is imported here, so that `python -m hush.bench.gpu` runs with PyTorch and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["run"]


def run(suites: Sequence[str]) -> dict[str, Any]:
    """Run these suites, or those that suit the machine."""
    from hush.bench.suites import run as measured

    return measured(suites)
