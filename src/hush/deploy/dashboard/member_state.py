"""The state of a member, as its kit has it: presence, spending, proposals, runs, and what it sent and refused."""

from __future__ import annotations

import contextlib
import json
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.deploy.admin.audit_log import FILE
from hush.deploy.admin.folders import open_kit
from hush.deploy.dashboard.event_trail import Event, EventTrail
from hush.deploy.shared import presence
from hush.privacy.ledger.statement import describe
from hush.types import HushError

REACHED = 60.0  # seconds without a contact after which a member that waits for messages is not connected
_LOOK = 1.0  # seconds between two looks at what is not a log
_EVENTS, _SENT, _RUNS, _CURVE = 200, 500, 50, 4000
_PENDING = "pending"
_DECLARED = ("samples", "epsilon", "delta", "relation", "unit", "factor", "group")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What left this machine once.

    Attributes:
        at: When, as the log has it.
        run: The run.
        round: The round; 0 before the first.
        what: The kind of message.
        contents: What was in it, in words.
        size: Its bytes, where that is known.
        seconds: How long it was worked on, where that is known.
        spent: Epsilon spent by all runs afterwards, where the message has cost something.
    """

    at: str
    run: str
    round: int
    what: str
    contents: str
    size: int | None = None
    seconds: float | None = None
    spent: float | None = None


@dataclass(kw_only=True)
class MemberRun:
    """A run in which the member takes or took part.

    Attributes:
        name: The run.
        recipe: Its recipe.
        rounds: The rounds that it is planned for; 0 if that is not known.
        round: The latest round that was answered.
        answers: Updates that were sent.
        purpose: The coordinator's description.
        state: What became of it.
        spent: Epsilon spent by all runs after its latest answer.
        at: When it was last heard of, as the log has it.
    """

    name: str
    recipe: str = ""
    rounds: int = 0
    round: int = 0
    answers: int = 0
    purpose: str = ""
    state: str = "proposed"
    spent: float | None = None
    at: str = ""


@dataclass(frozen=True)
class Waiting:
    """A proposal that nobody has decided on: its first digits, its purpose, rounds and epsilon."""

    name: str
    purpose: str
    rounds: int
    epsilon: float


class MemberState:
    """A member's kit, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.kit = open_kit(path)
        self.process: Mapping[str, Any] = {}
        self.ledger: Mapping[str, Any] = {}
        self.waiting: tuple[Waiting, ...] = ()
        self.runs: dict[str, MemberRun] = {}
        self.sent: deque[Sent] = deque(maxlen=_SENT)
        self.events: deque[Event] = deque(maxlen=_EVENTS)
        self.refused: Counter[str] = Counter()
        self.updates, self.late, self.seconds, self.bytes = 0, 0, 0.0, 0
        self.levels: Counter[str] = Counter()
        self.curve = array("d")
        self._charged: dict[tuple[str, int], str] = {}
        self._trail = EventTrail(path / FILE)
        self._looked = 0.0
        self._ledger_file: object = None
        self._seen: object = None

    @property
    def up(self) -> bool:
        """Whether `hush federation join` is running."""
        return presence.alive(self.process)

    @property
    def connected(self) -> bool:
        """Whether it has reached the SuperLink lately, or is at work on an answer."""
        if not self.up:
            return False
        return bool(self.process.get("busy_since")) or time.time() - float(self.process.get("contact", 0.0)) < REACHED

    @property
    def run(self) -> MemberRun | None:
        """The run that was last heard of, of those that began."""
        begun = [run for run in self.runs.values() if run.state != "proposed"]
        return max(begun, key=lambda run: run.at, default=None)

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
        return news

    def read_ledger(self) -> None:
        """Read the ledger if it has changed; all that it contains is checked, so this takes a while."""
        stamp = tuple(_stamp(path) for path in (self.kit.ledger, self.kit.ledger.with_name("ledger.db-wal")))
        if stamp == self._ledger_file or not self.kit.ledger.exists():
            return
        try:
            self.ledger = describe(self.kit.ledger)
        except HushError as error:
            self.ledger = {"chain_ok": False, "fault": str(error)}
        self._ledger_file = stamp

    def _look(self) -> bool:
        """Look at what is not a log: the process, and proposals."""
        self.process = presence.read(self.kit.path)
        self.waiting = tuple(self._proposals())
        seen = (self.up, self.connected, bool(self.process.get("busy_since")), self.waiting)
        before, self._seen = self._seen, seen
        return before != seen

    def _proposals(self) -> list[Waiting]:
        """Return the proposals that wait for a decision, and note the purposes of the runs of others."""
        found = []
        for path in sorted((self.kit.path / "proposals").glob("*.json")):
            run = _text(path.with_suffix(".run"))
            decided = _text(path.with_suffix(".decision"))
            if decided and not (run in self.runs and not self.runs[run].purpose):
                continue
            raw = _object(path)
            purpose = str(raw.get("purpose", ""))
            if not decided:
                rounds, epsilon = int(raw.get("rounds", 0)), float(raw.get("epsilon", 0.0))
                found.append(Waiting(path.stem[:12], purpose, rounds, epsilon))
            elif run in self.runs:
                self.runs[run].purpose = purpose or "none given"
        return found

    def _run(self, event: Event) -> MemberRun:
        name = str(event.get("run", ""))
        run = self.runs.setdefault(name, MemberRun(name=name))
        run.at = str(event.get("time", ""))
        while len(self.runs) > _RUNS:
            self.runs.pop(next(iter(self.runs)))
        return run

    def _count(self, event: Event) -> None:
        """Take an event of the audit log into account."""
        self.levels[str(event.get("level", "info"))] += 1
        what, number = event["event"], _integer(event.get("round"))
        if event.get("level") != "debug" and event.get("code") != _PENDING:
            self.events.append(event)
        if not event.get("run"):
            return
        if what == "charged":
            costs = "; ".join(map(_cost, event.get("costs", ())))
            self._charged[str(event["run"]), number] = costs
        elif what in ("sent", "late", "resent"):
            self._sent(event, what, number)
        elif what == "refused" and event.get("code") != _PENDING:
            self.refused[str(event.get("code", "other"))] += 1
            self._note(event, "refusal", f"its code alone: {event.get('code', 'other')}", number)
        elif what == "approved":
            self._run(event).purpose = str(event.get("purpose", ""))
            self._note(event, "approval", "that the run is approved")
        elif what == "enrolled":
            self._run(event).recipe = str(event.get("recipe", ""))
            self._note(event, "declaration", _declared(event.get("declared", {})))
        elif what == "began":
            self._began(self._run(event))
            self._note(event, "agreement", "that it takes part in the whole run")
        elif what == "evicted":
            self._run(event).state = "evicted by the coordinator"
        elif what == "ended":
            self._run(event).state = f"ended after {_integer(event.get('rounds'))} rounds"

    def _began(self, run: MemberRun) -> None:
        run.state = "under way"
        config = _object(self.kit.path / "runs" / f"{Path(run.name).name}.json").get("config", {})
        run.rounds = _integer(config.get("rounds"))

    def _sent(self, event: Event, what: str, number: int) -> None:
        run = self._run(event)
        costs = self._charged.pop((run.name, number), "")
        spent = event.get("spent")
        if what == "resent":
            self._note(event, "update again", "the same bytes as before", number)
            return
        run.spent = None if spent is None else float(spent)
        kind = "update" if number else "noised declaration"
        if number:
            self.updates, self.late = self.updates + (what == "sent"), self.late + (what == "late")
            run.round, run.answers = number, run.answers + 1
        size = _integer(event.get("bytes"))
        self.seconds, self.bytes = float(event.get("seconds", 0.0)), self.bytes + size
        if spent is not None:
            self.curve.append(float(spent))
            if len(self.curve) > _CURVE:
                del self.curve[0]
        late = ", too late for the round" if what == "late" else ""
        self.sent.append(Sent(
            at=str(event.get("time", "")), run=run.name, round=number, what=f"{kind}{late}", contents=costs,
            size=size or None, seconds=self.seconds, spent=run.spent,
        ))  # fmt: skip

    def _note(self, event: Event, what: str, contents: str, number: int = 0) -> None:
        at, run = str(event.get("time", "")), str(event.get("run", ""))
        self.sent.append(Sent(at=at, run=run, round=number, what=what, contents=contents))


def _cost(cost: Mapping[str, Any]) -> str:
    """Return a charge in words."""
    rate = cost.get("rate") or 0.0
    sampled = f"; {_integer(cost.get('steps'))} steps with {100 * rate:.3g} % of the rows each" if rate else ""
    return f"{cost.get('what')}: noise multiplier {cost.get('noise', 0.0):.4g}{sampled}"


def _declared(fact: Mapping[str, Any]) -> str:
    """Return a declaration in words; a number that was noised is marked."""
    noised = fact.get("noised") or {}
    said = "; ".join(f"{key} {fact[key]}" for key in _DECLARED if fact.get(key) is not None)
    return f"{said}; noised: {', '.join(noised)}" if noised else said


def _integer(value: Any) -> int:
    """Return a whole number from a log; 0 where there is none."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def latest(sent: Sequence[Sent], most: int) -> list[Sent]:
    """Return the latest entries, the newest first."""
    return list(sent)[: -most - 1 : -1]
