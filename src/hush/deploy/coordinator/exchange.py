"""Exchange with members: a round closes when all have answered, some time after most have, or at its deadline.

How long that is follows from the round itself: a few times as long as the half of the members took. A member that is
online and does not answer in that time, or not usably, is waited for half as long in the next round, and so on; one
that fails again and again is evicted from the run. So a few members that stall hold nobody up, and a slow network or a
large model does not cut members off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from hush.deploy.admin.folders import Settings
from hush.deploy.transport.retry import ForgottenError
from hush.types import HushError


class Verdict(Enum):
    """What a reply is worth: an answer, a member's own refusal, or neither of them."""

    USABLE = auto()
    REFUSAL = auto()
    UNUSABLE = auto()


Judge = Callable[[str, bytes | HushError], Verdict]
_POLL = 0.04
_EACH = 0.01
_LOOK = 1.0
_ANEW = 4
_LATE = 60.0
_LEAST = 5.0  # seconds that a round waits for the rest, however soon the half has answered
_FAILURES, _FAILING = 3, 60.0  # rounds in a row, and seconds: Flower takes a dead process for online for 25 of them


class Hub(Protocol):
    """The coordinator's end of the post office, as `hush.deploy.transport.flower` has it."""

    def open(self) -> None:
        """Begin a run."""
        ...

    def limit(self, cap: int, seconds: float) -> None:
        """Let nodes send this run answers of this size, until the next call or for so long."""
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


def _any(name: str, reply: bytes | HushError) -> Verdict:
    return Verdict.USABLE


class Exchange:
    """Letters to members by name, and what comes back."""

    def __init__(self, hub: Hub, members: Mapping[str, bytes], settings: Settings) -> None:
        self._hub, self._settings = hub, settings
        self._names = {key: name for name, key in members.items()}
        self._failing: dict[str, tuple[int, float]] = {}
        self._took = 0.0

    def ask(
        self, letters: Mapping[str, bytes], cap: int, quorum: int, *, gather: bool = False, judge: Judge = _any
    ) -> dict[str, bytes | HushError]:
        """Send each its letter, and give back the replies that came before the round closed.

        Toward the quorum goes what `judge` finds usable, so that nobody closes a round on others with an answer that is
        none.

        A letter is sent when its member is online, and again when the member or the SuperLink was restarted. `gather`
        waits for members that are not there yet for as long as the settings say; else, once there is a quorum, nobody
        waits for who is offline.
        """
        for _ in range(_ANEW):
            try:
                return self._ask(letters, cap, quorum, gather, judge)
            except ForgottenError:
                # It lost what was on its way. Members still have it, and send the same bytes.
                self._hub.open()
        return self._ask(letters, cap, quorum, gather, judge)

    def here(self) -> set[str]:
        """The members that could be asked now."""
        try:
            return {self._names[peer.key] for peer in self._hub.online() if peer.key in self._names}
        except ForgottenError:
            return set()

    def tell(self, letters: Mapping[str, bytes]) -> None:
        """Send each its letter, if it is online, and wait for nothing."""
        try:
            online = {self._names[peer.key]: peer for peer in self._hub.online() if peer.key in self._names}
            self._hub.send({online[name].node: letter for name, letter in letters.items() if name in online}, _LATE)
        except ForgottenError:
            return

    def failing(self) -> dict[str, int]:
        """The members to evict, with how many rounds in a row each was online and gave no usable answer."""
        now = time.monotonic()
        return {
            name: rounds
            for name, (rounds, since) in self._failing.items()
            if rounds >= _FAILURES and now - since >= _FAILING
        }

    def _ask(
        self, letters: Mapping[str, bytes], cap: int, quorum: int, gather: bool, judge: Judge
    ) -> dict[str, bytes | HushError]:
        began = time.monotonic()
        most = self._settings.gather if gather else self._settings.deadline
        self._hub.limit(cap, most + _LATE)
        closes = began + most
        sent: dict[str, str] = {}
        seen: dict[str, str] = {}
        replies: dict[str, bytes | HushError] = {}
        online: dict[str, Any] = {}
        usable: set[str] = set()
        unusable: set[str] = set()
        looked, reached, half = 0.0, 0.0, 0.0
        missing, steady = set(letters), set(letters) - set(self._failing)
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
                enough = len(usable) >= min(quorum, len(letters))
                if not gather and enough and not missing & set(online) and now - began > 2 * _LOOK:
                    break
            asked = time.monotonic()
            waiting = {sent[name]: name for name in missing if name in sent}
            for message, reply in self._hub.collect(list(waiting), cap) if waiting else ():
                if message in waiting:
                    name = waiting[message]
                    replies[name] = reply
                    verdict = judge(name, reply)
                    usable |= {name} if verdict is Verdict.USABLE else set()
                    unusable |= {name} if verdict is Verdict.UNUSABLE else set()
                    missing.discard(name)
            now = time.monotonic()
            if len(usable) >= quorum and not reached:
                reached = now
                closes = min(closes, reached + self._settings.patience)
            if reached and not half and (not quorum or 2 * len(usable & steady) >= len(steady & set(online))):
                half = now
                # Where nobody's answer is needed, as of who came late, it may take what it took others before.
                self._took = max(self._took, half - began)
            if half and not gather:
                fewest = min((self._failing.get(name, (0, 0.0))[0] for name in missing & set(online)), default=0)
                took = half - began if quorum else self._took
                closes = min(closes, half + waits(took, self._settings.slack, fewest))
            if missing:
                # A SuperLink has one core, and answers in some milliseconds: most of them belong to the members.
                time.sleep(max(_POLL, _EACH * len(letters), time.monotonic() - asked))
        if not gather:
            self._remember(usable, (missing | unusable) & set(online) & set(sent))
        return replies

    def _remember(self, usable: set[str], failed: set[str]) -> None:
        """Who was online and said nothing usable has failed once more; a usable answer makes up for it."""
        now = time.monotonic()
        for name in usable:
            self._failing.pop(name, None)
        for name in failed:
            rounds, since = self._failing.get(name, (0, now))
            self._failing[name] = (rounds + 1, since)


def waits(took: float, slack: float, failures: int) -> float:
    """For how many seconds a round waits for the rest, once the half has answered, which `took` so long.

    `slack` times as long in all, but at least some seconds; half of that for each round in a row that was missed.
    """
    return max(_LEAST, (slack - 1) * took) * 0.5**failures
