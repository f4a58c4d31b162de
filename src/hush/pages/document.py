"""The HTML document: one self-contained file whose content security policy forbids access to any other origin."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, Literal

from hush.pages.chart import Axis, Chart, Series
from hush.pages.svg import frame, svg
from hush.pages.ticks import Ticks
from hush.pages.wording import safe

Cell = tuple[object, str, str]
"""What to sort by, what to show (not yet escaped), and its CSS class."""
Tone = Literal["good", "plain", "warn", "bad"]
_NARROW, _HALF, _WIDE = 340, 500, 1040


def page(title: str, kind: str, body: str, *, scripts: Sequence[str] = (), connect: bool = False) -> str:
    """Return a complete HTML document. `body` is HTML; title and kind are plain text.

    Args:
        title: Of the document.
        kind: What kind of page it is, beside the name of the product.
        body: The content.
        scripts: More scripts, after that of the charts.
        connect: Whether scripts may connect to the server that the page came from.
    """
    every = [resource("script.js"), *scripts]
    return Template(resource("page.html")).substitute(
        policy=safe(policy(every, connect=connect)),
        title=safe(title),
        description=safe(f"{title}: {kind}"),
        kind=safe(kind),
        style=resource("style.css") + resource("chart.css"),
        body=body,
        scripts="\n".join(f"<script>{script}</script>" for script in every),
    )


def policy(scripts: Sequence[str], *, connect: bool = False) -> str:
    """Return a content security policy that allows only these scripts, and no connection but to the page's server."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    to = "'self'" if connect else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {to}; base-uri 'none'; form-action 'none'"
    )


def banner(
    tone: Tone, headline: str, words: Sequence[str], not_covered: Sequence[str] = (), warnings: Sequence[str] = ()
) -> str:
    """Return the banner: a verdict, what the guarantee does not cover, and warnings."""
    gaps = "".join(f"<li>{safe(gap)}</li>" for gap in not_covered)
    listed = f'<div class="gaps">Not covered by the privacy guarantee:<ul>{gaps}</ul></div>' if gaps else ""
    said = "".join(f"<p>{safe(sentence)}</p>" for sentence in words)
    said += "".join(f"<p><strong>Warning:</strong> {safe(text)}</p>" for text in warnings)
    return (
        f'<section class="banner {tone}" aria-label="Verdict"><strong>{safe(headline)}</strong>{said}{listed}</section>'
    )


def tiles(rows: Sequence[tuple[str, str, str]]) -> str:
    """Return the headline figures, each as name, figure and note."""
    made = (
        f'<div class="tile"><dt>{safe(name)}</dt><dd><span class="figure">{safe(shown)}</span>'
        f'<span class="note">{safe(note)}</span></dd></div>'
        for name, shown, note in rows
    )
    return f'<dl class="tiles">{"".join(made)}</dl>'


def panels(charts: Sequence[Chart]) -> str:
    """Return one panel per chart, in rows of two."""
    return f'<div class="charts">{"".join(map(panel, _filled(charts)))}</div>'


def panel(chart: Chart) -> str:
    """Return a chart with its texts, legend, numbers and drawings; complete in itself, so that it can be replaced."""
    said = "".join(
        f'<p class="{style}">{safe(words)}</p>'
        for style, words in (("meaning", chart.meaning), ("words", chart.words))
        if words
    )
    head = f"<figcaption><h3>{safe(chart.title)}</h3>{said}</figcaption>"
    style = f"panel{' wide' if chart.wide else ''}{'' if chart.series else ' empty'}"
    inside = _drawings(chart) if chart.series else ""
    return f'<figure class="{style}" id="chart-{safe(chart.key)}">{head}{inside}</figure>'


def _drawings(chart: Chart) -> str:
    large = _WIDE if chart.wide else _HALF
    keys = "".join(
        f'<button type="button" class="key {part.colour}" aria-pressed="true" data-key="{number}">'
        f"{safe(part.name)}</button>"
        for number, part in enumerate(chart.series)
        if part.listed
    )
    legend = f'<div class="legend" role="group" aria-label="Series">{keys}</div>' if chart.legend else ""
    csv = safe(f"Download CSV: {chart.title}")
    label = safe(f"{chart.title}: chart; the arrow keys read its values")
    return (
        f'{legend}<div class="drawing" tabindex="0" role="group" aria-label="{label}">'
        f'<div class="large">{svg(chart, large)}</div><div class="narrow">{svg(chart, _NARROW)}</div></div>'
        '<div class="tools"><details class="numbers"><summary>Numbers</summary></details>'
        f'<button type="button" class="csv" aria-label="{csv}">Download CSV</button></div>'
        f'<script type="application/json">{_data(chart, large)}</script>'
    )


def _data(chart: Chart, large: int) -> str:
    """Return the numbers of a chart and where they are drawn, as JSON that cannot end the script element."""
    drawn = [frame(chart, width) for width in (large, _NARROW)]
    value = {
        "x": _axis(chart.x, drawn[0].x),
        "y": _axis(chart.y, drawn[0].y),
        "box": [[made.box.left, made.box.top, made.box.width, made.box.height, width]
                for made, width in zip(drawn, (large, _NARROW), strict=True)],
        "series": [_series(part) for part in chart.series],
    }  # fmt: skip
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _axis(axis: Axis, made: Ticks) -> dict[str, Any]:
    return {
        "title": axis.title, "percent": axis.percent, "log": made.log, "low": made.low, "high": made.high,
        "categories": list(axis.categories),
    }  # fmt: skip


def _series(part: Series) -> dict[str, Any]:
    numbers = {name: [_number(value) for value in getattr(part, name)] for name in ("x", "y", "low", "high", "values")}
    return {"name": part.name, "listed": part.listed, "labels": list(part.labels), **numbers}


def _number(value: float) -> float | None:
    """Return a number with six significant digits; JSON has none that is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _filled(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts laid out in rows of two; a chart without data, or without a neighbour, takes a full row."""
    placed = [replace(chart, wide=chart.wide or not chart.series) for chart in charts]
    alone = False
    for number, chart in enumerate(placed):
        alone = not chart.wide and not alone
        if alone and (number + 1 == len(placed) or placed[number + 1].wide):
            placed[number], alone = replace(chart, wide=True), False
    return placed


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]], name: str) -> str:
    """Return a sortable table that scrolls where it does not fit. Heads are (text, CSS class); `name` describes it."""
    head = "".join(
        f'<th scope="col" class="{style}"><button type="button">{safe(words)}</button></th>' if words else "<td></td>"
        for words, style in heads
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{style}" data-value="{safe(_key(key))}">{safe(shown)}</td>' for key, shown, style in row)
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="panel scroll" tabindex="0" role="region" aria-label="{safe(name)}"><table class="sortable">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _key(value: object) -> object:
    """Return a sorting key for the page's script; missing values come first."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-Infinity"
    return str(value).replace("inf", "Infinity") if isinstance(value, float) else value


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return a list of names and values."""
    return f'<dl class="facts">{"".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in rows)}</dl>'


def command(text: str, given: str = "") -> str:
    """Return the command that reproduces the run; `given` describes data and model passed from Python."""
    if not text:
        also = f" with {safe(given)}" if given else ""
        return (
            '<p class="soft">Started from Python, so there is no command line; the config below reproduces the run'
            f"{also}.</p>"
        )
    return f"<pre>{safe(text)}</pre>"


@cache
def resource(name: str) -> str:
    """Return a file of this package."""
    return files("hush.pages").joinpath(name).read_text(encoding="utf-8")
