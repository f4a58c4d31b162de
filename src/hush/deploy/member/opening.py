"""Opening hours and daily runs of a member: when its policy lets it take part, by this machine's clock."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hush.types import HushError

DAY = 86_400.0
_HOURS = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")


def parse(hours: str) -> tuple[int, int] | None:
    """Return the first minute of the day and the minute after the last; None for an empty text, which means always."""
    if not hours:
        return None
    found = _HOURS.fullmatch(hours)
    first, end = (60 * int(found[at]) + int(found[at + 1]) for at in (1, 3)) if found else (0, 0)
    if first == end or max(first, end) > 1440 or first == 1440:
        raise HushError(
            f"limits.hours: found {hours[:40]!r}; accepted: first and last time, such as 18:00-06:00 or 00:00-24:00",
            "limits.hours",
        )
    return first, end


def check_hours(hours: str, now: float | None = None) -> None:
    """Raise a `HushError` outside the hours; a range that ends before it begins includes midnight."""
    between = parse(hours)
    if between is None:
        return
    local = time.localtime(now)
    minute, (first, end) = 60 * local.tm_hour + local.tm_min, between
    within = first <= minute < end if first < end else minute >= first or minute < end
    if not within:
        raise HushError(
            f"it is {local.tm_hour:02d}:{local.tm_min:02d}; this member takes part in {hours} (limits.hours)"
        )


def check_runs(records: Path, run: str, most: int, now: float | None = None) -> None:
    """Raise a `HushError` if so many other runs began in the last 24 hours.

    A run leaves files in the directory, named after it, when it enrols or begins. One that has begun is not counted
    again, however long it lasts.
    """
    since = (time.time() if now is None else now) - DAY
    files = [(path.name.partition(".")[0], path.stat().st_mtime) for path in records.glob("*.json")]
    recent = {name for name, changed in files if changed > since}
    if len(recent) >= most and run not in dict(files):
        raise HushError(f"{len(recent)} runs began in the last 24 hours; accepted: {most} (limits.runs_per_day)")
