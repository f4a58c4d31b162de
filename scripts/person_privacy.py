"""Person privacy: persons in place of rows, against rows and group privacy, at the same guarantee for a person.

MNIST is given to persons of twenty rows each, of two digits. The results go into results/persons.json. Run it from the
repository with HUSH_DATA set: `OMP_NUM_THREADS=1 .venv/bin/python -m scripts.person_privacy --seeds 3`. `--table`
prints the file as the table of docs/persons.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "persons.json"
ROWS, CLIENTS, DELTA = 20, 5, 1e-5
EPSILONS = (1.0, 4.0, 8.0)
CONFIG: dict[str, Any] = {
    "rounds": 20,
    "data": {"clients": CLIENTS, "partition": "iid"},
    "model": {"name": "logreg"},
    "privacy": {"delta": DELTA},
    "recipe": {"name": "dp-fedavg"},
}
# How a person is protected, and what is changed in the config for it; batches are of as many rows or persons.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "persons, one row each": {"privacy": {"unit": "person"}, "local": {"batch_size": 64}},
    "persons, four rows each": {"privacy": {"unit": "person", "rows_per_person": 4}, "local": {"batch_size": 64}},
    "persons, all twenty rows": {"privacy": {"unit": "person", "rows_per_person": 20}, "local": {"batch_size": 240}},
    "rows and group privacy": {"privacy": {"unit": "row"}, "local": {"batch_size": 64}},
    "rows and group privacy, large batches": {"privacy": {"unit": "row"}, "local": {"batch_size": 1024}},
}


def of_rows(epsilon: float, delta: float, rows: int) -> tuple[float, float]:
    """The guarantee for a row that gives this one for that many rows, by group privacy (Dwork and Roth 2014, 2.2)."""
    each = epsilon / rows
    return each, delta * math.expm1(each) / math.expm1(epsilon)


@cache
def people() -> Any:
    """The training part of MNIST, whose rows belong to persons of twenty rows of two digits."""
    import numpy as np

    from hush.data import datasets
    from hush.data.client_data import with_persons
    from hush.seeds import rng

    data = datasets.load("mnist", root=None)
    gen = rng(0, "people")
    order = gen.permutation(len(data.y))
    # Rows by digit, dealt out in halves of persons: each person gets two halves at random.
    by_digit = order[np.argsort(data.y[order], kind="stable")]
    half = ROWS // 2
    halves = gen.permutation(len(by_digit) // half)
    keys = np.empty(len(by_digit), np.int64)
    for place, which in enumerate(halves):
        keys[by_digit[which * half : (which + 1) * half]] = place // 2
    return with_persons(data, keys)


def config_of(way: str, epsilon: float, seed: int) -> dict[str, Any]:
    """The config of one run, whose guarantee for a person of twenty rows is this epsilon at `DELTA`."""
    changes = WAYS[way]
    budget, delta = (epsilon, DELTA) if changes["privacy"]["unit"] == "person" else of_rows(epsilon, DELTA, ROWS)
    privacy = {**CONFIG["privacy"], **changes["privacy"], "budgets": budget, "delta": delta}
    return {**CONFIG, "seed": seed, "privacy": privacy, "local": dict(changes["local"])}


def measured(seeds: int) -> dict[str, Any]:
    """The accuracy by way, epsilon and seed."""
    import hush

    found: dict[str, Any] = {}
    for way in WAYS:
        for epsilon in EPSILONS:
            runs = [hush.simulate(config_of(way, epsilon, seed), dataset=people()) for seed in range(seeds)]
            found.setdefault(way, {})[f"{epsilon:g}"] = [round(run.accuracy["mean"], 4) for run in runs]
            print(way, epsilon, found[way][f"{epsilon:g}"], flush=True)
    return found


def table(stored: Mapping[str, Any]) -> list[str]:
    """The lines of the table in docs/persons.md."""
    heads = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| training | {heads} |", "|---|" + "---|" * len(EPSILONS)]
    for way, accuracies in stored["accuracy"].items():
        cells = [
            f"{100 * statistics.fmean(values):.1f} % ± {100 * statistics.stdev(values):.1f}"
            for values in (accuracies[f"{epsilon:g}"] for epsilon in EPSILONS)
        ]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table(json.loads(RESULTS.read_text()))))
        return
    from hush.engines.results import versions

    stored = {
        "command": f"OMP_NUM_THREADS=1 .venv/bin/python -m scripts.person_privacy --seeds {asked.seeds}",
        "versions": versions(),
        "config": CONFIG,
        "ways": WAYS,
        "rows_per_person": ROWS,
        "seeds": asked.seeds,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "accuracy": measured(asked.seeds),
    }
    RESULTS.write_text(json.dumps(stored, indent=2) + "\n")


if __name__ == "__main__":
    main()
