"""The suites of `hush bench`, each a few figures under stable keys."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hush.bench.findings import Findings
from hush.types import unknown

SUITES: Mapping[str, str] = {
    "cpu": "hush.bench.cpu",
    "gpu": "hush.bench.gpu",
    "server": "hush.bench.server",
    "plan": "hush.bench.plan",
    "scale": "hush.bench.scale",
    "memory": "hush.bench.memory",
    "federation": "hush.bench.federation",
    "isolation": "hush.bench.isolation",
    "ray": "hush.bench.ray",
}
_USUAL = ("cpu", "server", "plan", "scale")


def run(
    suites: Sequence[str], progress: Callable[[str, int, int], None] | None = None, parts: Sequence[str] = ()
) -> dict[str, Any]:
    """Run these suites, or those that suit any machine; of suites with parts only those that are named, if any are."""
    for name in suites:
        if name not in SUITES:
            raise unknown("--suite", "suite", name, SUITES)
    chosen = tuple(suites) or _USUAL
    works = [work for name in chosen for work in _works(name, parts)]
    found = Findings()
    for number, (name, measure) in enumerate(works):
        if progress is not None:
            progress(name, number, len(works))
        found |= measure()
    options = [*(f"--suite {name}" for name in chosen), *(f"--part {part}" for part in parts)]
    return found.record(" ".join(["hush bench", *options, "--json"]))


def _works(name: str, parts: Sequence[str]) -> list[tuple[str, Callable[[], Findings]]]:
    """Return the parts of a suite to run, each with its name."""
    module = importlib.import_module(SUITES[name])
    known: Mapping[str, Callable[[], Findings]] = getattr(module, "PARTS", {})
    for part in parts:
        if part not in known:
            raise unknown("--part", f"part of {name}", part, known or ("none: this suite runs as a whole",))
    if not known:
        return [(name, module.measure)]
    return [(f"{name}: {part}", known[part]) for part in parts or known]
