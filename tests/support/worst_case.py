"""The worst case for an audit: a client whose training reveals as much as the accountant allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from hush.auditing.target import Target, target
from hush.config import parse
from hush.data import from_arrays
from hush.data.client_data import with_persons
from hush.engines.setup import prepare
from hush.types import Relation


def worst_case(
    *,
    epsilon: float = 4.0,
    delta: float = 1e-3,
    relation: Relation = "add-remove",
    samples: int = 8,
    batch: int = 8,
    rounds: int = 1,
    secure: bool = False,
    rows: int = 1,
    rows_per_person: int = 1,
    recipe: Mapping[str, Any] | None = None,
    unit: str = "auto",
) -> Target:
    """Return a worst case: a linear model with two classes, and rows that share no inputs.

    With more than one of its `rows` to a person, persons are protected, and the canary is all rows of one. With the
    unit "client" the canary is all of its rows.

    With full batches its one noisy step per round is exactly the Gaussian mechanism, so a powerful audit must come
    close to the claim.
    """
    x = np.eye(2 * samples, 2 * samples + 1, dtype=np.float32).repeat(rows, 0)
    module = nn.Linear(2 * samples + 1, 2, bias=False)
    nn.init.zeros_(module.weight)
    config = parse(
        {
            "rounds": rounds,
            "data": {"clients": 1, "partition": "iid", "test_fraction": 0.5},
            "privacy": {
                "budgets": epsilon, "delta": delta, "relation": relation, "noise": "secure" if secure else "seeded",
                "rows_per_person": rows_per_person, "unit": unit,
            },
            "local": {"batch_size": batch, "lr": 0.01},
            "recipe": dict(recipe or {"name": "dp-fedavg"}),
        }
    )  # fmt: skip
    dataset = from_arrays(x, (np.arange(2 * samples) % 2).repeat(rows), name="worst-case", classes=2)
    if rows > 1:
        dataset = with_persons(dataset, np.arange(2 * samples).repeat(rows))
    return target(prepare(config, dataset=dataset, module=module))
