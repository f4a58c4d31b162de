"""Ratios against rivals, measured side by side in one run on the same tensors."""

from hush.bench.suites import SUITES, run

__all__ = ["SUITES", "run"]
