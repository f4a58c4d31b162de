"""The page of a federation at its coordinator: members, rounds, refusals, budgets, certificates, and the log."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from hush.deploy.dashboard.federation_metrics import federation_metrics
from hush.deploy.dashboard.federation_state import Certificate, FederationState, Member, RunEvents, typical
from hush.deploy.dashboard.parts import Problem, clock, day, event_table, table_or_cards, titled, verdict
from hush.live.follow import FollowedRun
from hush.live.run_page import RunSource
from hush.live.source import Fragment
from hush.live.words import duration, meter
from hush.pages.chart import COLOURS, Axis, Chart, Series, numbered
from hush.pages.document import Cell, Tone, panel, table, tiles
from hush.pages.wording import NONE, capital, count, figure, safe

EXPIRES = 30.0  # days before the end of a certificate from which on the page says so
_SLOW, _LEAST = 10.0, 60.0  # a run is silent after so many usual rounds, and at least so many seconds
_SHOWN = 25
_OF_RUN = ("score", "weights", "noise", "evaluation", "privacy")
_HEADS = (
    ("member", "text"), ("state", "text"), ("latest answer", ""), ("median", ""), ("mean weight", ""),
    ("budget left", ""), ("refused or absent", ""), ("latest reason", "text wrap"),
)  # fmt: skip


class FederationPage:
    """Shows a coordinator's folder. It is read-only, and names nothing that members have not sent the coordinator."""

    kind = "federation"
    parts = ("state", "tiles", "members", "times", *_OF_RUN, "refusals", "runs", "certificates", "events")

    def __init__(self, path: Path) -> None:
        self.state = FederationState(path)
        self._run: RunSource | None = None
        self._left: dict[str, tuple[float, float]] = {}

    @property
    def title(self) -> str:
        """The name of the federation."""
        return f"Federation {self.state.place.settings.name}"

    def refresh(self) -> bool:
        """Read what is new."""
        news = self.state.refresh()
        run = self.state.run
        if run is not None and (self._run is None or self._run.run.path != run.path):
            self._run, self._left, news = RunSource(run.path, run), {}, True
        return (self._run is not None and self._run.refresh()) or news

    def stoppable(self) -> bool:
        """Nothing can be stopped from here."""
        return False

    def stop(self) -> str:
        """Refuse to stop anything."""
        return "This page is read-only."

    def health(self) -> tuple[bool, str]:
        """Whether the server runs and has a valid certificate."""
        if not self.state.up:
            return False, "hush federation serve is not running"
        if any(each.name == "server" and each.days < 0 for each in self.state.certificates):
            return False, "the server's certificate has expired"
        return True, "ok"

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of the federation."""
        return federation_metrics(self.state, accept)

    def fragments(self) -> Iterator[Fragment]:
        """Yield all parts; what the accountant computes comes last."""
        state, run = self.state, self.state.run
        yield "state", self._verdict(run)
        yield "tiles", self._tiles(run)
        yield "members", self._members(run)
        yield "times", "" if run is None else panel(_times(run, state.events_of(run)))
        yield "refusals", self._refusals()
        yield "runs", self._runs()
        yield "certificates", _certificates(state.certificates)
        events = [event for event in state.events if event["event"] != "proposal"]
        yield "events", event_table("Log", events, "No event yet.", of_member=True)
        if run is not None and self._run is not None:
            self._left = state.left(run)
            yield "members", self._members(run)
            for name, html in self._run.fragments():
                if name in _OF_RUN:
                    yield name, html

    def _verdict(self, run: FollowedRun | None) -> str:
        state, found = self.state, list[Problem]()
        if not state.up:
            last = f"; its last sign of life was at {clock(state.serving['time'])}" if state.serving else ""
            found.append(("bad", f"hush federation serve is not running: no member can connect{last}."))
        found += [("bad", fault) for fault in state.faults]
        for each in state.certificates:
            if each.days < 0:
                found.append(("bad", f"The certificate of the {each.name} expired on {day(each.ends)}."))
            elif each.days < EXPIRES:
                left = count(math.floor(each.days), "day")
                found.append(("warn", f"The certificate of the {each.name} expires in {left}: hush federation renew."))
        active = run is not None and not run.finished
        offline = sorted(name for name, each in state.members.items() if each.listed and not each.online)
        if state.up and offline:
            found.append(("warn" if active or state.preparing else "plain", f"Offline: {', '.join(offline)}."))
        if state.failed is not None:
            found.append(("bad", f"Run {state.failed[0]} stopped with an error: {state.failed[1]}"))
        if state.preparing is not None:
            found += _participation_problems(state.preparing[1])
        elif run is not None:
            found += self._of_run(run, state.events_of(run))
        words = "" if run is None else self._progress(run)
        return f"{verdict(found)}{words}"

    def _of_run(self, run: FollowedRun, events: RunEvents) -> Iterator[Problem]:
        """Yield what is wrong with a run."""
        tone: Tone = "plain" if run.finished else "warn"
        for name, reason in sorted(events.left_out.items()):
            yield tone, f"{name} does not take part in {run.path.name}: {reason}."
        for name, reason in sorted(events.refused.items()):
            yield tone, f"{name} gave no update in round {events.round} of {run.path.name}: {reason}."
        usual = run.seconds_left() / max(run.planned - run.rounds, 1)
        silent = run.silent()
        if run.rounds and silent > max(_LEAST, _SLOW * usual):
            yield "warn", f"No round of {run.path.name} for {duration(silent)}; if it has stopped, use --resume."

    def _progress(self, run: FollowedRun) -> str:
        more = "" if run.rounds == run.planned else f": {run.ended}"
        words = f"finished after round {run.rounds}{more}" if run.finished else f"round {run.rounds} of {run.planned}"
        return f'<p class="soft">Run {safe(run.path.name)}: {safe(words)}</p>{meter(run.rounds, run.planned)}'

    def _tiles(self, run: FollowedRun | None) -> str:
        state = self.state
        listed = [each for each in state.members.values() if each.listed]
        online = sum(each.online for each in listed)
        rows = [("Members online", f"{online} of {len(listed)}", state.place.settings.address)]
        if run is not None:
            rows.append(("Round", f"{run.rounds} of {run.planned}", f"run {run.path.name}"))
            score = run.columns["mean"][-1] if run.rounds else math.nan
            rows.append((capital(run.metric.label), run.metric.shown(score), "on the public test set"))
            if not run.finished:
                rows.append(("Time left", duration(run.seconds_left()), "from the latest rounds"))
        slowest = max(listed, key=lambda each: each.seconds[-1] if each.seconds else -1.0, default=None)
        if slowest is not None and slowest.seconds:
            rows.append(("Slowest answer", duration(slowest.seconds[-1]), f"{slowest.name}, latest round"))
        soonest = min(state.certificates, key=lambda each: each.days, default=None)
        if soonest is not None:
            left = count(max(0, math.floor(soonest.days)), "day")
            rows.append(("Certificates", left, f"until that of the {soonest.name} expires"))
        return tiles(rows)

    def _members(self, run: FollowedRun | None) -> str:
        weights = {} if run is None else {run.name(c): weight for c, weight in run.mean_weights().items()}
        rows = [self._cells(each, weights) for _, each in sorted(self.state.members.items())]
        words = "Budget left of the latest run: what the member declared for it, less what its answers cost."
        return titled("Members", table_or_cards(_HEADS, rows, "Members"), words)

    def _cells(self, member: Member, weights: dict[str, float]) -> list[Cell]:
        shown, tone = _presence(member)
        latest = member.seconds[-1] if member.seconds else math.nan
        left, budget = self._left.get(member.name, (math.nan, math.nan))
        weight = weights.get(member.name, math.nan)
        return [
            (member.name, member.name, "text"), (shown, shown, f"text tone {tone}"),
            (latest, duration(latest) + (f", round {member.answered}" if member.answered else ""), ""),
            (typical(member.seconds), duration(typical(member.seconds)), ""), (weight, figure(weight, 3), ""),
            (left, f"{figure(left, 3)} of {figure(budget, 3)}" if math.isfinite(budget) else NONE, ""),
            (member.refusals, str(member.refusals), ""), (member.reason, member.reason or NONE, "text wrap"),
        ]  # fmt: skip

    def _refusals(self) -> str:
        heads = (("time", "text"), ("run", "text aside"), ("round", ""), ("member", "text"), ("reason", "text wrap"))
        rows: list[list[Cell]] = []
        for each in list(self.state.refusals)[: -_SHOWN - 1 : -1]:
            run = self.state.names.get(each.run, each.run[:8])
            number = str(each.round) if each.round else "enrolment"
            rows.append([(each.at, clock(each.at), "text"), (run, run, "text aside"), (each.round, number, ""),
                         (each.member, each.member, "text"), (each.reason, each.reason, "text wrap")])  # fmt: skip
        if not rows:
            return titled("Refused or absent", '<p class="soft">Every member has answered every round so far.</p>')
        return titled("Refused or absent", table(heads, rows, "Refused or absent"), f"The latest {_SHOWN} at most.")

    def _runs(self) -> str:
        heads = (
            ("run", "text"), ("recipe", "text aside"), ("state", "text"), ("round", ""), ("score", ""),
            ("members", "aside"),
        )  # fmt: skip
        rows: list[list[Cell]] = []
        for path, run in sorted(self.state.runs.items(), key=lambda each: each[1].read_at, reverse=True):
            if not run.started:
                continue
            state = "finished" if run.finished else "not finished"
            score = run.columns["mean"][-1] if run.rounds else math.nan
            recipe = str(run.manifest.get("recipe", ""))
            rows.append([
                (path.name, path.name, "text"), (recipe, recipe, "text aside"), (state, state, "text"),
                (run.rounds, f"{run.rounds} of {run.planned}", ""), (score, run.metric.shown(score), ""),
                (run.clients, str(run.clients), "aside"),
            ])  # fmt: skip
        if not rows:
            return titled("Runs", '<p class="soft">No run yet: hush federation run starts one.</p>')
        return titled("Runs", table(heads, rows, "Runs"))


def _participation_problems(events: RunEvents) -> Iterator[Problem]:
    """Yield who is to decide on a run, and who does not take part in it."""
    if events.waiting:
        yield "warn", f"A run waits for approval by {', '.join(events.waiting)}."
    for name, reason in sorted(events.left_out.items()):
        yield "warn", f"{name} does not take part in the run that is being prepared: {reason}."


def _presence(member: Member) -> tuple[str, str]:
    """Return whether a member is there, in words, and the tone of these words."""
    if not member.listed:
        return "revoked", "plain"
    if member.online:
        return "online", "good"
    since = "" if member.heard is None else f" since {clock(member.heard)}"
    return f"offline{since}", "bad"


def _times(run: FollowedRun | None, events: RunEvents) -> Chart:
    title = "Time to answer by round"
    if run is None or not events.seconds:
        return Chart(key="times", title=title, words="Known after the first round.")
    names = sorted(events.seconds, key=lambda name: events.seconds[name][1][-1], reverse=True)
    shown = names[:COLOURS]
    parts = [
        Series(name=name, x=events.seconds[name][0], y=events.seconds[name][1], colour=numbered(place))
        for place, name in enumerate(sorted(shown))
    ]
    more = f" The {len(shown)} slowest of {len(names)} members." if len(shown) < len(names) else ""
    slowest = names[0]
    return Chart(
        key="times", title=title, words=f"Seconds from sending a task to receiving the update.{more}", legend=True,
        meaning=f"{slowest} was slowest in the latest round, with {duration(events.seconds[slowest][1][-1])}.",
        x=Axis(title="round", scale="round"), y=Axis(title="seconds", from_zero=True), series=parts,
    )  # fmt: skip


def _certificates(found: tuple[Certificate, ...]) -> str:
    heads = (("certificate", "text"), ("valid until", "text"), ("days left", ""))
    rows: list[list[Cell]] = []
    for each in found:
        tone = "bad" if each.days < 0 else "warn" if each.days < EXPIRES else "good"
        left = "expired" if each.days < 0 else str(math.floor(each.days))
        rows.append([(each.name, each.name, "text"), (each.ends.isoformat(), day(each.ends), "text"),
                     (each.days, left, f"tone {tone}")])  # fmt: skip
    words = "Members have keys without an end; a key is blocked with hush federation revoke."
    return titled("Certificates", table(heads, rows, "Certificates"), words)
