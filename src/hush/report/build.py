"""Build the report of a directory."""

from __future__ import annotations

from pathlib import Path

from hush.report.compare import comparison_page
from hush.report.read import COMPARISON, read_comparison, read_run
from hush.report.run import run_page
from hush.server.run_directory import MANIFEST, REPORT, write_atomically
from hush.types import HushError


def write(path: Path) -> Path:
    """Write `report.html` into a run or comparison directory, and return its path."""
    if not path.is_dir():
        raise HushError(f"{path}: no such directory; give a run directory or a comparison directory")
    if (path / COMPARISON).exists():
        content = comparison_page(read_comparison(path))
    elif (path / MANIFEST).exists():
        content = run_page(read_run(path))
    else:
        raise HushError(f"{path}: neither a run directory ({MANIFEST}) nor a comparison ({COMPARISON})")
    target = path / REPORT
    try:
        write_atomically(target, content.encode())
    except OSError as error:
        raise HushError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target
