"""The accuracy figure of README and home page: curves by budget, as SVG with its own background in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 370
LEFT, RIGHT, TOP, BOTTOM = 58, 134, 58, 62
LINE, SAMPLE = 22, 30  # the height of a line of the legend, and the length of its sample

# Text and what lies behind it. The tests check that every pair stays readable.
COLOURS = {
    "light": {"page": "#ffffff", "text": "#1b1f24", "faint": "#59636e", "grid": "#dde3e9", "own": "#0b5cad",
              "other": "#6b7681", "reference": "#1b1f24"},
    "dark": {"page": "#0d1117", "text": "#e6edf3", "faint": "#a3adb8", "grid": "#2a323c", "own": "#8cc2ff",
             "other": "#939eaa", "reference": "#e6edf3"},
}  # fmt: skip
PAIRS = (("text", "page"), ("faint", "page"), ("own", "page"), ("other", "page"), ("reference", "page"))
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 4")  # the other recipes differ by dash and label, not by colour


@dataclass(frozen=True)
class Curve:
    """One line of the figure; `kind` is own, other or reference."""

    label: str
    kind: str
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()


def figure(curves: Sequence[Curve], budgets: Sequence[float]) -> str:
    """The figure: percent over the budget of the middle clients, on a logarithmic axis."""
    xs = [_x(budget, budgets) for budget in budgets]
    drawn = [*_axes(budgets, xs)]
    order = [curve for curve in curves if curve.kind == "other"]
    for curve in sorted(curves, key=lambda each: ("other", "reference", "own").index(each.kind)):
        points = [(x, _y(value)) for x, value in zip(xs, curve.values, strict=True)]
        if curve.kind == "own":
            band = [(x, _y(min(v + s, 100.0))) for x, v, s in zip(xs, curve.values, curve.spread, strict=True)]
            band += [(x, _y(v - s)) for x, v, s in zip(xs, curve.values, curve.spread, strict=True)][::-1]
            drawn.append(f'<polygon class="band" points="{_points(band)}"/>')
        drawn.append(_line(curve, points, order))
        if curve.kind == "own":
            drawn += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points]
    for row, curve in enumerate(sorted(curves, key=lambda each: -sum(each.values))):
        x, y = WIDTH - RIGHT + 10, TOP + 8 + row * LINE
        drawn.append(_line(curve, [(x, y), (x + SAMPLE, y)], order))
        drawn.append(_text(x + SAMPLE + 6, y + 4, curve.label, f"{curve.kind}-text"))
    return "\n".join([*_head(curves, budgets), *drawn, "</svg>", ""])


def _axes(budgets: Sequence[float], xs: Sequence[float]) -> list[str]:
    drawn = [_text(LEFT - 42, 26, "Test accuracy by privacy budget", "title")]
    drawn.append(_text(LEFT - 42, 45, "10 clients, each with its own budget; handwritten digits; 5 seeds", "faint"))
    for percent in range(0, 101, 20):
        y = _y(percent)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(_text(LEFT - 8, y + 4, f"{percent} %", "faint end"))
    for budget, x in zip(budgets, xs, strict=True):
        drawn.append(_text(x, HEIGHT - BOTTOM + 20, f"{budget:g}", "faint middle"))
    drawn.append(
        _text(LEFT - 42, HEIGHT - 22, "Privacy budget epsilon of the middle clients (small: strict).", "faint")
    )
    drawn.append(_text(LEFT - 42, HEIGHT - 6, "Four others have a fifth of it, two have five times as much.", "faint"))
    return drawn


def _head(curves: Sequence[Curve], budgets: Sequence[float]) -> list[str]:
    says = "; ".join(
        f"{curve.label}: {curve.values[0]:.0f} % at {budgets[0]:g}, {curve.values[-1]:.0f} % at {budgets[-1]:g}"
        for curve in curves
    )
    light, dark = (
        f".page{{fill:{c['page']}}}.title{{fill:{c['text']}}}.faint{{fill:{c['faint']}}}"
        f".grid{{stroke:{c['grid']}}}"
        f".own{{stroke:{c['own']}}}.other{{stroke:{c['other']}}}.reference{{stroke:{c['reference']}}}"
        f".own-text{{fill:{c['own']}}}.other-text{{fill:{c['other']}}}.reference-text{{fill:{c['reference']}}}"
        f".dot{{fill:{c['own']};stroke:{c['page']}}}.band{{fill:{c['own']};fill-opacity:.16}}"
        for c in COLOURS.values()
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'aria-labelledby="title about">',
        '<title id="title">Test accuracy by privacy budget: hush, the recipes of the papers, and no privacy</title>',
        f'<desc id="about">{escape(says)}.</desc>',
        "<style>",
        "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}",
        ".title{font-weight:700;font-size:16px}.end{text-anchor:end}.middle{text-anchor:middle}",
        ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.line.own{stroke-width:3.5}.own-text{font-weight:700}",
        light,
        f"@media (prefers-color-scheme:dark){{{dark}}}",
        "</style>",
        '<rect class="page" width="100%" height="100%" rx="6"/>',
    ]


def _line(curve: Curve, points: Sequence[tuple[float, float]], others: Sequence[Curve]) -> str:
    dash = DASHES[others.index(curve)] if curve.kind == "other" else "6 5" if curve.kind == "reference" else ""
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline class="line {curve.kind}" points="{_points(points)}"{style}/>'


def _x(budget: float, budgets: Sequence[float]) -> float:
    low, high = math.log(budgets[0]), math.log(budgets[-1])
    return LEFT + 9 + (math.log(budget) - low) / (high - low) * (WIDTH - RIGHT - LEFT - 18)


def _y(percent: float) -> float:
    return TOP + (1 - percent / 100) * (HEIGHT - TOP - BOTTOM)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
