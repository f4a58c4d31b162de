"""The audit log: one line of JSON for every task, decision, charge and refusal, on either side.

A line is written to disk before the action that it describes. The log is for diagnosis; the proof of spending is the
ledger.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hush.types import HushError


class AuditLog:
    """An append-only audit log file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, event: str, **facts: Any) -> None:
        """Append a line."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **facts}
        text = json.dumps(line, default=str) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text.encode())
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HushError(f"{self.path}: the audit log cannot be written: {error.strerror}") from None


def read(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of a log; an incomplete last line is ignored."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
