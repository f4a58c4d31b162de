"""The names that a config can use."""

from __future__ import annotations

from typing import Any

from hush import models
from hush.config import LOSSES
from hush.data import budgets, datasets, partition
from hush.objective import METRICS, TARGETS
from hush.recipes import SLOTS, SUMMARIES


def catalogue() -> dict[str, Any]:
    """Recipes, slots, models, tasks, losses, metrics, datasets, partitions and budgets by name."""
    return {
        "recipes": dict(SUMMARIES),
        "slots": {slot: list(rules) for slot, rules in SLOTS.items()},
        "models": models.names(),
        "tasks": list(TARGETS),
        "losses": [name for name in LOSSES if name != "auto"],
        "metrics": list(METRICS),
        "datasets": list(datasets.NAMES),
        "partitions": list(partition.NAMES),
        "budgets": budgets.distribution_names(),
    }
