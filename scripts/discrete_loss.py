"""Measure what discrete noise costs: mixed_budgets.toml with and without it, over seeds, into results/discrete.json.

Run it from the repository: `.venv/bin/python -m scripts.discrete_loss [SEEDS]`. Takes some minutes on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
SEEDS = 5
KINDS = {"floating_point": "false", "discrete": "true"}


def measured(seeds: list[int]) -> dict[str, Any]:
    """Accuracy (the mean over clients) of every run, and what the two kinds of noise differ by, seed by seed."""
    import hush
    from hush.config import load
    from hush.engines.results import versions

    file = ROOT / "scripts" / "mixed_budgets.toml"
    accuracy = {
        kind: [
            hush.simulate(file, overrides=[f"seed={seed}", f"privacy.discrete={value}"]).accuracy["mean"]
            for seed in seeds
        ]
        for kind, value in KINDS.items()
    }
    lost = [a - b for a, b in zip(accuracy["floating_point"], accuracy["discrete"], strict=True)]
    return {
        "command": f"python -m scripts.discrete_loss {len(seeds)}",
        "config": load(file).model_dump(),
        "seeds": seeds,
        "versions": versions(),
        "accuracy": {kind: _spread(values) for kind, values in accuracy.items()},
        "lost": _spread(lost),
    }


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "std": stdev(values), "each": values}


def main() -> None:
    """Write the file."""
    from hush.server.run_directory import to_json

    seeds = list(range(1, 1 + (int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)))
    (ROOT / "results" / "discrete.json").write_bytes(to_json(measured(seeds)))


if __name__ == "__main__":
    main()
