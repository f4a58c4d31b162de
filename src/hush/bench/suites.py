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


def run(suites: Sequence[str], progress: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Run these suites, or those that suit any machine."""
    for name in suites:
        if name not in SUITES:
            raise unknown("--suite", "suite", name, SUITES)
    chosen = tuple(suites) or _USUAL
    found = Findings()
    for number, name in enumerate(chosen):
        if progress is not None:
            progress(name, number, len(chosen))
        found |= importlib.import_module(SUITES[name]).measure()
    return found.record(" ".join(["hush bench", *(f"--suite {name}" for name in chosen), "--json"]))
