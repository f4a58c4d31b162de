"""Trace one round: which functions below src/hush a round calls, in which order, and how many files that takes.

Run it from the repository: `.venv/bin/python -m scripts.trace_round`. docs/architecture.md describes the same round in
prose. The round is the second of a run of robust-hdp with logistic regression, so that set-up is over.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import hush
from hush.types import RoundRecord

SOURCE = Path(hush.__file__).parent
TRACED = 2
CONFIG: dict[str, Any] = {
    "rounds": TRACED + 1,
    "data": {"name": "digits", "clients": 6, "partition": "iid"},
    "model": {"name": "logreg"},
    "privacy": {"budgets": [0.5, 1.0, 2.0, 4.0, 8.0, 16.0], "delta": 1e-4},
    "recipe": {"name": "robust-hdp"},
}


@dataclass(frozen=True)
class Trace:
    """The functions of one round as (file below src/hush, qualified name), in the order of their first call."""

    functions: tuple[tuple[str, str], ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the functions, in the order in which a reader first opens them."""
        return tuple(dict.fromkeys(file for file, _ in self.functions))

    @property
    def switches(self) -> int:
        """How often the package changes from one function to the next.

        A package is a folder of src/hush. Modules beside these folders (`types`, `seeds`) belong to all of them.
        """
        packages = [Path(file).parts[0] for file, _ in self.functions if "/" in file]
        return sum(one != other for one, other in pairwise(packages))


def trace() -> Trace:
    """Run the traced round and return what it called; comprehensions and generated methods are not listed."""
    called: dict[tuple[str, str], None] = {}
    root = f"{SOURCE}/"

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
            called.setdefault((code.co_filename.removeprefix(root), code.co_qualname))

    def progress(record: RoundRecord) -> None:
        # The round lies between the two calls after its predecessor and after itself.
        sys.setprofile(profile if record.round == TRACED - 1 else None)

    try:
        hush.simulate(CONFIG, progress=progress)
    finally:
        sys.setprofile(None)
    return Trace(tuple(called))


def listing(traced: Trace) -> Sequence[str]:
    """The functions in order, indented under their file, and the two figures."""
    lines: list[str] = []
    previous = ""
    for file, name in traced.functions:
        lines += [file] * (file != previous) + [f"    {name}"]
        previous = file
    return [
        *lines,
        "",
        *traced.files,
        "",
        f"{len(traced.functions)} functions in {len(traced.files)} files",
        f"{traced.switches} package switches",
    ]


if __name__ == "__main__":
    print("\n".join(listing(trace())))
