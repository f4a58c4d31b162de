"""Presence of a process: a file that says every two seconds that it lives, and what it is doing.

`hush federation serve` writes `server/presence.json`, `hush federation join` writes `presence.json` in the kit. Whoever
shows or measures a federation reads these files, and needs neither a key nor a connection. A file that is older than
`SILENT` seconds is that of a process that died or hangs; one that ended has removed it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = "presence.json"
SILENT = 15.0
_EVERY = 2.0


@contextlib.contextmanager
def presence_file(folder: Path, facts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Write the file from a thread while the body of a `with` runs, with these facts, and remove it afterwards.

    A disk that is full stops no process here: the file is then old, and says so by itself.
    """
    path, since, ended = folder / FILE, time.time(), threading.Event()

    def write() -> None:
        while True:
            with contextlib.suppress(OSError):
                _write(path, {"time": time.time(), "since": since, "pid": os.getpid(), **facts()})
            if ended.wait(_EVERY):
                return

    thread = threading.Thread(target=write, name="hush-presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)
        path.unlink(missing_ok=True)


def read(folder: Path) -> Mapping[str, Any]:
    """Return what a process says of itself, with its age in seconds; empty if it has ended or never began."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        return {**found, "age": max(0.0, time.time() - float(found["time"]))}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def alive(found: Mapping[str, Any]) -> bool:
    """Whether the process of a file that was read is alive."""
    return bool(found) and float(found["age"]) < SILENT


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    beside = path.with_name(f"{path.name}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
        json.dump(facts, file)
    beside.replace(path)
