"""HTML reports: turn a run or comparison directory into one self-contained page."""

from __future__ import annotations

from hush.report.build import write
from hush.report.plan import write_plan

__all__ = ["write", "write_plan"]
