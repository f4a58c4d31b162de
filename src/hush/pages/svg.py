"""Draw a chart as SVG: scales, grid, marks and reference lines, with the classes of the style sheet.

Nothing here depends on a script. A chart is drawn at one width; a page holds a wide and a narrow drawing of each, of
which the style sheet shows the one that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from hush.pages.chart import Chart, Rule, Series
from hush.pages.ticks import Ticks, ticks
from hush.pages.wording import safe

_LETTER = 6.6  # the mean width of a letter in a tick
_MOST = 300  # buckets of a line: more points than pixels are not drawn
_GAP = 10.0


@dataclass(frozen=True)
class Box:
    """The plotting area of a drawing, in pixels."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Frame:
    """The plotting area and the scales of a drawing."""

    box: Box
    x: Ticks
    y: Ticks

    def px(self, x: float) -> float:
        """Return the pixel of a horizontal coordinate."""
        return self.box.left + self.x.place(x) * self.box.width

    def py(self, y: float) -> float:
        """Return the pixel of a vertical coordinate."""
        return self.box.top + (1 - self.y.place(y)) * self.box.height


def frame(chart: Chart, width: int) -> Frame:
    """Return the plotting area and scales of a chart at a width."""
    y = ticks(chart.y, _y_values(chart), _y_most(chart))
    bottom = 44.0
    label = max((_wide(text) for _, text in y.marks), default=0.0)
    left = min(max(40.0, label + 31), 0.45 * width)
    area = width - left - 12
    x_most = max(2, int(area // 62))
    if chart.x.scale == "category":
        longest = max((_wide(name) for name in chart.x.categories), default=1.0)
        x_most = max(1, int(area // min(longest + _GAP, 120)))
        if any(part.kind == "cells" for part in chart.series):
            x_most = max(x_most, 2)
    x = ticks(chart.x, [value for part in chart.series for value in part.x], x_most)
    return Frame(Box(left, 10.0, area, chart.height - 10 - bottom), x, y)


def svg(chart: Chart, width: int, style: str = "") -> str:
    """Return the drawing; its text alternative is the chart's title and meaning."""
    made = frame(chart, width)
    alternative = f"{chart.title}. {chart.meaning or chart.words}"
    body = [_grid(chart, made, width), *_marks(chart, made), *(_rule(made, rule) for rule in chart.rules)]
    return (
        f'<svg class="chart" viewBox="0 0 {width} {chart.height}" role="img" aria-label="{safe(alternative)}">'
        f"{style}{''.join(body)}</svg>"
    )


def standalone(chart: Chart, width: int) -> str:
    """Return a drawing that carries its own style, for output outside of a page."""
    return svg(chart, width, f"<style>{files('hush.pages').joinpath('chart.css').read_text(encoding='utf-8')}</style>")


def _y_values(chart: Chart) -> list[float]:
    found = [value for part in chart.series for value in (*part.y, *part.low, *part.high)]
    if any(part.kind == "bars" for part in chart.series) and chart.y.scale == "linear":
        found.append(0.0)
    return found + [rule.value for rule in chart.rules]


def _y_most(chart: Chart) -> int:
    return max(2, chart.height // (22 if chart.y.scale == "category" else 48))


def _wide(text: str) -> float:
    return _LETTER * len(text)


def _grid(chart: Chart, made: Frame, width: int) -> str:
    box = made.box
    bottom, right = box.top + box.height, box.left + box.width
    parts = []
    for value, text in made.y.marks:
        y = box.top + (1 - (value - made.y.low) / (made.y.high - made.y.low)) * box.height
        if chart.y.scale != "category":
            parts.append(f'<path class="grid" d="M{box.left:.1f} {y:.1f}H{right:.1f}"/>')
        room = int((box.left - 26) // _LETTER)
        parts.append(f'<text x="{box.left - 7:.1f}" y="{y + 4:.1f}" class="end">{safe(_short(text, room))}</text>')
    room = int(box.width / max(len(made.x.marks), 1) // _LETTER) if chart.x.scale == "category" else 99
    for value, text in made.x.marks:
        x = box.left + (value - made.x.low) / (made.x.high - made.x.low) * box.width
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17:.1f}" class="mid">{safe(_short(text, max(room, 3)))}</text>')
    parts.append(f'<path class="axis" d="M{box.left:.1f} {bottom:.1f}H{right:.1f}"/>')
    if chart.x.title:
        centre = box.left + box.width / 2
        parts.append(f'<text x="{centre:.1f}" y="{chart.height - 7}" class="mid title">{safe(chart.x.title)}</text>')
    if chart.y.title:
        middle = box.top + box.height / 2
        parts.append(
            f'<text transform="translate(12 {middle:.1f}) rotate(-90)" class="mid title">{safe(chart.y.title)}</text>'
        )
    return "".join(parts)


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"


def _marks(chart: Chart, made: Frame) -> Iterable[str]:
    bars = [part for part in chart.series if part.kind == "bars"]
    for number, part in enumerate(chart.series):
        match part.kind:
            case "line":
                drawn = _line(made, part)
            case "points":
                drawn = _points(made, part)
            case "bars":
                drawn = _bars(made, part, bars.index(part), len(bars))
            case "ticks":
                drawn = _strokes(made, part)
            case "cells":
                drawn = _cells(made, part)
            case "words":
                drawn = _words(made, part)
        yield f'<g class="series {part.colour}" data-series="{number}">{drawn}</g>'


def _line(made: Frame, part: Series) -> str:
    chosen = _thinned([i for i, (x, y) in enumerate(zip(part.x, part.y, strict=True)) if _drawn(made, x, y)], part.y)
    at = [(made.px(part.x[i]), made.py(part.y[i])) for i in chosen]
    band = ""
    if part.low and part.high:
        ends = [i for i in chosen if _drawn(made, part.x[i], part.low[i]) and _drawn(made, part.x[i], part.high[i])]
        edge = [(made.px(part.x[i]), made.py(part.high[i])) for i in ends]
        edge += [(made.px(part.x[i]), made.py(part.low[i])) for i in reversed(ends)]
        band = f'<path class="band" d="{_path(edge)}Z"/>' if edge else ""
    dash = ' class="line dash"' if part.dash else ' class="line"'
    dots = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in at) if len(at) <= 40 else ""
    return f'{band}<path{dash} d="{_path(at)}"/>{"" if part.dash else dots}' if at else band


def _thinned(indices: Sequence[int], values: Sequence[float]) -> list[int]:
    """Return at most two indices for each of some hundred buckets, those of the extremes, and both ends."""
    if len(indices) <= 2 * _MOST:
        return list(indices)
    size = math.ceil(len(indices) / _MOST)
    kept = {indices[0], indices[-1]}
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        kept |= {min(part, key=values.__getitem__), max(part, key=values.__getitem__)}
    return sorted(kept)


def _path(at: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) if at else ""


def _drawn(made: Frame, x: float, y: float) -> bool:
    return math.isfinite(x) and math.isfinite(y) and (not made.y.log or y > 0) and (not made.x.log or x > 0)


def _points(made: Frame, part: Series) -> str:
    found = []
    for i, (x, y) in enumerate(zip(part.x, part.y, strict=True)):
        if _drawn(made, x, y):
            px, py = made.px(x), made.py(y)
            found.append(_whisker(made, part, i, px) + _symbol(part.symbol, px, py))
    return "".join(found)


def _whisker(made: Frame, part: Series, i: int, px: float) -> str:
    if not part.low or not part.high:
        return ""
    low, high = part.low[i], part.high[i]
    if not (_drawn(made, part.x[i], low) and _drawn(made, part.x[i], high)) or low == high:
        return ""
    return f'<path class="whisker" d="M{px:.1f} {made.py(low):.1f}V{made.py(high):.1f}"/>'


def _symbol(number: int, x: float, y: float) -> str:
    """Return a shape: circle, square, diamond, triangle, or a hollow one of these."""
    style = "shape" if number % 8 < 4 else "shape hollow"
    shapes = (
        f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4.6"/>',
        f'<rect class="{style}" x="{x - 4.2:.1f}" y="{y - 4.2:.1f}" width="8.4" height="8.4"/>',
        f'<path class="{style}" d="M{x:.1f} {y - 5.8:.1f}l5.8 5.8l-5.8 5.8l-5.8 -5.8Z"/>',
        f'<path class="{style}" d="M{x:.1f} {y - 5.6:.1f}l5.4 9.6h-10.8Z"/>',
    )
    return shapes[number % 4]


def _bars(made: Frame, part: Series, place: int, of: int) -> str:
    box = made.box
    slot = box.width / max(made.x.high - made.x.low, 1)
    wide = max(1.0, slot * (0.72 if slot > 6 else 0.95)) / of
    wide = min(wide, 64.0)
    base = min(max(made.py(0.0 if not made.y.log else 10**made.y.low), box.top), box.top + box.height)
    found = []
    for i, (x, y) in enumerate(zip(part.x, part.y, strict=True)):
        if _drawn(made, x, y):
            left = made.px(x) - wide * of / 2 + wide * place
            top, high = min(made.py(y), base), abs(base - made.py(y))
            alert = ' class="bar alert"' if i in part.alerts else ' class="bar"'
            found.append(
                f'<rect{alert} x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{max(high, 0.5):.1f}" rx="1.5"/>'
                + _whisker(made, part, i, left + wide / 2)
            )
    return "".join(found)


def _strokes(made: Frame, part: Series) -> str:
    half = min(16.0, 0.36 * made.box.width / max(made.x.high - made.x.low, 1))
    return "".join(
        f'<path class="stroke" d="M{made.px(x) - half:.1f} {made.py(y):.1f}h{2 * half:.1f}"/>'
        for x, y in zip(part.x, part.y, strict=True)
        if _drawn(made, x, y)
    )


def _words(made: Frame, part: Series) -> str:
    """Return the labels, each beside its point: on the side where there is room."""
    middle, found = made.box.left + made.box.width / 2, []
    for x, y, text in zip(part.x, part.y, part.labels, strict=True):
        if not _drawn(made, x, y):
            continue
        px = made.px(x)
        style, shift = ("over", 6) if px <= middle else ("over end", -6)
        found.append(f'<text class="{style}" x="{px + shift:.1f}" y="{made.py(y) + 4:.1f}">{safe(text)}</text>')
    return "".join(found)


def _cells(made: Frame, part: Series) -> str:
    """Return coloured rectangles; with room for it, each has its value in it."""
    known = [value for value in part.values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    wide, tall = made.box.width / (made.x.high - made.x.low), made.box.height / (made.y.high - made.y.low)
    gap = 1.5 if min(wide, tall) > 8 else 0.0
    found = []
    for i, (x, y, value) in enumerate(zip(part.x, part.y, part.values, strict=True)):
        share = (value - low) / (high - low) if math.isfinite(value) and high > low else 1.0
        left, top = made.px(x) - wide / 2, made.py(y) - tall / 2
        tone = "cell" if math.isfinite(value) else "cell empty"
        found.append(
            f'<rect class="{tone}" style="--share:{100 * share:.0f}%" x="{left:.1f}" y="{top:.1f}" '
            f'width="{wide - gap:.1f}" height="{tall - gap:.1f}"/>'
        )
        text = part.labels[i] if part.labels else ""
        if text and len(text) * _LETTER < wide - 4 and tall > 16:
            dark = "on" if share > 0.5 else "off"
            found.append(
                f'<text class="mid {dark}" x="{left + wide / 2:.1f}" y="{top + tall / 2 + 4:.1f}">{safe(text)}</text>'
            )
    return "".join(found)


def _rule(made: Frame, rule: Rule) -> str:
    if not _drawn(made, made.box.left, rule.value):
        return ""
    y, left = made.py(rule.value), made.box.left + rule.start * made.box.width
    right = made.box.left + made.box.width
    words = f'<text class="end" x="{right:.1f}" y="{y - 5:.1f}">{safe(rule.words)}</text>' if rule.words else ""
    return f'<path class="rule" d="M{left:.1f} {y:.1f}H{right:.1f}"/>{words}'
