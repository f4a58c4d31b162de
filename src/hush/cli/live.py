"""Live pages of commands: the page of `--live`, for as long as the command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.text import printable

_LONGEST = 4000


@contextmanager
def live_page(path: Path, live: bool, port: int | None = None, *, several: bool = False) -> Iterator[None]:
    """Serve the live page of a directory while the body of a `with` runs, if asked for; its address goes to stderr."""
    if not live:
        yield
        return
    from hush.live import background, source_of

    with background(source_of(path, several=several), port=port) as address:
        say(f"Live page: {address}")
        yield


def say(words: str) -> None:
    """Print a line to standard error."""
    print(printable(words, _LONGEST), file=sys.stderr, flush=True)
