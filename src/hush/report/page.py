"""The HTML page template: one self-contained file whose content security policy forbids network access."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from string import Template

from hush.report.figures import Chart
from hush.report.verdict import Verdict
from hush.report.wording import safe
from hush.server.run_directory import plain

Cell = tuple[object, str, str]
"""What to sort by, what to show (not yet escaped), and its CSS class."""


def page(title: str, kind: str, body: str, charts: Sequence[Chart]) -> str:
    """Return a complete HTML document. `body` is HTML; all other arguments are plain text."""
    library, script = _library(), _resource("script.html").strip().removeprefix("<script>").removesuffix("</script>")
    return Template(_resource("page.html")).substitute(
        policy=_policy(library, script),
        title=safe(title),
        kind=safe(kind),
        style=_resource("style.css"),
        body=body,
        charts=_data({_id(chart): {"data": chart.data, "layout": chart.layout} for chart in charts if chart.data}),
        library=library,
        script=script,
    )


def banner(verdict: Verdict, not_covered: Sequence[str], warnings: Sequence[str] = ()) -> str:
    """Return the banner: the privacy verdict, what is not covered, and warnings."""
    gaps = "".join(f"<li>{safe(gap)}</li>" for gap in not_covered)
    listed = f'<div class="gaps">Not covered by the privacy guarantee:<ul>{gaps}</ul></div>' if gaps else ""
    words = "".join(f"<p>{safe(sentence)}</p>" for sentence in verdict.words)
    words += "".join(f"<p><strong>Warning:</strong> {safe(text)}</p>" for text in warnings)
    return f'<section class="banner {verdict.tone}"><strong>{safe(verdict.headline)}</strong>{words}{listed}</section>'


def tiles(rows: Sequence[tuple[str, str, str]]) -> str:
    """Return the headline figures, each as name, figure and note."""
    made = (
        f'<div class="tile"><dt>{safe(name)}</dt><dd><div class="figure">{safe(shown)}</div>'
        f'<div class="note">{safe(note)}</div></dd></div>'
        for name, shown, note in rows
    )
    return f'<dl class="tiles">{"".join(made)}</dl>'


def panels(charts: Sequence[Chart]) -> str:
    """Return one panel per chart."""
    made = []
    for chart in _filled(charts):
        drawing = f'<div id="{_id(chart)}" style="height:{chart.height}px"></div>' if chart.data else ""
        made.append(
            f'<figure class="panel{" wide" if chart.wide else ""}"><figcaption><h3>{safe(chart.title)}</h3>'
            f"<p>{safe(chart.words)}</p></figcaption>{drawing}</figure>"
        )
    return f'<div class="charts">{"".join(made)}</div>'


def _filled(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts laid out in rows of two; a chart without data, or without a neighbour, takes a full row."""
    placed = [replace(chart, wide=chart.wide or not chart.data) for chart in charts]
    alone = False
    for number, chart in enumerate(placed):
        alone = not chart.wide and not alone
        if alone and (number + 1 == len(placed) or placed[number + 1].wide):
            placed[number], alone = replace(chart, wide=True), False
    return placed


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a sortable table. Heads are (text, CSS class)."""
    head = "".join(f'<th class="{style}"><button type="button">{safe(name)}</button></th>' for name, style in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{style}" data-value="{safe(_key(key))}">{safe(shown)}</td>' for key, shown, style in row)
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="panel scroll"><table class="sortable">'
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


def _id(chart: Chart) -> str:
    return f"chart-{chart.key}"


def _data(value: object) -> str:
    """Return JSON that cannot terminate the enclosing script element."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(*scripts: str) -> str:
    """Return a content security policy that allows only these scripts and no network access."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _resource(name: str) -> str:
    return files("hush.report").joinpath(name).read_text(encoding="utf-8")
