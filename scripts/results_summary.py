"""The summary of a paper's entries: what was run of each, how near it is to print, and which claims hold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hush.reproduce import Cell, Entry, entries, entry
from hush.reproduce.claims import FAILS, HOLDS, NOT_RUN, UNDECIDED, judged
from hush.reproduce.cost import Cost, cost
from hush.reproduce.first_round import FIRST_ROUND
from hush.reproduce.measures import gap, unit
from hush.reproduce.pages import changed_settings, grid

Content = Mapping[str, Any]

HEADS = ["entry", "mode", "algorithms", "seeds", "rounds", "cells", "within tolerance", "same best", "claims", "fitted"]
LEGEND = """
`seeds`, `rounds` and `cells`: what was run, and of how many. `within tolerance`: of all published values of these
cells, every measure of them, how many are within 3 points (accuracies), 3 % (noise), 10 % (losses, traffic) or one
round of ours, and how far the middle one is. `same best`: columns in which the algorithm that is best in print is best
here. `claims`: the rankings that the paper states in words. A ranking is undecided if the difference is within the
standard deviation over seeds of that difference (2 points for one seed), or if both models are no better than guessing.
`fitted`: settings that were chosen by looking at the published values.
"""
# Why an entry has no result, where the reason is not what it costs.
WHY_NOT = {
    "robust-hdp/table-15": "CIFAR-100 is not among the data that were available",
    "robust-hdp/table-21": "the runs of table 20",
    "rc-dpfl/table-8": "the runs of table 7",
    "rc-dpfl/table-10": "the runs of table 9",
    "rc-dpfl/table-6": "the runs of table 5",
}


def summary(results: Sequence[Content], anchors: Sequence[str]) -> str:
    """Return a line for each result."""
    return grid(HEADS, [line(content, anchor) for content, anchor in zip(results, anchors, strict=True)])


def line(content: Content, anchor: str) -> list[str]:
    """Return what was run, in one line."""
    described = entry(content["entry"])
    algorithms = list(dict.fromkeys(cell["algorithm"] for cell in content["cells"]))
    theirs = [cell for cell in content["cells"] if not cell["own"]] or content["cells"]
    same = verdicts(best_claims(content))
    return [
        f"[{content['entry']}](#{anchor})",
        ", ".join([content["mode"], *map(_short, changed_settings(content))]),
        ", ".join(algorithms) if len(algorithms) <= 3 else f"{len(algorithms)}",
        _of(len(content["seeds"]), described.seeds),
        "first" if content["metric"] in FIRST_ROUND else _of(*rounds_run(content, described)),
        _of(len(theirs), _cells(content, described)),
        reproduced_values(content),
        _counted(same),
        _counted(verdicts(content["orders"])),
        ", ".join(fitted(content, described)),
    ]


def _short(change: str) -> str:
    """Return a changed setting, of a table its name only; the section of the result has all of it."""
    return change if len(change) <= 30 else f"{change.partition('=')[0]} (below)"


def _of(part: int, whole: int) -> str:
    return f"{part}" if part == whole else f"{part} of {whole}"


def _cells(content: Content, described: Entry) -> int:
    """The number of cells that the entry has of the kind that was run: the paper's, or our own."""
    own = all(cell["own"] for cell in content["cells"])
    return sum(cell.own for cell in described.cells) if own else len(wanted(described))


def wanted(described: Entry) -> list[Cell]:
    """Return the cells that the paper has: those with published values, or all where it publishes curves alone.

    Of an entry that no paper has, all of its cells.
    """
    cells = [cell for cell in described.cells if not cell.own] or list(described.cells)
    return [cell for cell in cells if cell.printed] or cells


def rounds_run(content: Content, described: Entry) -> tuple[int, int]:
    """Return the most rounds of a cell that was run, and of a cell of the entry."""
    whole = max(described.configured(cell, described.modes[0]).rounds for cell in described.cells)
    given = [int(change.partition("=")[2]) for change in content.get("changes", ()) if change.startswith("rounds=")]
    if given:
        return given[-1], whole
    ran = {(cell["algorithm"], cell["column"]) for cell in content["cells"]}
    cells = [cell for cell in described.cells if (cell.algorithm, cell.column) in ran]
    most = max((described.configured(cell, described.modes[0]).rounds for cell in cells), default=whole)
    return most, most


def fitted(content: Content, described: Entry) -> list[str]:
    """Return the settings of the cells that were chosen by looking at the published values."""
    ran = {cell["algorithm"] for cell in content["cells"]}
    return [what for what, whose in described.fitted.items() if not whose or ran & set(whose)]


def gaps(content: Content) -> Iterator[tuple[str, str, Mapping[str, Any], float, float]]:
    """Yield cell, measure, value, how far it is from print, and the tolerance, for each published value."""
    for cell in content["cells"]:
        for measure, value in cell["measures"].items():
            far = gap(content["metric"], measure, value)
            if far is not None:
                allowed = unit(content["metric"], measure).tolerance
                yield f"{cell['algorithm']} {cell['column']}", measure, value, far, allowed


def comparable(content: Content) -> bool:
    """Whether its values can be held against print: those of a table of a paper, in the paper's settings."""
    return not content["entry"].startswith("hush/") and not changed_settings(content)


def reproduced_values(content: Content) -> str:
    """Return how many published values are within the tolerance, and how far the middle one is, by unit."""
    found = list(gaps(content)) if comparable(content) else []
    if not found:
        return ""
    inside = sum(far <= allowed for *_, far, allowed in found)
    middle: dict[str, list[float]] = {}
    for _, measure, _, far, _ in found:
        middle.setdefault(unit(content["metric"], measure).words, []).append(far)
    medians = ", ".join(f"{statistics.median(each):.2g} {words}" for words, each in middle.items())
    return f"{inside} of {len(found)}; {medians}"


def best_claims(content: Content) -> list[dict[str, Any]]:
    """Return the verdicts on who is best, for the columns in which all published algorithms were run."""
    if not comparable(content):
        return []
    described = entry(content["entry"])
    cells = [cell for cell in content["cells"] if not cell["own"]]
    ran = {(cell["algorithm"], cell["column"]) for cell in cells}
    claims = [
        claim
        for claim in described.best_in_print()
        if sum(column == claim.rpartition(" @ ")[2] for _, column in ran) > 1
    ]
    return [one for one in judged(claims, content, cells) if one["verdict"] != NOT_RUN]


def verdicts(orders: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many claims have each verdict."""
    found = [one["verdict"] for one in orders]
    return {name: found.count(name) for name in (HOLDS, FAILS, UNDECIDED, NOT_RUN)}


def _counted(counts: Mapping[str, int]) -> str:
    words = {HOLDS: "hold", FAILS: "fail", UNDECIDED: "undecided", NOT_RUN: "not run"}
    return ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)


def coverage(paper: str, results: Sequence[Content]) -> str:
    """Return a line for each entry of a paper: what was run of it, and what all of it costs."""
    lines = []
    for name in [name for name in entries() if name.startswith(f"{paper}/")]:
        described = entry(name)
        whole = wanted(described)
        ran = {
            (cell["algorithm"], cell["column"])
            for content in results
            if content["entry"] == name
            for cell in content["cells"]
        } & {(cell.algorithm, cell.column) for cell in whole}
        least = cost(described, 1, whole)
        status = f"{len(ran)} of {len(whole)} cells" if ran else f"not run: {WHY_NOT.get(name, why(least))}"
        lines.append([f"`{name}`", status, f"{described.seeds}", _count(least.examples), *_hours(least)])
    heads = ["entry", "run", "seeds wanted", "examples", "GPU hours", "CPU hours"]
    return grid(heads, lines)


def why(least: Cost) -> str:
    """Return why an entry has not been run: what one seed of it costs."""
    gpu, cpu = _hours(least)
    return f"{gpu} GPU hours or {cpu} CPU hours a seed"


def _count(examples: float) -> str:
    return f"{examples / 1e9:.1f} G" if examples >= 1e9 else f"{examples / 1e6:.1f} M"


def _hours(least: Cost) -> list[str]:
    return [f"{hours:.0f}" if hours >= 100 else f"{hours:.2g}" for hours in (least.gpu_hours, least.cpu_minutes / 60)]
