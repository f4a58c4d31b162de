"""Runs that die during enrolment, and a process that holds their ledgers open: each for a process of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hush.config import parse
from hush.engines import enrolment as enrol
from hush.engines import simulator
from hush.engines.setup import prepare
from hush.privacy.ledger import Ledger
from hush.recipes import Recipe
from tests.support.ledger_jobs import FAILED

CLIENTS = 2
CONFIG: dict[str, Any] = {
    "rounds": 1,
    "data": {"clients": CLIENTS},
    "privacy": {"budgets": 2.0, "lifetime": 1e6, "noise": "secure"},
    "local": {"batch_size": 128},
    "recipe": {
        "name": "fedavg",
        "protect": {"rule": "dp-sgd", "centre": 0.3},
        "weight": {"rule": "samples", "counts": "noisy"},
    },
}


def enrolment(directory: str, point: str = "", nth: str = "1") -> None:
    """Run or resume, up to the nth time that a failpoint is passed; what the server receives goes into a file."""
    here, passed = Path(directory), 0

    def failpoint(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == int(nth):
            os._exit(FAILED)

    def witnessed(answers: Sequence[enrol.EnrolmentAnswer | None], recipe: Recipe, *, one_model: bool) -> Any:
        for client, answer in enumerate(answers):
            assert answer is not None and answer.mean is not None
            _append(here / f"released-{client}", {"count": answer.count.hex(), "mean": answer.mean.tolist()})
        failpoint("released")
        return combined(answers, recipe, one_model=one_model)

    combined, enrol.combined = enrol.combined, witnessed
    Ledger.open = staticmethod(partial(Ledger.open, failpoint=failpoint))  # type: ignore[method-assign]
    simulator.run(prepare(parse(CONFIG)), here / "run", resume=True, ledgers=here / "books")


def holder(directory: str) -> None:
    """Hold the ledgers open until killed, so that no process that opens them is alone with them."""
    ledgers = [Ledger.open(path) for path in sorted((Path(directory) / "books").glob("*.ledger"))]
    (Path(directory) / "opened").write_text(str(len(ledgers)))
    signal.pause()


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
