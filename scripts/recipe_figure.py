"""docs/recipes.svg: every recipe as a row of slots. Plain SVG, with its own background in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from itertools import accumulate
from typing import Any

WIDTH, MARGIN, GAP = 427, 8, 3
FONT, LEADING, PAD = 12, 14, 5
# Wide enough for their longest words in a wide font; the tests check that all of them fit.
COLUMNS: Mapping[str, int] = {"protect": 72, "local": 65, "assign": 64, "project": 69, "weight": 78, "step": 48}

# Text and what lies behind it. The tests check that every pair stays readable.
COLOURS: Mapping[str, Mapping[str, str]] = {
    "light": {"page": "#ffffff", "text": "#1b1f24", "faint": "#59636e", "usual": "#eef1f4", "own": "#0b5cad",
              "on_own": "#ffffff"},
    "dark": {"page": "#0d1117", "text": "#e6edf3", "faint": "#a3adb8", "usual": "#1c232c", "own": "#8cc2ff",
             "on_own": "#0d1117"},
}  # fmt: skip
PAIRS = (("text", "page"), ("faint", "page"), ("faint", "usual"), ("on_own", "own"))


def figure(papers: Mapping[str, Sequence[str]], recipes: Mapping[str, Any], usual: Any) -> str:
    """The figure: a block for each paper, a row for each of its recipes, a cell for each slot.

    Args:
        papers: Names of recipes by paper, in order.
        recipes: The recipes.
        usual: The recipe of defaults: choices that differ from it stand out.
    """
    starts = dict(zip(COLUMNS, accumulate((w + GAP for w in COLUMNS.values()), initial=MARGIN), strict=False))
    drawn: list[str] = []
    y = MARGIN
    for paper, names in papers.items():
        y += 20
        drawn.append(_text(MARGIN, y, paper, "paper"))
        y += 17
        drawn += [_text(x + PAD, y, slot, "slot") for slot, x in starts.items()]
        for name in names:
            y += 20
            drawn.append(_text(MARGIN, y, name, "name"))
            y += 6
            cells = {slot: lines_of(getattr(recipes[name], slot)) for slot in COLUMNS}
            tall = max(map(len, cells.values())) * LEADING + 2 * PAD
            for slot, lines in cells.items():
                x, wide = starts[slot], COLUMNS[slot]
                kind = "usual" if getattr(recipes[name], slot) == getattr(usual, slot) else "own"
                drawn.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{wide}" height="{tall}" rx="4"/>')
                drawn += [
                    _text(x + PAD, y + PAD + LEADING * (n + 1) - 3, line, f"in-{kind}") for n, line in enumerate(lines)
                ]
            y += tall
        y += 10
    return "\n".join([*_head(y + MARGIN, len(recipes)), *drawn, "</svg>", ""])


def lines_of(option: Any) -> list[str]:
    """The name of a choice, broken at its hyphens, and the settings that differ from the usual ones."""
    usual = type(option)()
    settings = [
        value if isinstance(value := getattr(option, field.name), str) else f"{field.name} {value}"
        for field in fields(option)
        if getattr(option, field.name) != getattr(usual, field.name)
    ]
    changed = [line for text in settings for line in ([text] if len(text) <= 9 else text.split())]
    lines = [""]
    for part in option.rule.replace("-", "- ").split():
        if len(lines[-1] + part) > 8:
            lines.append("")
        lines[-1] += part
    return [line for line in lines if line] + changed


def _head(height: int, count: int) -> list[str]:
    light, dark = (
        "".join(f".{name}{{fill:{_colour(name, colours)}}}" for name in _CLASSES) for colours in COLOURS.values()
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" viewBox="0 0 {WIDTH} {height}" '
        'aria-labelledby="title about">',
        f'<title id="title">All {count} recipes as rows of slots</title>',
        '<desc id="about">A row for each recipe, a cell for each of its six choices. Coloured cells differ from the '
        "default. docs/recipes.md lists the same as text.</desc>",
        "<style>",
        f"text{{font:{FONT}px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}}",
        ".paper{font-weight:700;font-size:13px}.name{font-weight:600}.slot{font-size:11px}",
        light,
        f"@media (prefers-color-scheme:dark){{{dark}}}",
        "</style>",
        '<rect class="page" width="100%" height="100%" rx="6"/>',
    ]


_CLASSES = {
    "page": "page", "paper": "text", "name": "text", "slot": "faint", "usual": "usual", "own": "own",
    "in-usual": "faint", "in-own": "on_own",
}  # fmt: skip


def _colour(name: str, colours: Mapping[str, str]) -> str:
    return colours[_CLASSES[name]]


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2 defines it: 4.5 or more is asked of text."""
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
