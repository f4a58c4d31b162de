"""Expiry of the server's certificate, as a member sees it: its operator is warned days ahead, and each day.

The coordinator renews the certificate; a member has nothing to do. It is warned because an expired one stops the run.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable

from hush.deploy.admin.findings import certificate, served

_EVERY = 86_400.0
_REMEDY = "the coordinator renews it with hush federation renew; nothing to do here"


def warning(address: str, ca: bytes, now: datetime.datetime | None = None) -> str:
    """Return a warning if the certificate at an address ends within a month or has ended; else an empty text."""
    try:
        found, _ = served(address, ca)
    except (OSError, ValueError):
        return ""
    if found is None:
        return ""
    valid = found.not_valid_before_utc, found.not_valid_after_utc
    seen = certificate(f"the certificate of {address}", valid, _REMEDY, now)
    return "" if seen.level == "ok" else f"{seen.words}; {seen.remedy}"


def watch(address: str, ca: bytes, tell: Callable[[str], None], ended: threading.Event) -> None:
    """Call `tell` with the warning now and every day, from a thread, until the event is set."""

    def look() -> None:
        while True:
            if words := warning(address, ca):
                tell(words)
            if ended.wait(_EVERY):
                return

    threading.Thread(target=look, name="hush-certificate", daemon=True).start()
