"""Write docs/results.md from results/reproduce/*.json: `make results`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.reproduce import entries, entry, markdown
from scripts.screen import screen

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reproduce"
PAGE = ROOT / "docs" / "results.md"

HEAD = """\
# Results against the papers

This page is written by `make results` from `results/reproduce/*.json`; a test checks that they agree. Every value was
produced by the command below its table. Published values are those of the papers.

Learning rates are those of the papers if they are published; otherwise the choice is noted with the table. As in the
papers, the privacy cost of choosing them is not counted. `hush` computes its learning rate from the noise.

The rows of `hush` and of `hush/ablation` were recorded with its former rate, average and weights
([ADR 17](adr/0017-rates-for-any-number-of-rounds.md)). With the present ones two cells of `robust-hdp/table-12` were
run again, on the first seed: Dist1 97.41 (recorded 97.41), Dist6 95.40 (95.62).
"""


def loaded() -> list[dict[str, Any]]:
    """Every result, in the order of the entries."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    for content in found:
        # Titles and notes are prose: the page shows those of the entry, not those recorded with the values.
        described = entry(content["entry"])
        content |= {"title": described.title, "notes": described.remarks}
    order = {name: number for number, name in enumerate(entries())}
    return sorted(found, key=lambda content: (order[content["entry"]], content["mode"]))


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    sections = [markdown(content, 2) for content in results]
    return "\n".join([HEAD, *screen(results, _anchors(sections)), *sections])


def _anchors(sections: Sequence[str]) -> list[str]:
    """Where the sections are, as Markdown viewers name it: those of one title are counted."""
    found: list[str] = []
    for section in sections:
        title = section.splitlines()[0].removeprefix("## ").lower()
        plain = "".join(c if c.isalnum() or c in "-_" else "-" if c == " " else "" for c in title)
        before = sum(anchor == plain or anchor.rpartition("-")[0] == plain for anchor in found)
        found.append(f"{plain}-{before}" if before else plain)
    return found


def main() -> None:
    """Write."""
    PAGE.write_text(page(loaded()), encoding="utf-8")


if __name__ == "__main__":
    main()
