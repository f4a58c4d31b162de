"""Progress bars in a terminal and in a notebook, and none elsewhere."""

from __future__ import annotations

import io
import sys
import types
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from rich.console import Console

from hush.progress import (
    Bar,
    NoBar,
    NotebookBar,
    RunProgress,
    TerminalBar,
    in_notebook,
    progress_bar,
    round_words,
    task_progress,
)
from hush.types import RoundRecord


def record(number: int, **more: Any) -> RoundRecord:
    plain: dict[str, Any] = {name: {} for name in ("weights", "noise_estimated", "noise_planned", "refused")}
    return RoundRecord(round=number, **{**plain, "accuracy_per_client": (0.5, 0.7), **more})


def test_words_are_of_the_primary_score() -> None:
    assert round_words(record(1)).startswith("training: accuracy 60.0")
    error = record(1, accuracy_per_client=(), score_per_client=(2.0, 4.0), primary="rmse")
    assert round_words(error, "weiavg, seed 1") == "weiavg, seed 1: RMSE 3"


def test_a_terminal_shows_rounds_and_words() -> None:
    out = io.StringIO()
    with TerminalBar(5, Console(file=out, force_terminal=True, width=100)) as bar:
        RunProgress(bar).on_round_end(record(3))
        bar.advance(None, "evil \x1b[2J")
    assert "training: accuracy 60.0" in out.getvalue() or "evil" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert "4/5" in out.getvalue()


def test_a_notebook_shows_rounds_words_and_time_left() -> None:
    bar = NotebookBar(10)
    assert repr(bar) == "preparing, 0 of 10 rounds"
    bar._handle = types.SimpleNamespace(update=lambda _: None)
    bar.advance(4, "<b>evil</b>")
    page = bar._repr_html_()
    assert '<progress value="4" max="10"' in page
    assert "&lt;b&gt;evil&lt;/b&gt;, 4 of 10 rounds, 0:0" in page
    bar.advance(10, "done")
    assert repr(bar) == "done, 10 of 10 rounds"


def test_there_is_a_bar_only_where_a_person_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_bar(3), NoBar), "tests have no terminal"
    assert isinstance(progress_bar(3, True), TerminalBar)
    assert isinstance(progress_bar(3, False), NoBar)
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()
    assert isinstance(progress_bar(3), NotebookBar)
    assert isinstance(progress_bar(3, False), NoBar)
    shell.kernel = None
    assert not in_notebook()


def test_no_bar_is_a_bar() -> None:
    with NoBar() as bar:
        shown: Bar = bar
        shown.advance(1, "words")


def test_a_notebook_draws_the_scores_of_all_labels() -> None:
    bar = NotebookBar(10)
    bar._handle = types.SimpleNamespace(update=lambda _: None)
    for number in (1, 2):
        bar.show("hush", record(number))
        assert ("<svg" in bar._repr_html_()) == (number == 2)
    for number in (1, 2):
        bar.show("<b>evil</b>", record(number, accuracy_per_client=(0.1 * number,)))
    page = bar._repr_html_()
    assert "&lt;b&gt;evil&lt;/b&gt;" in page and "<b>" not in page
    assert page.count('class="line"') == 2 and "<style>" in page
    ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_a_task_shows_what_is_left_where_a_person_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("hush.progress.error_console", lambda: Console(file=out, force_terminal=True, width=120))
    with task_progress("auditing", "training runs") as progress:
        progress(2, 8)
    assert "2/8" in out.getvalue() and "training runs" in out.getvalue() and "left" in out.getvalue()
    monkeypatch.setattr("hush.progress.error_console", lambda: Console(file=out, force_terminal=False))
    before = out.getvalue()
    with task_progress("auditing", "training runs") as progress:
        progress(3, 8)
    assert out.getvalue() == before


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.terminal import TextConsole

    monkeypatch.setenv("NO_COLOR", "1")
    assert TextConsole().no_color
