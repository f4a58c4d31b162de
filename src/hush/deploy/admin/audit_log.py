"""The audit log: one line of JSON for every task, decision, charge and refusal, on either side.

A line is written to disk before the action that it describes. The log is for diagnosis; the proof of spending is the
ledger. Every line has a level. A log that has reached 16 MiB is renamed to `audit.jsonl.1`, the older ones to `.2` and
so on; after `.9` the oldest is removed. Lines also go to the operation log (`hush.deploy.admin.operation_log`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hush.types import HushError

FILE = "audit.jsonl"
LOGGER = "hush.federation"
LONGEST = 16 << 20
KEPT = 9
_LEVELS: Mapping[str, int] = {
    **dict.fromkeys(("task", "resent", "update"), logging.DEBUG),
    **dict.fromkeys(
        (
            "copied", "declined", "does not begin", "evicted", "late", "missing", "not enrolled", "not sent", "refusal",
            "refused", "revoked", "sum lost", "warning",
        ),
        logging.WARNING,
    ),
    "failed": logging.ERROR,
}  # fmt: skip

# Without an operation log nothing is printed: not even warnings, which are logging's default.
logging.getLogger(LOGGER).addHandler(logging.NullHandler())
logging.getLogger(LOGGER).propagate = False


class AuditLog:
    """An append-only audit log file, which several processes may write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, event: str, **facts: Any) -> None:
        """Append a line."""
        level = level_of(event, facts)
        line = {"time": timestamp(time.time()), "level": logging.getLevelName(level).lower(), "event": event, **facts}
        text = json.dumps(line, default=str) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, text.encode())
                os.fdatasync(descriptor)
                if os.fstat(descriptor).st_size >= LONGEST:
                    rotate(self.path, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HushError(f"{self.path}: the audit log cannot be written: {error.strerror}") from None
        logging.getLogger(LOGGER).log(level, event, extra={"facts": facts})


def level_of(event: str, facts: Mapping[str, Any]) -> int:
    """Return the level of an event, as `logging` numbers them."""
    if event == "refused" and facts.get("code") == "pending":
        # Asked again and again until a person has decided.
        return logging.DEBUG
    if event == "closed" and facts.get("refused"):
        return logging.WARNING
    return _LEVELS.get(event, logging.INFO)


def timestamp(seconds: float) -> str:
    """Return a time as logs have it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def rotate(path: Path, descriptor: int) -> None:
    """Rename a log and those before it, unless another process has just done so."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino != os.fstat(descriptor).st_ino:
            return
        for number in range(KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                older(path, number).replace(older(path, number + 1))
        path.replace(older(path, 1))


def older(path: Path, number: int) -> Path:
    """Return the path of an older log: 1 is the one before the current."""
    return path.with_name(f"{path.name}.{number}")


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
