"""Progress of runs: a bar in a terminal or a notebook, and none elsewhere."""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from hush.callbacks import Callback
from hush.objective.metrics import metric_named, shown
from hush.pages.chart import COLOURS, Axis, Chart, Series, finite, numbered
from hush.pages.svg import standalone
from hush.terminal import error_console
from hush.text import printable
from hush.types import RoundRecord

_EVERY = 0.1  # seconds between two updates of a notebook's bar


class Bar(Protocol):
    """A live bar, in rounds; a context manager."""

    def __enter__(self) -> Bar: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def advance(self, completed: int | None, words: str) -> None:
        """Set the number of finished rounds, or add one where none is given."""
        ...

    def show(self, label: str, record: RoundRecord) -> None:
        """Take note of a round's score, for a chart."""
        ...


class NoBar:
    """No bar."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def advance(self, completed: int | None, words: str) -> None:
        """Show nothing."""

    def show(self, label: str, record: RoundRecord) -> None:
        """Show nothing."""


class TerminalBar:
    """A bar on a terminal's standard error."""

    def __init__(self, total: int, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = RichProgress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("preparing", total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, completed: int | None, words: str) -> None:
        """Advance the bar."""
        if completed is None:
            self._progress.update(self._task, advance=1, description=printable(words))
        else:
            self._progress.update(self._task, completed=completed, description=printable(words))

    def show(self, label: str, record: RoundRecord) -> None:
        """A terminal has no chart."""


class NotebookBar:
    """A bar and a small chart in a notebook's output, through the display that IPython has; no widgets are needed."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._words = total, 0, "preparing"
        self._first = 0
        self._began = self._shown = time.monotonic()
        self._handle: Any = None
        self._curves: dict[str, dict[int, list[float]]] = {}
        self._metric = metric_named("accuracy")

    def __enter__(self) -> Bar:
        from IPython.display import display  # in a notebook it is there

        self._handle = display(self, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.update(self)

    def advance(self, completed: int | None, words: str) -> None:
        """Advance the bar."""
        before, self._done = self._done, self._done + 1 if completed is None else completed
        if before == 0:
            # A resumed run begins where it was: what was done before says nothing about the time left.
            self._first = self._done - 1
        self._words = words
        now = time.monotonic()
        if now - self._shown >= _EVERY:
            self._shown = now
            self._handle.update(self)

    def show(self, label: str, record: RoundRecord) -> None:
        """Add the mean score over clients to the curve of this label; several seeds are averaged."""
        self._metric = metric_named(record.primary)
        if scores := finite(record.scores):
            self._curves.setdefault(label, {}).setdefault(record.round, []).append(sum(scores) / len(scores))

    def __repr__(self) -> str:
        return f"{printable(self._words)}, {self._done} of {self._total} rounds{self._left()}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{self._total}" style="width:20em"></progress>'
        return f"<div>{bar} {html.escape(repr(self))}</div>{self._chart()}"

    def _chart(self) -> str:
        """Return the drawing of the score by round, once there are two rounds, and which colour is which."""
        if max(map(len, self._curves.values()), default=0) < 2:
            return ""
        chosen = list(self._curves.items())[:COLOURS]
        parts = [
            Series(
                name=label, x=[float(number) for number in sorted(curve)], colour=numbered(place),
                y=[sum(curve[number]) / len(curve[number]) for number in sorted(curve)],
            )
            for place, (label, curve) in enumerate(chosen)
        ]  # fmt: skip
        chart = Chart(
            key="score", title=f"{self._metric.label} by round", words="Mean over clients.", series=parts, height=200,
            x=Axis(title="round", scale="round"), y=Axis(title=self._metric.label, percent=self._metric.percent),
        )  # fmt: skip
        keys = "".join(
            f'<tspan class="{part.colour} key-text" x="54" dy="14">{html.escape(printable(part.name))}</tspan>'
            for part in parts
        )
        drawn = standalone(chart, 460)
        if len(parts) > 1:
            drawn = drawn.replace("</svg>", f'<text y="6">{keys}</text></svg>')
        return f'<div style="max-width:460px">{drawn}</div>'

    def _left(self) -> str:
        done = self._done - self._first
        if done < 1 or self._done >= self._total:
            return ""
        seconds = math.ceil((time.monotonic() - self._began) / done * (self._total - self._done))
        return f", {seconds // 60}:{seconds % 60:02} left"


class RunProgress(Callback):
    """Advances a bar by the rounds of one run."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def on_round_end(self, record: RoundRecord) -> None:
        """Advance to this round."""
        self._bar.show("mean", record)
        self._bar.advance(record.round, round_words(record))


@contextmanager
def task_progress(words: str, unit: str, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar with the time left for a task whose length is known once it runs, where a person can see it.

    Yields a function of what is done, of how much, and optionally of other words.
    """
    console = error_console()
    if show is False or not (console.is_terminal or show):
        yield lambda done, of, words=words: None
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(words, total=None)

        def update(done: int, of: int, words: str = words) -> None:
            progress.update(task, completed=done, total=of, description=printable(words))

        yield update


def progress_bar(total: int, show: bool | None = None) -> Bar:
    """Return a bar for so many rounds: by default one where a person can see it, with True always, with False none."""
    if show is False:
        return NoBar()
    if in_notebook():
        return NotebookBar(total)
    console = error_console()
    return TerminalBar(total, console) if console.is_terminal or show else NoBar()


def in_notebook() -> bool:
    """Return whether output goes to a notebook: the shell of a notebook has a kernel, that of a terminal has none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def round_words(record: RoundRecord, label: str = "training") -> str:
    """Return how a round went, in words."""
    metric, scores = metric_named(record.primary), record.scores
    return f"{label}: {metric.label} {shown(metric, sum(scores) / len(scores))}"
