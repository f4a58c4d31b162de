"""The names that a config can use."""

from __future__ import annotations

from typing import Any

from hush import models
from hush.data import budgets, datasets, partition
from hush.recipes import SLOTS, SUMMARIES


def catalogue() -> dict[str, Any]:
    """Return recipes, slots, models, datasets, partitions and budgets by name."""
    return {
        "recipes": dict(SUMMARIES),
        "slots": {slot: list(rules) for slot, rules in SLOTS.items()},
        "models": models.names(),
        "datasets": list(datasets.NAMES),
        "partitions": list(partition.NAMES),
        "budgets": budgets.distribution_names(),
    }
