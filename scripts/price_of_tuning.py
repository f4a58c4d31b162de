"""Price of tuning: what choosing a learning rate costs inside every client's budget, on MNIST.

The results go into results/tuning.json. Run it from the repository with HUSH_DATA set:
`OMP_NUM_THREADS=1 .venv/bin/python -m scripts.price_of_tuning --seeds 5`. `--table` prints the file as the table of
docs/tuning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "tuning.json"
CONFIG: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "mnist", "clients": 10, "partition": "iid"},
    "model": {"name": "logreg"},
    "privacy": {"budgets": [0.5] * 4 + [1.0] * 4 + [4.0] * 2, "delta": 1e-5},
    "local": {"batch_size": 64, "lr": 0.5},
    "recipe": {"name": "hush"},
}
GRIDS: Mapping[str, tuple[float, ...]] = {
    "2": (0.05, 1.0),
    "4": (0.02, 0.1, 0.5, 2.0),
    "8": (0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0),
}


def measured(seeds: int) -> dict[str, Any]:
    """What each grid came to, by its size: a list over the seeds."""
    from hush import Simulation

    found: dict[str, Any] = {}
    for name, rates in GRIDS.items():
        found[name] = []
        for seed in range(seeds):
            simulation = Simulation(config={**CONFIG, "seed": seed})
            tuning = simulation.sweep({"lr": list(rates)}, within_budget=True, progress=False).facts["tuning"]
            plain = simulation.sweep({"lr": list(rates)}, progress=False).facts["recipes"]
            scores = {each["name"]: each["score"] for each in tuning["candidates"]}
            entry = {
                "seed": seed,
                "chosen": tuning["chosen"],
                "score": scores[tuning["chosen"]],
                "best_score": max(scores.values()),
                "whole_score": tuning["whole_score"],
                "best_whole_score": max(each["score"]["mean"] for each in plain.values()),
                "noise_ratio": statistics.fmean(tuning["noise_ratio"]),
                "score_error": tuning["score_error"],
                "most_spent": max(s / b for s, b in zip(tuning["epsilons"], tuning["budgets"], strict=True)),
            }
            found[name].append({key: round(v, 4) if isinstance(v, float) else v for key, v in entry.items()})
            print(name, found[name][-1], flush=True)
    return {"config": CONFIG, "grids": {name: list(rates) for name, rates in GRIDS.items()}, "runs": found}


def table(stored: Mapping[str, Any]) -> list[str]:
    """The lines of the table in docs/tuning.md."""
    lines = [
        "| candidates | noise of training | accuracy, chosen inside the budgets | the same settings, known beforehand "
        "| best of a sweep that nobody pays for | chosen 3 points or more below the best |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in stored["runs"].items():
        wrong = sum(run["score"] < run["best_score"] - 0.03 for run in runs)
        cells = [f"{100 * statistics.fmean(run[key] for run in runs):.1f} %" for key in _SCORES]
        ratio = statistics.fmean(run["noise_ratio"] for run in runs)
        lines.append(f"| {name} | {ratio:.2f} times | {' | '.join(cells)} | {wrong} of {len(runs)} |")
    return lines


_SCORES = ("score", "whole_score", "best_whole_score")


def main() -> None:
    """Measure and store, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print the table of what is stored")
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(json.loads(RESULTS.read_text()))))
        return
    if "HUSH_DATA" not in os.environ:
        parser.error("HUSH_DATA: not set; accepted: the directory with the public dataset files")
    RESULTS.write_text(json.dumps(measured(given.seeds), indent=1) + "\n")


if __name__ == "__main__":
    main()
