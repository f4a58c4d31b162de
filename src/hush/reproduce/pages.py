"""Reproduction pages in Markdown and HTML: published and reproduced values, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Table = tuple[list[str], list[list[str]]]


def tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """Return for each measure the heads, and a line per algorithm with each cell as ours (published, difference)."""
    cells = content["cells"]
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    algorithms = list(dict.fromkeys(cell["algorithm"] for cell in cells))
    by_place = {(cell["algorithm"], cell["column"]): cell["measures"] for cell in cells}
    found: dict[str, Table] = {}
    for name in dict.fromkeys(name for cell in cells for name in cell["measures"]):
        lines = []
        for algorithm in algorithms:
            texts = [shown(by_place.get((algorithm, column), {}).get(name)) for column in columns]
            lines.append([algorithm, *texts])
        found[name] = (["", *columns], lines)
    return found


def shown(value: Mapping[str, Any] | None) -> str:
    """Format one cell."""
    if value is None:
        return ""
    if value.get("printed") is None:
        return spread(value)
    return f"{spread(value)} ({number(value['printed'])}, {value['difference']:+.2f})"


def spread(value: Mapping[str, Any]) -> str:
    """Return our value with its standard deviation over seeds."""
    return number(value["ours"]) + (f" ± {number(value['std'])}" if value.get("std") is not None else "")


def number(value: float) -> str:
    """Return a number with as many digits as the papers use."""
    return f"{value:.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def markdown(content: Mapping[str, Any], level: int = 1) -> str:
    """Return the reproduction as Markdown."""
    head = "#" * level
    parts = [f"{head} {content['entry']}: {content['title']}", _lead(content)]
    for name, (heads, lines) in tables(content).items():
        if name != "value":
            parts.append(f"{head}# {name}")
        parts.append(grid(heads, lines))
    parts += [grid(_ORDER_HEADS, orders)] if (orders := _orders(content)) else []
    parts += [f"- {note}" for note in content["notes"]]
    parts.append(f"Made by `{content['command']}`.")
    return "\n\n".join(parts) + "\n"


def grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def html(content: Mapping[str, Any]) -> str:
    """Return the reproduction as one self-contained HTML file."""
    parts = [f"<h1>{escape(content['entry'])}: {escape(content['title'])}</h1>", f"<p>{escape(_lead(content))}</p>"]
    for name, (heads, lines) in tables(content).items():
        if name != "value":
            parts.append(f"<h2>{escape(name)}</h2>")
        parts.append(_table(heads, lines))
    parts += [_table(_ORDER_HEADS, orders)] if (orders := _orders(content)) else []
    parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in content["notes"]) + "</ul>")
    parts.append(f"<p>Made by <code>{escape(content['command'])}</code>.</p>")
    return _PAGE.format(title=escape(content["entry"]), body="\n".join(parts))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    rows = "".join(
        "<tr>" + f"<th>{escape(line[0])}</th>" + "".join(f"<td>{escape(text)}</td>" for text in line[1:]) + "</tr>"
        for line in lines
    )
    return f"<div class='wide'><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>"


_ORDER_HEADS = ("Claims of the paper", "here", "by", "spread over seeds")


def _orders(content: Mapping[str, Any]) -> list[list[str]]:
    """Return one line per claim; its result is empty if its cells were not run."""
    return [
        [
            one["order"],
            one["verdict"],
            "" if one["by"] is None else f"{one['by']:+.3g}",
            "" if one["spread"] is None or len(content["seeds"]) == 1 else f"{one['spread']:.2g}",
        ]
        for one in content.get("orders", [])
    ]


def _lead(content: Mapping[str, Any]) -> str:
    seeds = len(content["seeds"])
    runs = f"{seeds} seeds, mean ± sample standard deviation" if seeds > 1 else "one seed"
    lead = f"Ours (published, difference); mode {content['mode']}, {runs}."
    other = changed_settings(content)
    return f"{lead} Settings that differ from the table: {', '.join(other)}." if other else lead


def changed_settings(content: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ from the table's; engine settings do not count."""
    return [change for change in content.get("changes", ()) if not change.startswith("engine.")]


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #d8dee6; text-align: right; white-space: nowrap }}
th:first-child {{ text-align: left }}
code {{ overflow-wrap: anywhere }}
</style></head><body>
{body}
</body></html>
"""
