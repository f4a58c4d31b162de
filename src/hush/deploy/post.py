"""Ask members and wait: a round closes when all have answered, some time after a quorum has, or at its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hush.deploy.place import Settings
from hush.engines.patience import ForgottenError
from hush.types import HushError

Counts = Callable[[str, bytes | HushError], bool]
_POLL = 0.04
_EACH = 0.01
_LOOK = 1.0
_ANEW = 4


class Hub(Protocol):
    """The coordinator's end of the post office, as `hush.engines.flower` has it."""

    def open(self) -> None:
        """Begin a run."""
        ...

    def limit(self, cap: int) -> None:
        """Let no node send more than an answer of this size, until the next call."""
        ...

    def online(self) -> list[Any]:
        """The nodes that could be asked now."""
        ...

    def send(self, letters: Mapping[int, bytes], ttl: float) -> dict[int, str]:
        """Send each node its bytes; the names of the messages."""
        ...

    def collect(self, names: Sequence[str], cap: int) -> list[tuple[str, bytes | HushError]]:
        """What came back for these messages."""
        ...

    def close(self, status: str = "completed", details: str = "") -> None:
        """End the run."""
        ...


def _any(name: str, reply: bytes | HushError) -> bool:
    return True


class Post:
    """Letters to members by name, and what comes back."""

    def __init__(self, hub: Hub, members: Mapping[str, bytes], settings: Settings) -> None:
        self._hub, self._settings = hub, settings
        self._names = {key: name for name, key in members.items()}

    def ask(
        self, letters: Mapping[str, bytes], cap: int, quorum: int, *, gather: bool = False, counts: Counts = _any
    ) -> dict[str, bytes | HushError]:
        """Send each its letter, and give back the replies that came before the round closed.

        Toward the quorum goes what `counts` says, so that nobody closes a round on others with an answer that is none.

        A letter is sent when its member is online, and again when the member or the SuperLink was restarted. `gather`
        waits for members that are not there yet for as long as the settings say; else, once there is a quorum, nobody
        waits for who is offline.
        """
        for _ in range(_ANEW):
            try:
                return self._ask(letters, cap, quorum, gather, counts)
            except ForgottenError:
                # It lost what was on its way. Members still have it, and send the same bytes.
                self._hub.open()
        return self._ask(letters, cap, quorum, gather, counts)

    def here(self) -> set[str]:
        """The members that could be asked now."""
        try:
            return {self._names[peer.key] for peer in self._hub.online() if peer.key in self._names}
        except ForgottenError:
            return set()

    def _ask(
        self, letters: Mapping[str, bytes], cap: int, quorum: int, gather: bool, counts: Counts
    ) -> dict[str, bytes | HushError]:
        self._hub.limit(cap)
        began = time.monotonic()
        closes = began + (self._settings.gather if gather else self._settings.deadline)
        sent: dict[str, str] = {}
        seen: dict[str, str] = {}
        replies: dict[str, bytes | HushError] = {}
        looked, reached, good = 0.0, 0.0, 0
        missing = set(letters)
        while missing and time.monotonic() < closes:
            now = time.monotonic()
            if now - looked > _LOOK or now == began:
                online = {self._names[peer.key]: peer for peer in self._hub.online() if peer.key in self._names}
                looked = time.monotonic()
                # To whom nothing was sent yet, or who was started anew since; not to who was shut out meanwhile.
                due = {n: online[n] for n in sorted(missing & set(online)) if seen.get(n) != online[n].since}
                posted = self._hub.send({peer.node: letters[n] for n, peer in due.items()}, max(1.0, closes - looked))
                sent |= {n: posted[peer.node] for n, peer in due.items() if peer.node in posted}
                seen |= {n: peer.since for n, peer in due.items()}
                # Whoever is gone may come back while a quorum is waited for; beyond that nobody waits for it.
                enough = good >= min(quorum, len(letters))
                if not gather and enough and not missing & set(online) and now - began > 2 * _LOOK:
                    break
            asked = time.monotonic()
            waiting = {sent[name]: name for name in missing if name in sent}
            for message, reply in self._hub.collect(list(waiting), cap) if waiting else ():
                if message in waiting:
                    replies[waiting[message]] = reply
                    good += counts(waiting[message], reply)
                    missing.discard(waiting[message])
            if good >= quorum and not reached:
                reached = time.monotonic()
                closes = min(closes, reached + self._settings.patience)
            if missing:
                # A SuperLink has one core, and answers in some milliseconds: most of them belong to the members.
                time.sleep(max(_POLL, _EACH * len(letters), time.monotonic() - asked))
        return replies
