"""Parts that the pages of a coordinator and of a member have in common: verdicts, times, and tables of events."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hush.pages.document import Cell, Tone, banner, table
from hush.pages.wording import safe

Problem = tuple[Tone, str]
_ORDER: tuple[Tone, ...] = ("bad", "warn", "plain", "good")
_HEADLINES: Mapping[Tone, str] = {"bad": "Not working", "warn": "Needs attention"}
_SHOWN, _CARDS = 25, 12
_ALONE = ("reason", "purpose", "path", "why")  # whose meaning is clear without their names
_HIDDEN = (
    "time", "level", "event", "run", "member", "round", "digest", "head", "serial", "proposal", "costs", "answered",
)  # fmt: skip


def verdict(problems: Sequence[Problem]) -> str:
    """Return a banner with everything that needs attention, the worst first."""
    found = sorted(problems, key=lambda each: _ORDER.index(each[0]))
    worst = found[0][0] if found else "good"
    tone: Tone = worst if worst in _HEADLINES else "good"
    return banner(tone, _HEADLINES.get(worst, "No problems"), [words for _, words in found])


def titled(title: str, content: str, words: str = "") -> str:
    """Return a section with a heading; `content` is HTML."""
    said = f'<p class="soft">{safe(words)}</p>' if words else ""
    return f"<h2>{safe(title)}</h2>{said}{content}"


def table_or_cards(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]], name: str) -> str:
    """Return a table, and if they are few a card for each of its rows, which a narrow screen shows instead."""
    if len(rows) > _CARDS:
        return table(heads, rows, name)
    cards = []
    for row in rows:
        listed = "".join(
            f'<dt>{safe(head)}</dt><dd class="{safe(style)}">{safe(shown)}</dd>'
            for (head, _), (_, shown, style) in list(zip(heads, row, strict=True))[1:]
        )
        cards.append(f'<section class="panel"><h3>{safe(row[0][1])}</h3><dl class="facts">{listed}</dl></section>')
    return f'<div class="beside-cards">{table(heads, rows, name)}</div><div class="cards">{"".join(cards)}</div>'


def clock(at: object) -> str:
    """Return when something was, in local time: of today the hour, else the day as well."""
    try:
        seconds = at if isinstance(at, int | float) else datetime.datetime.fromisoformat(str(at)).timestamp()
        local = time.localtime(float(seconds))
    except (ValueError, OverflowError, OSError):
        return str(at)
    today = time.strftime("%Y-%m-%d", local) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", local)


def day(at: datetime.datetime) -> str:
    """Return a date."""
    return at.strftime("%Y-%m-%d")


def event_table(title: str, events: Sequence[Mapping[str, Any]], nothing: str, *, of_member: bool) -> str:
    """Return the latest events of a log, the newest first."""
    heads = [("time", "text"), ("level", "text aside"), ("event", "text"), ("run", "text aside"), ("round", "aside")]
    heads += [("member", "text")] if of_member else []
    heads.append(("details", "text wrap"))
    rows: list[list[Cell]] = []
    for event in list(events)[: -_SHOWN - 1 : -1]:
        level, run = str(event.get("level", "info")), str(event.get("run", ""))[:8]
        tone = {"warning": " tone warn", "error": " tone bad"}.get(level, "")
        number, details = event.get("round", ""), _details(event)
        row: list[Cell] = [
            (event.get("time", ""), clock(event.get("time", "")), "text"), (level, level, f"text aside{tone}"),
            (event["event"], str(event["event"]), "text"), (run, run, "text aside"), (number, str(number), "aside"),
        ]  # fmt: skip
        name = str(event.get("member", ""))
        row += [(name, name, "text")] if of_member else []
        rows.append([*row, (details, details, "text wrap")])
    if not rows:
        return titled(title, f'<p class="soft">{safe(nothing)}</p>')
    return titled(title, table(heads, rows, title), f"The latest {_SHOWN} at most; the file has all.")


def _details(event: Mapping[str, Any]) -> str:
    """Return what else an event says, in short."""
    found = ((key, _plain(value)) for key, value in event.items() if key not in _HIDDEN and value not in ({}, [], ""))
    return "; ".join(words if key in _ALONE else f"{key} {words}" for key, words in found)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items() if each not in (None, {}, [], ""))
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:300]
