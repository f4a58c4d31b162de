"""Run directory or comparison in, one self-contained HTML page out."""

from __future__ import annotations

from hush.report.build import write
from hush.report.plan import write_plan

__all__ = ["write", "write_plan"]
