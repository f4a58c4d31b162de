"""Charts of the papers' figures, as SVG files beside the pages of results: curves over the rounds, or bars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from hush.pages import Axis, Chart, Series
from hush.pages.chart import numbered
from hush.pages.svg import svg
from hush.pages.wording import safe

Content = Mapping[str, Any]
WIDTH = 430
CURVES = ("accuracy-curve", "loss")
_GROUND = (
    "svg{color:#1b1f24;background:#fff;--panel:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117;--panel:#0d1117}}"
)
_ROUND = re.compile(r"round (\d+)")


def charts(content: Content) -> dict[str, tuple[str, str]]:
    """Return the charts of a figure's result by name, each as SVG with its text alternative; none for a table."""
    if not re.search(r"/(figure|scenario)-", content["entry"]):
        return {}
    drawn = list(_curves(content)) if content["metric"] in CURVES else [_bars(content)]
    width = WIDTH if len(drawn) > 1 else 2 * WIDTH
    return {chart.key: (file(chart, width), chart.meaning) for chart in drawn if chart}


def file(chart: Chart, width: int) -> str:
    """Return a chart as a file of its own, with its style, its background and its legend below."""
    style = files("hush.pages").joinpath("chart.css").read_text(encoding="utf-8")
    drawn = svg(chart, width, f"<style>{style}{_GROUND}</style>")
    keys, x, y = [], 14.0, chart.height + 14.0
    for part in chart.series:
        wide = 24 + 7.0 * len(part.name)
        if x + wide > width:
            x, y = 14.0, y + 20
        keys.append(
            f'<g class="{part.colour}"><rect class="bar" x="{x:.0f}" y="{y - 9:.0f}" width="11" height="11" rx="2"/>'
            f'<text class="off" x="{x + 16:.0f}" y="{y + 1:.0f}">{safe(part.name)}</text></g>'
        )
        x += wide + 12
    head = f'viewBox="0 0 {width} {chart.height}"'
    whole = f'xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {y + 12:.0f}"'
    return drawn.replace(head, whole, 1).replace("</svg>", "".join(keys) + "</svg>\n")


def _names(content: Content) -> list[str]:
    return list(dict.fromkeys(cell["algorithm"] for cell in content["cells"]))


def _curves(content: Content) -> Iterator[Chart]:
    """Yield a chart of each column: a line for each algorithm, over the rounds."""
    names = _names(content)
    for column in dict.fromkeys(cell["column"] for cell in content["cells"]):
        lines, ends = [], []
        for cell in content["cells"]:
            points = {int(found[1]): value for name, value in cell["measures"].items() if (found := _ROUND.match(name))}
            if cell["column"] != column or not points:
                continue
            rounds = sorted(points)
            means, stds = [points[r]["ours"] for r in rounds], [points[r]["std"] or 0.0 for r in rounds]
            lines.append(
                Series(
                    name=cell["algorithm"],
                    x=rounds,
                    y=means,
                    low=[mean - std for mean, std in zip(means, stds, strict=True)],
                    high=[mean + std for mean, std in zip(means, stds, strict=True)],
                    colour=numbered(names.index(cell["algorithm"])),
                )
            )
            ends.append((means[-1], rounds[-1], cell["algorithm"]))
        if lines:
            ends.sort(reverse=True)
            values = ", ".join(f"{name} {value:.1f}" for value, _, name in ends)
            yield Chart(
                key=column,
                title=column,
                words=f"Accuracy over the rounds, {column}.",
                meaning=f"{column}: after the last round {values}.",
                x=Axis(title="round"),
                y=Axis(title="accuracy (%)"),
                series=lines,
                height=300,
            )


def _bars(content: Content) -> Chart | None:
    """Return a chart of the first measure: a group of bars for each column, a bar for each algorithm."""
    names = _names(content)
    columns = list(dict.fromkeys(cell["column"] for cell in content["cells"]))
    series, ranges = [], []
    for name in names:
        cells = [cell for cell in content["cells"] if cell["algorithm"] == name]
        values = [next(iter(cell["measures"].values())) for cell in cells]
        ours = [value["ours"] for value in values]
        series.append(
            Series(
                kind="bars",
                name=name,
                x=[columns.index(cell["column"]) for cell in cells],
                y=ours,
                low=[value["ours"] - (value["std"] or 0.0) for value in values],
                high=[value["ours"] + (value["std"] or 0.0) for value in values],
                colour=numbered(names.index(name)),
            )
        )
        ranges.append(f"{name} {min(ours):.3g} to {max(ours):.3g}")
    if not series:
        return None
    return Chart(
        key="all",
        title=str(content["title"]),
        words=str(content["title"]),
        meaning=f"{content['title']}. From left to right in each group: {'; '.join(ranges)}.",
        x=Axis(scale="category", categories=tuple(columns)),
        y=Axis(title=""),
        series=series,
        height=280,
    )
