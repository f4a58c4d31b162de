"""The operation log: what a process of a federation says and does, one line of JSON each, from a level on.

It goes to a file, which is rotated like the audit log, or in place of the sentences to standard error, for containers
and journals. The audit log is kept in any case, and in full.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from hush.deploy.admin.audit_log import KEPT, LOGGER, LONGEST, timestamp
from hush.types import HushError

STANDARD_ERROR = "-"
LEVELS = ("debug", "info", "warning", "error")
Process = Literal["serve", "join", "run", "work"]


class _Lines(logging.Formatter):
    """Formats records as JSON."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return a line without its end."""
        facts: dict[str, Any] = getattr(record, "facts", {})
        line = {
            "time": timestamp(record.created), "level": record.levelname.lower(), "process": self._process,
            "event": record.getMessage(), **facts,
        }  # fmt: skip
        return json.dumps(line, default=str)


def check_level(level: str) -> None:
    """Raise a `HushError` unless this is a level."""
    if level not in LEVELS:
        raise HushError(f"--log-level: found {level!r}; accepted: {', '.join(LEVELS)}")


def start(target: str, level: str, process: Process) -> None:
    """Write the operation log of this process to a file, or to standard error if the target is `-`.

    Raises:
        HushError: The file cannot be written.
    """
    logger = logging.getLogger(LOGGER)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if target != STANDARD_ERROR:
        path = Path(target)
        try:
            # A member's log says what its own audit log says, so it is for nobody else.
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
            handler = RotatingFileHandler(path, maxBytes=LONGEST, backupCount=KEPT, encoding="utf-8")
        except OSError as error:
            raise HushError(f"--log-file: {path} cannot be written: {error.strerror}") from None
    handler.setFormatter(_Lines(process))
    logger.addHandler(handler)
    logger.setLevel(level.upper())


def log_message(words: str, level: int = logging.INFO) -> bool:
    """Log a sentence, and return whether it has been written to standard error in this way."""
    logger = logging.getLogger(LOGGER)
    logger.log(level, "message", extra={"facts": {"message": words}})
    return any(isinstance(each, logging.StreamHandler) and each.stream is sys.stderr for each in logger.handlers)
