"""Exchange of messages with members, with the time limits of a round.

A round ends when all members have answered, some time after half of them have, or at its deadline. That time is a
multiple of how long half of the members took. A member that is online but gives no usable answer in time is waited for
half as long in the next round, and so on; after several failures in a row it is evicted from the run. Therefore a few
stalling members do not delay the others, and slow networks or large models do not exclude members.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from hush.deploy.admin.folders import Settings
from hush.deploy.transport.messages import Buffer, EncodedMessage
from hush.deploy.transport.retry import ForgottenError
from hush.types import HushError


class Verdict(Enum):
    """How a reply is judged: an answer, a member's own refusal, or neither."""

    USABLE = auto()
    REFUSAL = auto()
    UNUSABLE = auto()


Judge = Callable[[str, Buffer | HushError], Verdict]
_LOOK = 1.0
_RESENDS = 4
_LATE = 60.0
# Why there is no answer. A process that died counts as online for up to 25 seconds.
OFFLINE, LEFT, SILENT = "offline", "went offline before it answered", "no answer in time"
ABSENT = (OFFLINE, LEFT, SILENT)
_LEAST = 5.0  # minimum seconds that a round waits for the remaining members after half have answered
_FAILURES, _FAILING = (
    3,
    60.0,
)  # consecutive failed rounds, and seconds: Flower lists a dead process as online for 25 s


class Transport(Protocol):
    """The coordinator's end of the transport, as implemented in `hush.deploy.transport.flower`."""

    def open(self) -> None:
        """Start a run."""
        ...

    def limit(self, cap: int, seconds: float) -> None:
        """Set the size limit of answers to this run, until the next call or for this many seconds."""
        ...

    def online(self) -> list[Any]:
        """The nodes that are online now."""
        ...

    def send(self, outgoing: Mapping[int, EncodedMessage], ttl: float) -> dict[int, str]:
        """Send each node its message; returns the message identifiers."""
        ...

    def collect(self, names: Sequence[str], cap: int, wait: float = 0.0) -> list[tuple[str, Buffer | HushError]]:
        """Wait for replies to these messages for some seconds, and fetch those that are there."""
        ...

    def close(self, status: str = "completed", details: str = "") -> None:
        """End the run."""
        ...


def _any(name: str, reply: Buffer | HushError) -> Verdict:
    return Verdict.USABLE


class Exchange:
    """Messages to members by name, and their replies."""

    def __init__(self, hub: Transport, members: Mapping[str, bytes], settings: Settings) -> None:
        self._hub, self._settings = hub, settings
        self._names = {key: name for name, key in members.items()}
        self._failing: dict[str, tuple[int, float]] = {}
        self._took = 0.0
        self.seconds: dict[str, float] = {}
        self.absent: dict[str, str] = {}

    def ask(
        self,
        outgoing: Mapping[str, EncodedMessage],
        cap: int,
        quorum: int,
        *,
        gather: bool = False,
        judge: Judge = _any,
    ) -> dict[str, Buffer | HushError]:
        """Send each member its message, and return the replies that arrived before the round ended.

        Only replies that `judge` finds usable count towards the quorum, so invalid answers cannot end a round early for
        others.

        A message is sent when its member is online, and again if the member or the SuperLink was restarted. With
        `gather`, the exchange waits for members that are not online yet, as long as the settings allow. Otherwise it
        does not wait for offline members once there is a quorum.

        Afterwards `seconds` has how long each reply took since its message was sent, and `absent` why there is none.
        """
        for _ in range(_RESENDS):
            try:
                return self._ask(outgoing, cap, quorum, gather, judge)
            except ForgottenError:
                # The SuperLink lost all messages in transit. Members still have their answers and send the same bytes.
                self._hub.open()
        return self._ask(outgoing, cap, quorum, gather, judge)

    def here(self) -> set[str]:
        """The members that are online now."""
        try:
            return {self._names[peer.key] for peer in self._hub.online() if peer.key in self._names}
        except ForgottenError:
            return set()

    def tell(self, outgoing: Mapping[str, EncodedMessage]) -> None:
        """Send each online member its message without waiting for an answer."""
        try:
            online = {self._names[peer.key]: peer for peer in self._hub.online() if peer.key in self._names}
            self._hub.send({online[name].node: message for name, message in outgoing.items() if name in online}, _LATE)
        except ForgottenError:
            return

    def close(self, outgoing: Mapping[str, EncodedMessage], cap: int) -> None:
        """Send each online member a last message, and wait a few seconds until it has arrived."""
        try:
            present = {name: outgoing[name] for name in sorted(self.here() & set(outgoing))}
            self._ask(present, cap, 0, False, _any, _LEAST)
        except HushError:
            # The run has ended well; a member that does not hear of it loses nothing.
            return

    def failing(self) -> dict[str, int]:
        """Return the members to evict: online without a usable answer in how many consecutive rounds."""
        now = time.monotonic()
        return {
            name: rounds
            for name, (rounds, since) in self._failing.items()
            if rounds >= _FAILURES and now - since >= _FAILING
        }

    def _ask(
        self,
        outgoing: Mapping[str, EncodedMessage],
        cap: int,
        quorum: int,
        gather: bool,
        judge: Judge,
        most: float | None = None,
    ) -> dict[str, Buffer | HushError]:
        began = time.monotonic()
        most = most or (self._settings.gather if gather else self._settings.deadline)
        self._hub.limit(cap, most + _LATE)
        closes = began + most
        sent: dict[str, str] = {}
        seen: dict[str, str] = {}
        posted_at: dict[str, float] = {}
        self.seconds, self.absent = {}, {}
        replies: dict[str, Buffer | HushError] = {}
        online: dict[str, Any] = {}
        usable: set[str] = set()
        unusable: set[str] = set()
        looked, reached, half = 0.0, 0.0, 0.0
        missing, steady = set(outgoing), set(outgoing) - set(self._failing)
        while missing and time.monotonic() < closes:
            now = time.monotonic()
            if now - looked > _LOOK or now == began:
                online = {self._names[peer.key]: peer for peer in self._hub.online() if peer.key in self._names}
                looked = time.monotonic()
                # Only members that were not sent anything yet, or were restarted since; not those excluded in the
                # meantime.
                due = {n: online[n] for n in sorted(missing & set(online)) if seen.get(n) != online[n].since}
                posted = self._hub.send({peer.node: outgoing[n] for n, peer in due.items()}, max(1.0, closes - looked))
                sent |= {n: posted[peer.node] for n, peer in due.items() if peer.node in posted}
                seen |= {n: peer.since for n, peer in due.items()}
                posted_at = {**dict.fromkeys(due, looked), **posted_at}
                # An offline member may come back while a quorum is waited for; after that it is not waited for.
                enough = len(usable) >= min(quorum, len(outgoing))
                if not gather and enough and not missing & set(online) and now - began > 2 * _LOOK:
                    break
            waiting = {sent[name]: name for name in missing if name in sent}
            wait = max(0.0, min(closes, looked + _LOOK) - time.monotonic())
            if not waiting:
                time.sleep(wait)
            for message, reply in self._hub.collect(list(waiting), cap, wait) if waiting else ():
                if message in waiting:
                    name = waiting[message]
                    replies[name] = reply
                    self.seconds[name] = time.monotonic() - posted_at[name]
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
                # A member whose answer is not required, because it joined late, may take as long as the others took.
                self._took = max(self._took, half - began)
            if half and not gather:
                fewest = min((self._failing.get(name, (0, 0.0))[0] for name in missing & set(online)), default=0)
                took = half - began if quorum else self._took
                closes = min(closes, half + remaining_wait(took, self._settings.slack, fewest))
        self.absent = {
            name: SILENT if name in online else LEFT if name in sent else OFFLINE for name in sorted(missing)
        }
        if not gather:
            self._remember(usable, (missing | unusable) & set(online) & set(sent))
        return replies

    def _remember(self, usable: set[str], failed: set[str]) -> None:
        """Count a failure for members that were online without a usable answer; a usable answer resets the count."""
        now = time.monotonic()
        for name in usable:
            self._failing.pop(name, None)
        for name in failed:
            rounds, since = self._failing.get(name, (0, now))
            self._failing[name] = (rounds + 1, since)


def remaining_wait(took: float, slack: float, failures: int) -> float:
    """Return how many seconds a round waits for the remaining members after half answered in `took` seconds.

    This is `slack` times as long in total, with a minimum; half of it for each consecutive round that was missed.
    """
    return max(_LEAST, (slack - 1) * took) * 0.5**failures
