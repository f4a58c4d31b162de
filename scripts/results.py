"""Write the results pages, docs/results.md and one for each paper, from results/reproduce/*.json: `make results`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.reproduce import entries, entry, markdown
from hush.reproduce.claims import judged
from hush.reproduce.pages import changed_settings
from scripts.results_charts import charts
from scripts.results_differences import ahead, differences
from scripts.results_front import PAPERS, front
from scripts.results_summary import LEGEND, coverage, summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reproduce"
DOCS = ROOT / "docs"

NOTE = """\
This page is written by `make results` from `results/reproduce/*.json`; a test checks that they agree. Every value was
produced by the command below its table. Published values are those of the paper.
"""


def loaded() -> list[dict[str, Any]]:
    """Return every result, in the order of the entries."""
    found = joined([json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))])
    for content in found:
        # Titles, notes and claims are prose: the pages show those of the entry, not those recorded with the values.
        described = entry(content["entry"])
        content |= {"title": described.title, "notes": described.remarks}
        content["orders"] = judged(described.orders, content, content["cells"])
    order = {name: number for number, name in enumerate(entries())}
    return sorted(found, key=lambda content: (order[content["entry"]], content["mode"]))


def joined(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results, those of one entry put together that were run in parts: other cells, all else the same."""
    parts: dict[str, dict[str, Any]] = {}
    for content in results:
        key = json.dumps([content["entry"], content["mode"], content["seeds"], changed_settings(content)])
        whole = parts.get(key)
        places = {(cell["algorithm"], cell["column"]) for cell in content["cells"]}
        if whole is None or places & {(cell["algorithm"], cell["column"]) for cell in whole["cells"]}:
            parts[key if whole is None else f"{key} {len(parts)}"] = dict(content)
            continue
        whole["cells"] = [*whole["cells"], *content["cells"]]
        whole["command"] += f"`, `{content['command']}"  # the page has it between two of these marks
        names = whole["versions"] | content["versions"]
        whole["versions"] = {
            name: ", ".join(sorted({each["versions"][name] for each in (whole, content) if name in each["versions"]}))
            for name in names
        }
    for whole in parts.values():
        order = {(cell.algorithm, cell.column): n for n, cell in enumerate(entry(whole["entry"]).cells)}
        whole["cells"] = sorted(
            whole["cells"], key=lambda cell: order.get((cell["algorithm"], cell["column"]), len(order))
        )
    return list(parts.values())


def pages(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return every page and chart by its path below docs/."""
    found = {"results.md": front(results)}
    for paper in PAPERS:
        own = [content for content in results if content["entry"].startswith(f"{paper}/")]
        images: dict[int, list[str]] = {}
        for number, content in enumerate(own):
            for key, (drawing, words) in charts(content).items():
                name = re.sub("[^a-z0-9.-]", "-", f"{_file(content)}-{key}")
                place = f"figures/{name}.svg"
                if f"results/{place}" in found:
                    place = f"figures/{name}-{number}.svg"
                found[f"results/{place}"] = drawing
                images.setdefault(number, []).append(f"![{words}]({place})")
        found[f"results/{paper}.md"] = page(paper, own, results, images)
    return found


def page(
    paper: str,
    own: Sequence[Mapping[str, Any]],
    every: Sequence[Mapping[str, Any]],
    images: Mapping[int, Sequence[str]],
) -> str:
    """Return the page of a paper, or of `hush`."""
    about = PAPERS[paper]
    sections = [_illustrated(markdown(content, 2), images.get(number, ())) for number, content in enumerate(own)]
    parts = [f"# Results: {about.title}\n", NOTE, *([about.notes] if about.notes else [])]
    gain = ahead(own)
    if gain:
        parts += [GAIN, gain + "\n"]
    parts += ["## Summary\n", summary(own, anchors(sections)), LEGEND]
    parts += ["## Every entry, and what it costs\n", COSTS, coverage(paper, own) + "\n"]
    return "\n".join([*parts, *differences(own, every), *sections])


GAIN = "Accuracy of `hush`, with its difference from the best published value of that column in parentheses:\n"
COSTS = """\
Examples and hours of one seed of all cells of the paper (rows in a step of a client, forward and backward), on one H200
and on one core, at the rates of `hush.reproduce.cost`: evaluation is not counted.
"""


def _illustrated(section: str, images: Iterable[str]) -> str:
    """Return a section with its charts behind the first paragraph."""
    head, lead, *rest = section.split("\n\n")
    return "\n\n".join([head, lead, *images, *rest])


def _file(content: Mapping[str, Any]) -> str:
    """Return the name of a result's charts: of several results of one entry, each has its own."""
    ran = list(dict.fromkeys(cell["column"] for cell in content["cells"]))
    every = {cell.column for cell in entry(content["entry"]).cells}
    part = "" if set(ran) == every else f"-{'-'.join(ran)}"
    return f"{content['entry'].replace('/', '-')}-{content['mode']}{part}"


def anchors(sections: Sequence[str]) -> list[str]:
    """Return where the sections are, as Markdown viewers name it: those of one title are counted."""
    found: list[str] = []
    for section in sections:
        title = section.splitlines()[0].removeprefix("## ").lower()
        plain = "".join(c if c.isalnum() or c in "-_" else "-" if c == " " else "" for c in title)
        before = sum(anchor == plain or anchor.rpartition("-")[0] == plain for anchor in found)
        found.append(f"{plain}-{before}" if before else plain)
    return found


def main() -> None:
    """Write them, and remove charts that are no more."""
    written = pages(loaded())
    for old in (DOCS / "results").rglob("*.*"):
        if str(old.relative_to(DOCS)) not in written:
            old.unlink()
    for place, text in written.items():
        (DOCS / place).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / place).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
