"""Stop requests: a file in a run directory that asks the run to stop after its current round; it can be resumed."""

from __future__ import annotations

from pathlib import Path

STOP = "stop"


def request_stop(directory: Path) -> None:
    """Ask the run in a directory, or all runs below it, to stop after the current round."""
    (directory / STOP).touch()


def stop_requested(directory: Path) -> bool:
    """Return whether somebody asked."""
    return (directory / STOP).exists()


def clear_stop(directory: Path) -> None:
    """Forget a request, when a run begins or has stopped."""
    (directory / STOP).unlink(missing_ok=True)
