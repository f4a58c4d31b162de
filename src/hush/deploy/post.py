"""Ask members and wait: a round closes when all have answered, some time after a quorum has, or at its deadline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hush.deploy.place import Settings
from hush.types import HushError

_POLL = 0.04
_LOOK = 1.0


class Hub(Protocol):
    """The coordinator's end of the post office, as `hush.engines.flower` has it."""

    def open(self) -> None:
        """Begin a run."""
        ...

    def online(self) -> list[Any]:
        """The nodes that could be asked now."""
        ...

    def send(self, node: int, payload: bytes, ttl: float) -> str:
        """Send bytes to a node."""
        ...

    def collect(self, names: Sequence[str], cap: int) -> list[tuple[str, bytes | HushError]]:
        """What came back for these messages."""
        ...

    def close(self, status: str = "completed", details: str = "") -> None:
        """End the run."""
        ...


class Post:
    """Letters to members by name, and what comes back."""

    def __init__(self, hub: Hub, members: Mapping[str, bytes], settings: Settings) -> None:
        self._hub, self._settings = hub, settings
        self._names = {key: name for name, key in members.items()}

    def ask(
        self, letters: Mapping[str, bytes], cap: int, quorum: int, *, gather: bool = False
    ) -> dict[str, bytes | HushError]:
        """Send each its letter, and give back the replies that came before the round closed.

        A letter is sent when its member is online, and again when the member was restarted. `gather` waits for members
        that are not there yet for as long as the settings say; else who goes offline is not waited for.
        """
        began = time.monotonic()
        closes = began + (self._settings.gather if gather else self._settings.deadline)
        sent: dict[str, tuple[str, str]] = {}
        replies: dict[str, bytes | HushError] = {}
        looked, reached = 0.0, 0.0
        missing = set(letters)
        while missing and time.monotonic() < closes:
            now = time.monotonic()
            if now - looked > _LOOK or now == began:
                online = {self._names[peer.key]: peer for peer in self._hub.online() if peer.key in self._names}
                looked = time.monotonic()
                for name in sorted(missing & set(online)):
                    since = online[name].since
                    if name not in sent or sent[name][1] != since:
                        ttl = max(1.0, closes - time.monotonic())
                        # Who is shut out between the look and the letter is simply not asked.
                        with contextlib.suppress(HushError):
                            sent[name] = (self._hub.send(online[name].node, letters[name], ttl), since)
                # Whoever is gone may come back while others are waited for, but nobody waits for it alone.
                if not gather and not missing & set(online) and now - began > 2 * _LOOK:
                    break
            waiting = {sent[name][0]: name for name in missing if name in sent}
            for message, reply in self._hub.collect(list(waiting), cap) if waiting else ():
                if message in waiting:
                    replies[waiting[message]] = reply
                    missing.discard(waiting[message])
            if len(replies) >= quorum and not reached:
                reached = time.monotonic()
                closes = min(closes, reached + self._settings.patience)
            if missing:
                time.sleep(_POLL)
        return replies
