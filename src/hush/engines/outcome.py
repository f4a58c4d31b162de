"""What is written about a run: the manifest before it, the result after it."""

from __future__ import annotations

import platform
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hush.config import config_hash
from hush.engines.federation import Federation
from hush.engines.measures import by_group
from hush.privacy.ledger import Ledger
from hush.types import RoundRecord, RunResult


def versions() -> dict[str, str]:
    """Versions of all that can change a number."""
    found = {"python": platform.python_version()}
    for name in ("hush", "torch", "numpy", "scikit-learn", "dp-accounting"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def manifest(federation: Federation, command: str) -> dict[str, Any]:
    """What is known before the first round."""
    config = federation.config
    return {
        "config": config.model_dump(),
        "config_hash": config_hash(config),
        "run": uuid.uuid4().hex,
        "seed": config.seed,
        "recipe": federation.recipe_name,
        "not_covered": list(federation.not_covered()),
        "parameters": federation.model.layout.size,
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
    }


def outcome(federation: Federation, ledgers: Sequence[Ledger], records: Sequence[RoundRecord], ended: str) -> RunResult:
    """The result of a run whose last round is the last record."""
    last, config = records[-1], federation.config
    return RunResult(
        recipe=federation.recipe_name,
        dataset=federation.data.dataset.name,
        model=federation.model.name,
        rounds=last.round,
        seed=config.seed,
        accuracy={
            **spread(last.accuracy_per_client),
            **by_group(last.accuracy_per_client, [member.group for member in federation.members]),
        },
        accuracy_per_client=last.accuracy_per_client,
        loss=last.loss,
        guarantees=federation.guarantees(ledgers),
        not_covered=federation.not_covered(),
        ended=ended,
        seconds=last.seconds,
        versions=versions(),
        config_hash=config_hash(config),
        config=config.model_dump(),
    )


def spread(values: Sequence[float]) -> Mapping[str, float]:
    """Mean, smallest, largest and (population) standard deviation."""
    return {
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
        "std": statistics.pstdev(values),
    }
