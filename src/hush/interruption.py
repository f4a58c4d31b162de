"""Interruption of a run by Ctrl-C: which round was the last, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.server.run_directory import MANIFEST, saved_round
from hush.types import RoundRecord, RunInterrupted


@contextmanager
def interruptible(path: Path | None) -> Iterator[list[RoundRecord]]:
    """Turn Ctrl-C into `RunInterrupted`, which names the last finished round of the runs in a directory or in memory.

    Yields a list, to which the caller appends the records of finished rounds.
    """
    over: list[RoundRecord] = []
    try:
        yield over
    except RunInterrupted:
        raise
    except KeyboardInterrupt:
        number = saved_round(path) if path is not None else max((record.round for record in over), default=0)
        raise RunInterrupted(number, path is not None and any(path.rglob(MANIFEST))) from None
