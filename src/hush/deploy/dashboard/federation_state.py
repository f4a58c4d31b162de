"""The state of a federation, as its coordinator's folder has it: members, presence, runs, refusals, certificates.

Everything is read from files that the processes of the coordinator write. A member's folder is never read, not even
one in `kits/`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import statistics
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hush.deploy.admin import keys
from hush.deploy.admin.audit_log import FILE
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.dashboard.event_trail import Event, EventTrail
from hush.deploy.shared import presence
from hush.live.follow import MANIFEST, FollowedRun
from hush.types import HushError

AGREEMENT = "federation.json"
CERTIFICATES: Mapping[str, str] = {"server.crt": "server", "ca.crt": "CA", "signing.crt": "deliveries"}
ONLINE = 10.0  # seconds since the last request of a member that is online: a live one sends one every second
_LOOK = 1.0  # seconds between two looks at what is not a log
_OF_RUN = ("proposed", "proposal", "not enrolled", "enrolled", "closed", "ended", "failed")
_DRY = "dry"  # how the names of dry runs begin
_EVENTS, _REFUSALS, _ROUNDS, _RUNS = 200, 200, 4000, 20


@dataclass(kw_only=True)
class Member:
    """What the coordinator knows of a member.

    Attributes:
        name: Its name.
        listed: Whether its key is in `members/`; false if it was revoked.
        heard: When its last request arrived, as the time of day in seconds; None if not since `serve` began.
        online: Whether that is recent.
        answers: Its updates that arrived.
        refusals: How often it refused, was refused, or gave no answer.
        reason: Why, at the latest time.
        reason_at: When that was, as the log has it.
        seconds: How long its latest answers took.
        answered: The latest round that it answered.
    """

    name: str
    listed: bool = True
    heard: float | None = None
    online: bool = False
    answers: int = 0
    refusals: int = 0
    reason: str = ""
    reason_at: str = ""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    answered: int = 0


@dataclass(kw_only=True)
class RunEvents:
    """What the audit log says of one run.

    Attributes:
        waiting: Who had not decided on it when that was last noted.
        left_out: Why members do not take part.
        refused: Why members gave no usable answer in the latest round.
        round: The latest round that was closed.
        rounds: Closed rounds.
        seconds: For each member, the rounds that it answered and in how many seconds.
        ended: Why it ended, if it has.
        failed: The error with which its coordinator stopped, until it goes on.
        at: When it was last heard of, as the log has it.
    """

    waiting: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    round: int = 0
    rounds: int = 0
    seconds: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)
    ended: str = ""
    failed: str = ""
    at: str = ""


@dataclass(frozen=True)
class Refusal:
    """A refusal: when, in which run and round (0: before the first), by or of whom, and why."""

    at: str
    run: str
    round: int
    member: str
    reason: str


@dataclass(frozen=True)
class Certificate:
    """A certificate, and until when it is valid."""

    name: str
    ends: datetime.datetime

    @property
    def days(self) -> float:
        """Days left; negative if it has expired."""
        return (self.ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400


class FederationState:
    """A coordinator's folder, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.place = FederationFolder(path)
        self.members: dict[str, Member] = {}
        self.serving: Mapping[str, Any] = {}
        self.certificates: tuple[Certificate, ...] = ()
        self.faults: tuple[str, ...] = ()
        self.runs: dict[Path, FollowedRun] = {}
        self.names: dict[str, str] = {}
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.refusals: deque[Refusal] = deque(maxlen=_REFUSALS)
        self.levels: Counter[str] = Counter()
        self.of_run: dict[str, RunEvents] = {}
        self._trail = EventTrail(self.place.server / FILE)
        self._looked = 0.0
        self._seen: object = None

    @property
    def up(self) -> bool:
        """Whether `hush federation serve` is running."""
        return presence.alive(self.serving)

    @property
    def run(self) -> FollowedRun | None:
        """The run that is under way, or the latest; the one that wrote last where there are several."""
        started = [run for run in self.runs.values() if run.started]
        return max(started, key=lambda run: (not run.finished, run.read_at or _changed(run.path)), default=None)

    @property
    def preparing(self) -> tuple[str, RunEvents] | None:
        """The run that members are being asked about: it has no directory yet."""
        for name, events in reversed(self.of_run.items()):
            if name not in self.names and not events.ended and not events.round:
                return None if events.failed else (name, events)
        return None

    @property
    def failed(self) -> tuple[str, str] | None:
        """The run that was last heard of, if its coordinator stopped with an error, and the error."""
        name, events = max(self.of_run.items(), key=lambda each: each[1].at, default=("", RunEvents()))
        return (self.names.get(name, name[:8]), events.failed) if events.failed else None

    def events_of(self, run: FollowedRun | None) -> RunEvents:
        """Return what the log says of a run."""
        name = next((name for name, folder in self.names.items() if run is not None and folder == run.path.name), "")
        return self.of_run.get(name, RunEvents())

    def left(self, run: FollowedRun) -> dict[str, tuple[float, float]]:
        """For each member of a run, what is left of the epsilon that it declared for the run, and that epsilon; not of
        members that declared it with noise.
        """
        if run.costs is None:
            return {}
        spent = run.epsilon_at(run.rounds)
        budgets = [client.policy.epsilon for client in run.costs.clients]
        known = [client for client in spent if math.isfinite(budgets[client])]
        return {run.name(client): (max(0.0, budgets[client] - spent[client]), budgets[client]) for client in known}

    def refresh(self) -> bool:
        """Read what is new, and return whether anything is."""
        news = False
        for event in self._trail.news():
            # A line that somebody has edited is left out; it must not end the page.
            with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
                self._count(event)
            news = True
        if news or time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            news = self._look() or news
        for run in self.runs.values():
            news = (not run.finished and run.refresh()) or news
        return news

    def _look(self) -> bool:
        """Look at what is not a log: keys, presence, certificates, and which runs there are."""
        faults: list[str] = []
        listed = set(self.place.members(lambda error: faults.append(str(error))))
        self.serving = presence.read(self.place.server)
        heard = self.serving.get("heard", {}) if self.up else {}
        for name in listed:
            self._member(name)
        for name, member in self.members.items():
            member.listed = name in listed
            member.heard = heard.get(name, member.heard)
            member.online = member.listed and name in heard and time.time() - heard[name] < ONLINE
        self.certificates = tuple(self._certificates(faults))
        self.faults = tuple(faults)
        for path in self.place.runs.glob("*"):
            if path not in self.runs and (path / MANIFEST).exists():
                self.runs[path] = FollowedRun(path)
            if path in self.runs and path.name not in self.names.values():
                self.names |= _named(path)
        online = tuple(name for name, member in self.members.items() if member.online)
        seen = (self.up, online, tuple(sorted(listed)), self.certificates, self.faults, len(self.runs))
        before, self._seen = self._seen, seen
        return before != seen

    def _certificates(self, faults: list[str]) -> list[Certificate]:
        found = []
        for file, name in CERTIFICATES.items():
            path = self.place.server / file
            if path.exists():
                try:
                    found.append(Certificate(name, keys.validity(path)[1]))
                except HushError as error:
                    faults.append(str(error))
        return found

    def _member(self, name: str) -> Member:
        return self.members.setdefault(name, Member(name=name))

    def _count(self, event: Event) -> None:
        """Take an event of the audit log into account."""
        self.levels[str(event.get("level", "info"))] += 1
        if event.get("level") != "debug":
            self.events.append(event)
        what, run = event["event"], str(event.get("run", ""))
        if run.startswith(_DRY) or what not in _OF_RUN:
            return
        events = self.of_run.setdefault(run, RunEvents())
        events.at = str(event.get("time", ""))
        if what == "proposed":
            events.waiting = tuple(map(str, event.get("waiting", ())))
        elif what == "proposal":
            events.waiting = ()
        elif what == "not enrolled":
            events.left_out[str(event.get("member"))] = str(event.get("reason"))
            self._refused(event, 0, str(event.get("member")), str(event.get("reason")))
        elif what == "closed":
            self._closed(event, events)
        elif what == "ended":
            events.ended = str(event.get("why", "ended"))
        events.failed = str(event.get("reason", "")) if what == "failed" else ""
        while len(self.of_run) > _RUNS:
            self.of_run.pop(next(iter(self.of_run)))

    def _closed(self, event: Event, events: RunEvents) -> None:
        number, seconds = int(event.get("round", 0)), event.get("seconds") or {}
        events.round, events.rounds, events.waiting = number, events.rounds + 1, ()
        events.refused = {str(name): str(reason) for name, reason in (event.get("refused") or {}).items()}
        for name in map(str, event.get("answered", ())):
            member = self._member(name)
            member.answers, member.answered = member.answers + 1, number
            if name in seconds:
                member.seconds.append(float(seconds[name]))
                rounds, took = events.seconds.setdefault(name, (array("d"), array("d")))
                rounds.append(number)
                took.append(float(seconds[name]))
                if len(rounds) > _ROUNDS:
                    del rounds[0], took[0]
        for name, reason in events.refused.items():
            self._refused(event, number, name, reason)

    def _refused(self, event: Event, number: int, name: str, reason: str) -> None:
        member, at = self._member(name), str(event.get("time", ""))
        member.refusals, member.reason, member.reason_at = member.refusals + 1, reason, at
        self.refusals.append(Refusal(at, str(event.get("run", "")), number, name, reason))


def typical(seconds: deque[float]) -> float:
    """Return the median of the latest times; NaN without any."""
    return statistics.median(seconds) if seconds else math.nan


def _named(path: Path) -> dict[str, str]:
    """Return the directory of a run by the name that members know it by."""
    try:
        return {str(json.loads((path / AGREEMENT).read_bytes())["run"]): path.name}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
