"""Interruption of a run by Ctrl-C: which round was the last, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.callbacks import Callback
from hush.server.run_directory import MANIFEST, saved_round
from hush.types import RoundRecord, RunInterrupted


class LastRound(Callback):
    """Keeps the number of the last round."""

    number = 0

    def on_round_end(self, record: RoundRecord) -> None:
        """Keep the number."""
        self.number = record.round


@contextmanager
def interruptible(path: Path | None) -> Iterator[LastRound]:
    """Inside, Ctrl-C raises `RunInterrupted`, which names the last round of the runs in a directory or in memory."""
    last = LastRound()
    try:
        yield last
    except KeyboardInterrupt:
        number = last.number if path is None else max(last.number, saved_round(path))
        raise RunInterrupted(number, path is not None and any(path.rglob(MANIFEST))) from None
