"""The page of a member: its own spending, and the log of what it sent. It is for nobody else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from hush.deploy.dashboard.member_metrics import member_metrics
from hush.deploy.dashboard.member_state import MemberState, latest
from hush.deploy.dashboard.parts import Problem, clock, event_table, titled, verdict
from hush.live.source import Fragment
from hush.live.words import duration, meter
from hush.pages.chart import Axis, Chart, Rule, Series
from hush.pages.document import Cell, panel, table, tiles
from hush.pages.wording import NONE, figure, safe

_SHOWN = 25


class MemberPage:
    """Shows a member's kit. It is read-only: approving and declining are commands."""

    kind = "member"
    parts = ("state", "tiles", "spending", "sent", "runs", "events")

    def __init__(self, path: Path) -> None:
        self.state = MemberState(path)

    @property
    def title(self) -> str:
        """The member's name."""
        return f"Member {self.state.kit.member}"

    def refresh(self) -> bool:
        """Read what is new."""
        return self.state.refresh()

    def stoppable(self) -> bool:
        """Nothing can be stopped from here."""
        return False

    def stop(self) -> str:
        """Refuse to stop anything."""
        return "This page is read-only."

    def health(self) -> tuple[bool, str]:
        """Whether the process runs and reaches the SuperLink."""
        if not self.state.up:
            return False, "hush federation join is not running"
        return (True, "ok") if self.state.connected else (False, "the SuperLink cannot be reached")

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of the member."""
        self.state.read_ledger()
        return member_metrics(self.state, accept)

    def fragments(self) -> Iterator[Fragment]:
        """Yield all parts; what needs the ledger comes last."""
        state = self.state
        yield "state", self._verdict()
        if not state.ledger:
            state.read_ledger()
        yield "tiles", self._tiles()
        yield "sent", self._sent()
        yield "runs", self._runs()
        yield "events", event_table("Log", list(state.events), "No event yet.", of_member=False)
        state.read_ledger()
        yield "state", self._verdict()
        yield "tiles", self._tiles()
        yield "spending", panel(self._spending())

    def _verdict(self) -> str:
        state, found = self.state, list[Problem]()
        if not state.up:
            last = f"; its last sign of life was at {clock(state.process['time'])}" if state.process else ""
            found.append(("bad", f"hush federation join is not running: this member takes part in nothing{last}."))
        elif not state.connected:
            found.append(("bad", f"The SuperLink at {state.kit.address} cannot be reached."))
        if state.ledger and not state.ledger["chain_ok"]:
            found.append(("bad", f"The ledger cannot be used: {state.ledger['fault']}"))
        for each in state.waiting:
            asks = f"A run waits for a decision: {each.rounds} rounds, epsilon {figure(each.epsilon)} in all."
            why = f" Its purpose, as the coordinator says: {each.purpose}" if each.purpose else ""
            how = f" See hush federation preview {state.kit.path}, then approve or decline {each.name}."
            found.append(("warn", f"{asks}{how}{why}"))
        if state.ledger.get("chain_ok") and state.ledger.get("left") is not None:
            budget = float(state.ledger["policy"]["epsilon"] or math.inf)
            if state.ledger["left"] < 0.01 * budget:
                found.append(("plain", "The budget of all runs is spent: these rows are not used again."))
        run = state.run
        words = ""
        if run is not None:
            doing = f"round {run.round} of {run.rounds}, {run.state}" if run.rounds else run.state
            words = f'<p class="soft">Run {safe(run.name[:8])}: {safe(doing)}</p>{meter(run.round, run.rounds)}'
        return f"{verdict(found)}{words}"

    def _tiles(self) -> str:
        state, ledger = self.state, self.state.ledger
        if not state.up:
            doing = ("Process", "not running", state.kit.address)
        elif state.process.get("busy_since"):
            doing = ("Process", "at work", f"since {clock(state.process['busy_since'])}")
        else:
            doing = ("Process", "online" if state.connected else "not connected", state.kit.address)
        if not ledger.get("chain_ok"):
            return tiles([doing, ("Epsilon spent", NONE, "no ledger yet" if not ledger else "see above")])
        policy, fixed = ledger["policy"], ""
        if (ledger["spent"] or 0.0) < 0.999 * (ledger["filtered"] or 0.0):
            fixed = f"; {figure(ledger['spent'])} by fixed composition"
        return tiles([
            doing,
            ("Epsilon spent", figure(ledger["filtered"]), f"of {figure(policy['epsilon'])} for all runs{fixed}"),
            ("Epsilon left", figure(ledger["left"]), f"delta {figure(policy['delta'])}, {policy['relation']}"),
            ("Updates sent", str(state.updates), f"{state.bytes / 2**20:.2f} MiB in all"),
            ("Latest answer", duration(state.seconds) if state.updates else NONE, "time of work on it"),
        ])  # fmt: skip

    def _spending(self) -> Chart:
        title = "Privacy spent by answer"
        curve, ledger = self.state.curve, self.state.ledger
        if not curve:
            return Chart(key="spending", title=title, words="Nothing has been sent that costs anything.", wide=True)
        budget = (ledger.get("policy") or {}).get("epsilon")
        rules = [Rule(float(budget), "budget")] if budget else []
        return Chart(
            key="spending", title=title, wide=True, rules=rules,
            words=(
                "Epsilon of all runs together after each answer, as the ledger admits them: the first run counts round "
                "by round, a later one may count in whole from its beginning. Dashed: the budget."
            ),
            meaning=f"Epsilon {figure(curve[-1])} is spent after {len(curve)} answers.",
            x=Axis(title="answer", scale="round"), y=Axis(title="epsilon", from_zero=True),
            series=[Series(name="epsilon spent", x=list(range(1, len(curve) + 1)), y=list(curve))],
        )  # fmt: skip

    def _sent(self) -> str:
        heads = (
            ("time", "text"), ("run", "text aside"), ("what", "text"), ("epsilon spent", ""), ("size", "aside"),
            ("work", "aside"), ("contents", "text wrap"),
        )  # fmt: skip
        rows: list[list[Cell]] = []
        for each in latest(self.state.sent, _SHOWN):
            size = NONE if each.size is None else f"{each.size / 1024:.1f} KiB"
            what = f"{each.what}, round {each.round}" if each.round else each.what
            rows.append([
                (each.at, clock(each.at), "text"), (each.run, each.run[:8], "text aside"), (what, what, "text"),
                (each.spent, figure(each.spent), ""), (each.size, size, "aside"),
                (each.seconds, NONE if each.seconds is None else duration(each.seconds), "aside"),
                (each.contents, each.contents or NONE, "text wrap"),
            ])  # fmt: skip
        if not rows:
            return titled("What was sent", '<p class="soft">Nothing has left this machine.</p>')
        words = f"Every message with content that left this machine; the latest {_SHOWN} at most."
        return titled("What was sent", table(heads, rows, "What was sent"), words)

    def _runs(self) -> str:
        heads = (
            ("run", "text"), ("recipe", "text aside"), ("purpose", "text wrap"), ("state", "text"), ("round", ""),
            ("epsilon spent after it", "aside"),
        )  # fmt: skip
        rows: list[list[Cell]] = []
        for run in reversed(self.state.runs.values()):
            rounds = f"{run.round} of {run.rounds}" if run.rounds else NONE
            rows.append([
                (run.name, run.name[:8], "text"), (run.recipe, run.recipe or NONE, "text aside"),
                (run.purpose, run.purpose or NONE, "text wrap"), (run.state, run.state, "text"),
                (run.round, rounds, ""), (run.spent, figure(run.spent), "aside"),
            ])  # fmt: skip
        if not rows:
            return titled("Runs", '<p class="soft">No run has asked for anything yet.</p>')
        return titled("Runs", table(heads, rows, "Runs"))
