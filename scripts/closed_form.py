"""The recipe `closed-form` against `hush` on the same fixed features of MNIST, at several budgets.

20 clients share the 60,000 images at random and have the same epsilon. The features are those of the encoder that
`scripts/public_encoder.py` pretrains on letters, and scattering. Run it from the repository, with HUSH_DATA set and
emnist-letters.safetensors in the working directory: `OMP_NUM_THREADS=1 .venv/bin/python -m scripts.closed_form` writes
results/closed-form.json, and `--table` prints it as the table of docs/encoders.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "closed-form.json"
COMMAND = "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.closed_form"
EPSILONS, SEEDS, CLIENTS, DELTA = (0.1, 0.5, 1.0, 2.0, 8.0), (0, 1, 2), 20, 1e-4
ENCODER = {"encoder": "hush.reproduce.nets:letter_encoder", "weights": "emnist-letters.safetensors"}
# Recipe, rounds, and model.
ARMS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "letters, closed-form": ("closed-form", 1, ENCODER),
    "letters, hush": ("hush", 200, ENCODER),
    "scattering, closed-form": ("closed-form", 1, {"name": "scattering-linear"}),
}


def measured(arm: str, epsilon: float, seed: int) -> tuple[float, float]:
    """The mean accuracy of the clients, and the seconds of the run, without the features if they are on disk."""
    import hush

    recipe, rounds, model = ARMS[arm]
    config = {
        "seed": seed, "rounds": rounds, "data": {"name": "mnist", "clients": CLIENTS}, "model": dict(model),
        "privacy": {"budgets": epsilon, "delta": DELTA, "clip": 1.0}, "recipe": {"name": recipe},
    }  # fmt: skip
    began = time.perf_counter()
    result = hush.simulate(config)
    return result.accuracy["mean"], time.perf_counter() - began


def table(found: Mapping[str, Any]) -> list[str]:
    """The lines of the table of docs/encoders.md: percent, mean and sample standard deviation over the seeds."""
    lines = [
        "| features, recipe | rounds | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |",
        "|---|---|" + "---|" * len(EPSILONS),
    ]
    for arm, (_, rounds, _) in ARMS.items():
        cells = []
        for epsilon in EPSILONS:
            each = [100 * value for value in found["accuracy"][arm][f"{epsilon:g}"]]
            cells.append(f"{statistics.fmean(each):.2f} ± {statistics.stdev(each):.2f}")
        lines.append(f"| {arm} | {rounds} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure every arm, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the measured file as a table")
    if parser.parse_args().table:
        print("\n".join(table(json.loads(RESULTS.read_bytes()))))
        return
    found = json.loads(RESULTS.read_bytes()) if RESULTS.is_file() else {"accuracy": {}, "seconds": {}}
    accuracy, seconds = found["accuracy"], found["seconds"]
    for arm in ARMS:
        for epsilon in EPSILONS:
            if f"{epsilon:g}" in accuracy.get(arm, {}):
                continue  # of an earlier run that was interrupted
            runs = [measured(arm, epsilon, seed) for seed in SEEDS]
            accuracy.setdefault(arm, {})[f"{epsilon:g}"] = [round(value, 6) for value, _ in runs]
            # The least: the first run of an arm computes the features.
            seconds[arm] = round(min([seconds.get(arm, runs[0][1]), *(spent for _, spent in runs)]), 2)
            print(arm, epsilon, accuracy[arm][f"{epsilon:g}"], seconds[arm], flush=True)
            RESULTS.write_text(json.dumps(_described(accuracy, seconds), indent=2) + "\n", encoding="utf-8")


def _described(accuracy: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    arms = {arm: {"recipe": r, "rounds": n, "model": dict(m)} for arm, (r, n, m) in ARMS.items()}
    return {"command": COMMAND, "seeds": SEEDS, "clients": CLIENTS, "delta": DELTA, "arms": arms,
            "accuracy": accuracy, "seconds": seconds}  # fmt: skip


if __name__ == "__main__":
    main()
