"""The live overview page of several runs: of a comparison, a sweep, a reproduction, or a federation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from hush.live.follow import MANIFEST, FollowedRun
from hush.live.source import Fragment
from hush.live.words import duration, meter
from hush.pages.chart import COLOURS, Axis, Chart, Series, numbered
from hush.pages.document import panel, table, tiles
from hush.pages.wording import capital, count, safe
from hush.stop_request import request_stop, stop_requested

_DEEP = 3  # levels below the directory at which runs are looked for
_HEADS = (("run", "text"), ("seed", ""), ("round", ""), ("score", ""), ("progress", "text"))


class OverviewSource:
    """Shows all runs below a directory."""

    kind = "live overview"
    parts = ("state", "tiles", "scores", "runs")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[Path, FollowedRun] = {}
        self._stopping = False

    @property
    def title(self) -> str:
        """The directory's name."""
        return self.path.resolve().name or str(self.path)

    def refresh(self) -> bool:
        """Find new runs, and read what is new of all of them."""
        before = (len(self.runs), self._stopping)
        for path in found_runs(self.path):
            self.runs.setdefault(path, FollowedRun(path))
        self._stopping = stop_requested(self.path)
        news = [run.refresh() for run in self.runs.values() if not run.finished]
        return any(news) or before != (len(self.runs), self._stopping)

    def stoppable(self) -> bool:
        """Whether a run goes on."""
        return any(run.started and not run.finished for run in self.runs.values())

    def stop(self) -> str:
        """Ask all runs to stop after their current round."""
        request_stop(self.path)
        for run in self.runs.values():
            # Runs that are not part of one comparison look in their own directories.
            if not run.finished and run.federation:
                request_stop(run.path)
        return "All runs stop after their current round; the same command with --resume goes on."

    def fragments(self) -> Iterator[Fragment]:
        """Yield all parts."""
        runs = [run for run in self.runs.values() if run.started]
        if not runs:
            yield "state", f'<p class="soft">Waiting for runs in {safe(self.path)}.</p>'
            return
        done, planned = sum(run.rounds for run in runs), sum(run.planned for run in runs)
        finished = sum(run.finished for run in runs)
        words = "Finished." if finished == len(runs) else "Running."
        if self._stopping:
            words = "Stops after the current round of each run; resume with --resume."
        yield "state", f'{meter(done, planned)}<p class="soft">{words}</p>'
        yield "tiles", tiles([
            ("Runs finished", f"{finished} of {len(runs)}", ""), ("Rounds", f"{done} of {planned}", "of all runs"),
            ("Time left", duration(self._seconds_left(runs)), "while runs train side by side"),
        ])  # fmt: skip
        yield "scores", panel(self._scores(runs))
        yield "runs", f"<h2>Runs</h2>{table(_HEADS, [self._row(run) for run in runs], 'Runs')}"

    def _seconds_left(self, runs: list[FollowedRun]) -> float:
        # A run's seconds are its own: where runs train side by side, those of all of them add up.
        known = [run.seconds_left() for run in runs if math.isfinite(run.seconds_left())]
        return sum(known) if known else math.nan

    def _row(self, run: FollowedRun) -> list[tuple[object, str, str]]:
        score = run.columns["mean"][-1] if run.rounds else math.nan
        state = "finished" if run.finished else f"{100 * run.rounds / max(run.planned, 1):.0f} %"
        name = self._name(run)
        return [
            (name, name, "text"), (run.manifest["seed"], str(run.manifest["seed"]), ""),
            (run.rounds, f"{run.rounds} of {run.planned}", ""), (score, run.metric.shown(score), ""),
            (run.rounds / max(run.planned, 1), state, "text"),
        ]  # fmt: skip

    def _name(self, run: FollowedRun) -> str:
        """Return what a run is called: its directory, without that of the seed."""
        inside = run.path.relative_to(self.path)
        parts = inside.parts[:-1] if inside.name.startswith("seed-") else inside.parts
        return "/".join(parts) or str(run.manifest["recipe"])

    def _scores(self, runs: list[FollowedRun]) -> Chart:
        """Return the chart of the score by round, for each name the mean over its seeds."""
        metric = runs[0].metric
        found: dict[str, dict[int, list[float]]] = {}
        for run in runs:
            curve = found.setdefault(self._name(run), {})
            for number, mean in zip(run.columns["round"], run.columns["mean"], strict=True):
                if math.isfinite(mean):
                    curve.setdefault(int(number), []).append(mean)
        sign = 1.0 if metric.higher_is_better else -1.0
        names = sorted(
            (name for name in found if found[name]), key=lambda name: sign * _last(found[name]), reverse=True
        )
        title = f"{capital(metric.label)} by round"
        if not names:
            return Chart(key="scores", title=title, words="The first round has not ended yet.", wide=True)
        shown = names[:COLOURS]
        parts = [_line(name, found[name], number) for number, name in enumerate(sorted(shown))]
        more = f" The best {len(shown)} of {count(len(names), 'run')} so far." if len(shown) < len(names) else ""
        return Chart(
            key="scores", title=title, words=f"Mean over clients and seeds; band: lowest to highest seed.{more}",
            meaning=f"{names[0]} is best so far with {metric.shown(_last(found[names[0]]))}.",
            x=Axis(title="round", scale="round"), y=Axis(title=metric.label, percent=metric.percent), series=parts,
            legend=True, height=380, wide=True,
        )  # fmt: skip


def found_runs(root: Path) -> list[Path]:
    """Return the run directories below a directory."""
    found: list[Path] = []
    for depth in range(1, _DEEP + 1):
        found += [path.parent for path in root.glob("/".join(["*"] * depth) + f"/{MANIFEST}")]
    return sorted(found)


def _last(curve: Mapping[int, list[float]]) -> float:
    return statistics.fmean(curve[max(curve)])


def _line(name: str, curve: Mapping[int, list[float]], number: int) -> Series:
    rounds = sorted(curve)
    several = any(len(values) > 1 for values in curve.values())
    return Series(
        name=name, x=[float(each) for each in rounds], y=[statistics.fmean(curve[each]) for each in rounds],
        low=[min(curve[each]) for each in rounds] if several else [],
        high=[max(curve[each]) for each in rounds] if several else [], colour=numbered(number),
    )  # fmt: skip
