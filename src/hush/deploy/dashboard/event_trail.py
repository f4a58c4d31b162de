"""The trail of events in an audit log, followed as it grows, also when it is rotated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hush.deploy.admin.audit_log import KEPT, older

Event = Mapping[str, Any]


class EventTrail:
    """Reads each complete line of a log once. At first it also reads the log before the current one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0

    def news(self) -> Iterator[Event]:
        """Yield the events that were written since the last call."""
        try:
            now = self._path.stat()
        except OSError:
            return
        if self._inode == now.st_ino and now.st_size == self._offset:
            return
        if self._inode != now.st_ino:
            for path in self._missed():
                yield from self._read(path)
                self._offset = 0
            self._inode = now.st_ino
        yield from self._read(self._path)

    def _missed(self) -> list[Path]:
        """Return the logs that were renamed since the last call, the oldest first, from the one that was being read."""
        found: list[Path] = []
        for number in range(1, KEPT + 1):
            path = older(self._path, number)
            try:
                inode = path.stat().st_ino
            except OSError:
                break
            found.insert(0, path)
            if inode == self._inode:
                return found
        # The log that was being read is gone, or none was: one is enough for what is shown.
        self._offset = 0
        return found[-1:]

    def _read(self, path: Path) -> Iterator[Event]:
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return
        # A line that is still being written is read next time.
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event
