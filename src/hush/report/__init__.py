"""Run directory or comparison in, one self-contained HTML page out."""

from __future__ import annotations

from hush.report.build import write

__all__ = ["write"]
