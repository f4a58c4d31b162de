"""The client as the unit: what noise on whole updates costs, for few and for many clients.

The results go into results/client-unit.json. Run it from the repository with HUSH_DATA set:
`OMP_NUM_THREADS=1 .venv/bin/python -m scripts.client_unit --seeds 3`. `--table` prints the table of docs/persons.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "client-unit.json"
CLIENTS, UNITS = (10, 100, 1000), ("row", "client")
CONFIG: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "mnist", "partition": "iid"},
    "model": {"name": "logreg"},
    "local": {"batch_size": 16},
    "privacy": {"budgets": 8.0, "delta": 1e-4},
    "recipe": {"name": "dp-fedavg"},
}


def measured(seeds: int) -> dict[str, Any]:
    """The accuracy by unit, number of clients and seed."""
    import hush

    found: dict[str, Any] = {}
    for unit in UNITS:
        for clients in CLIENTS:
            privacy = {**CONFIG["privacy"], "unit": unit}
            config = {**CONFIG, "privacy": privacy, "data": {**CONFIG["data"], "clients": clients}}
            runs = [hush.simulate({**config, "seed": seed}) for seed in range(seeds)]
            found.setdefault(unit, {})[str(clients)] = [round(run.accuracy["mean"], 4) for run in runs]
            print(unit, clients, found[unit][str(clients)], flush=True)
    return found


def table(stored: Mapping[str, Any]) -> list[str]:
    """The lines of the table in docs/persons.md."""
    lines = ["| unit | " + " | ".join(f"{clients:,} clients" for clients in CLIENTS) + " |"]
    lines.append("|---|" + "---|" * len(CLIENTS))
    for unit, accuracies in stored["accuracy"].items():
        means = [f"{100 * statistics.fmean(accuracies[str(clients)]):.1f} %" for clients in CLIENTS]
        lines.append(f"| {unit} | {' | '.join(means)} |")
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
        "command": f"OMP_NUM_THREADS=1 .venv/bin/python -m scripts.client_unit --seeds {asked.seeds}",
        "versions": versions(),
        "config": CONFIG,
        "seeds": asked.seeds,
        "accuracy": measured(asked.seeds),
    }
    RESULTS.write_text(json.dumps(stored, indent=2) + "\n")


if __name__ == "__main__":
    main()
