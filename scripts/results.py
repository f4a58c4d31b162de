"""Write docs/results.md from results/reproduce/*.json: `make results`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from screen import screen

from hush.reproduce import entries, markdown

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
