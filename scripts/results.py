"""Write docs/results.md from results/reproduce/*.json: `make results`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.reproduce import entries, entry, markdown
from hush.reproduce.metrics import FIRST
from hush.reproduce.pages import grid

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reproduce"
PAGE = ROOT / "docs" / "results.md"

HEAD = """\
# Results against the papers

This page is written by `make results` from `results/reproduce/*.json`; a test checks that they agree. Every number was
made by the command under its table. The printed numbers are the papers'.

Learning rates are the papers' where they print them; where they do not, the choice is noted with the table. As in the
papers, what choosing them costs in privacy is not counted. `hush` chooses none: its rate follows from the noise.
"""


def loaded() -> list[dict[str, Any]]:
    """Every result, in the order of the entries."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    order = {name: number for number, name in enumerate(entries())}
    return sorted(found, key=lambda content: (order[content["entry"]], content["mode"]))


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    done = {content["entry"] for content in results}
    left = [name for name in entries() if name not in done]
    parts = [
        HEAD,
        "## In one screen\n",
        grid(["entry", "mode", "seeds", "cells", "in print", "near", "same best", "orders that hold", "hush ahead by"],
             [_summary(content) for content in results]),
        "\n`in print`: cells for which the paper prints a number. `near`: of those, how many of ours are within 3",
        "points of it (accuracies) or 3 % (noise), and the median distance. `same best`: columns in which the",
        "algorithm that is best in print is best here. `hush ahead by`: of the best printed number in each column,",
        "least and mean.\n",
        f"Not run yet: {', '.join(f'`{name}`' for name in left)}.\n" if left else "",
        *(markdown(content, 2) for content in results),
    ]  # fmt: skip
    return "\n".join(parts)


def _summary(content: Mapping[str, Any]) -> list[str]:
    cells, orders = content["cells"], content["orders"]
    return [
        f"[{content['entry']}](#{_anchor(content)})",
        content["mode"],
        str(len(content["seeds"])),
        str(len(cells)),
        str(sum(any(v["printed"] is not None for v in cell["measures"].values()) for cell in cells)),
        _near(content),
        _best(cells) if content["metric"] == "accuracy" and not content["entry"].startswith("hush/") else "",
        f"{sum(order['holds'] is True for order in orders)} of {len(orders)}" if orders else "",
        _ahead(content["entry"], cells),
    ]


def _near(content: Mapping[str, Any]) -> str:
    """How many cells are close to print, and how far the one in the middle is."""
    relative = content["metric"] == FIRST
    if not relative and "accuracy" not in content["metric"]:
        return ""
    values = [cell["measures"]["value"] for cell in content["cells"] if "value" in cell["measures"]]
    gaps = [
        100 * abs(value["difference"] / value["printed"]) if relative else abs(value["difference"])
        for value in values
        if value["difference"] is not None
    ]
    if not gaps:
        return ""
    return f"{sum(gap <= 3 for gap in gaps)} of {len(gaps)}, {statistics.median(gaps):.2g}{' %' if relative else ''}"


def _best(cells: Sequence[Mapping[str, Any]]) -> str:
    """In how many columns the best algorithm is the one that is best in print."""
    columns: dict[str, list[tuple[float, float, str]]] = {}
    for cell in cells:
        value = cell["measures"].get("value")
        if value is not None and value["printed"] is not None and not cell["own"]:
            columns.setdefault(cell["column"], []).append((value["ours"], value["printed"], cell["algorithm"]))
    full = [rows for rows in columns.values() if len(rows) > 1]
    if not full:
        return ""
    same = sum(max(rows)[2] == max(rows, key=lambda row: row[1])[2] for rows in full)
    return f"{same} of {len(full)}"


def _ahead(name: str, cells: Sequence[Mapping[str, Any]]) -> str:
    """By how much the cells of `hush` are above the best number that the paper prints in their columns."""
    best: dict[str, float] = {}
    for cell in entry(name).cells:
        printed = cell.printed.get("")
        if printed is not None and printed.value is not None:
            best[cell.column] = max(best.get(cell.column, printed.value), printed.value)
    gains = [
        cell["measures"]["value"]["ours"] - best[cell["column"]]
        for cell in cells
        if cell["algorithm"] == "hush" and cell["column"] in best
    ]
    return f"{min(gains):+.2f}, {sum(gains) / len(gains):+.2f}" if gains else ""


def _anchor(content: Mapping[str, Any]) -> str:
    """Where the section is, as Markdown viewers name it."""
    title = f"{content['entry']}: {content['title']}".lower()
    return "".join(c if c.isalnum() or c in "-_" else "-" if c == " " else "" for c in title)


def main() -> None:
    """Write."""
    PAGE.write_text(page(loaded()), encoding="utf-8")


if __name__ == "__main__":
    main()
