"""A credit-default table with texts and blanks, at six banks, and what recipes reach on it: `results/credit.json`.

It takes some minutes. The table in docs/data.md is made of the results; a test compares them.

The rows are drawn from a public recipe, so that anybody can make the same files: 9 % of the customers default. Whether
they do depends on utilisation, late payments, income, employment and age, with an interaction that a linear model
misses.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hush.seeds import rng

ROWS: Mapping[str, int] = {"north": 4000, "south": 3000, "east": 2000, "west": 1500, "centre": 1000, "coast": 500}
SCHEMA: Mapping[str, Any] = {
    "label": "default",
    "classes": ["no", "yes"],
    "scale": "signed",
    "encoding": "one-hot",
    "columns": {
        "age": {"low": 18, "high": 90},
        "income": {"low": 0, "high": 150_000, "missing": "indicator"},
        "utilisation": {"low": 0, "high": 1.2},
        "late payments": {"low": 0, "high": 8},
        "years employed": {"low": 0, "high": 40, "missing": "indicator"},
        "home": {"categories": ["own", "mortgage", "rent"], "unknown": True},
        "education": {"categories": ["primary", "secondary", "degree"], "missing": "indicator"},
        "purpose": {"categories": ["car", "house", "debt", "business", "other"], "unknown": True},
    },
}
SEEDS, EPSILONS, DELTA, ROUNDS = 5, (1.0, 8.0), 1e-5, 30
RECIPES = ("fedavg", "dp-fedavg", "robust-hdp", "hush")
COMMAND = ".venv/bin/python -m scripts.credit_default"
_RESULTS = Path("results/credit.json")
_INTERCEPT = -3.8


def rows_of(bank: str, number: int, seed: int) -> list[list[Any]]:
    """The rows of one bank. Banks differ in their customers: the mean age and income depend on the bank's name."""
    draw = rng(seed, "credit", sorted(ROWS).index(bank) if bank in ROWS else 0)
    older, richer = draw.normal(0, 4), draw.normal(0, 0.15)
    age = np.clip(draw.normal(43 + older, 13, number), 18, 90).round()
    income = np.exp(draw.normal(10.5 + richer, 0.5, number)).round(-2)
    utilisation = np.clip(draw.beta(1.6, 2.6, number) * 1.2, 0, 1.2).round(3)
    late = np.minimum(draw.poisson(0.35 + 0.9 * (utilisation > 0.8)), 8)
    employed = np.clip(np.minimum(draw.exponential(7, number), age - 18), 0, 40).round(1)
    home = draw.choice(["own", "mortgage", "rent", "family"], number, p=[0.25, 0.35, 0.35, 0.05])
    education = draw.choice(["primary", "secondary", "degree"], number, p=[0.15, 0.5, 0.35])
    purpose = draw.choice(["car", "house", "debt", "business", "other"], number, p=[0.3, 0.2, 0.25, 0.1, 0.15])
    score = (
        _INTERCEPT
        + 3.0 * (utilisation - 0.45)
        + 0.75 * late
        - 0.9 * (np.log(income) - 10.5)
        - 0.06 * (employed - 6)
        + 0.5 * (home == "rent")
        - 0.4 * (education == "degree")
        + 0.6 * np.isin(purpose, ["debt", "business"])
        + 0.8 * ((age < 26) & (utilisation > 0.7))
    )
    default = draw.random(number) < 1 / (1 + np.exp(-score))
    blank_income, blank_employed, blank_education = (draw.random(number) < part for part in (0.08, 0.12, 0.1))
    return [
        [
            int(age[i]),
            "" if blank_income[i] else int(income[i]),
            float(utilisation[i]),
            int(late[i]),
            "" if blank_employed[i] else float(employed[i]),
            str(home[i]),
            "" if blank_education[i] else str(education[i]),
            str(purpose[i]),
            "yes" if default[i] else "no",
        ]
        for i in range(number)
    ]


def write_tables(directory: Path, seed: int = 0, rows: Mapping[str, int] = ROWS) -> list[Path]:
    """One CSV file for each bank; the files in order."""
    columns = [*SCHEMA["columns"], SCHEMA["label"]]
    paths = []
    for bank, number in rows.items():
        paths.append(directory / f"{bank}.csv")
        with paths[-1].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *rows_of(bank, number, seed)])
    return paths


def scored(paths: Sequence[Path], recipe: str, epsilon: float, seed: int, rounds: int = ROUNDS) -> Mapping[str, float]:
    """The pooled metrics of one run on held-out rows."""
    import hush

    config = {
        "seed": seed,
        "rounds": rounds,
        "privacy": {"budgets": epsilon, "delta": DELTA},
        "local": {"batch_size": 64, "lr": "auto"},
        "recipe": {"name": recipe},
    }
    result = hush.simulate(config, dataset=hush.data.clients(list(paths), schema=dict(SCHEMA)))
    pooled: Mapping[str, float] = result.metrics["pooled"]
    return pooled


def measure() -> dict[str, Any]:
    """Every recipe at every budget over the seeds: what `results/credit.json` holds."""
    from hush.engines.results import versions

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            for epsilon in (math.inf,) if recipe == "fedavg" else EPSILONS:
                runs = []
                for seed in range(SEEDS):
                    paths = write_tables(Path(folder), seed)
                    # A budget means nothing to a recipe without privacy.
                    runs.append(dict(scored(paths, recipe, min(epsilon, EPSILONS[-1]), seed)))
                    print(recipe, epsilon, seed, runs[-1], file=sys.stderr)
                found[recipe if math.isinf(epsilon) else f"{recipe}, epsilon {epsilon:g}"] = runs
    return {
        "command": COMMAND,
        "versions": versions(),
        "rows": dict(ROWS),
        "rounds": ROUNDS,
        "delta": DELTA,
        "seeds": list(range(SEEDS)),
        "runs": found,
    }


def table(results: Mapping[str, Any]) -> str:
    """The table in docs/data.md: mean and sample standard deviation over the seeds."""
    lines = ["| recipe | ROC AUC | average precision | log loss |", "|---|---|---|---|"]
    for name, runs in results["runs"].items():
        cells = []
        for metric in ("roc_auc", "average_precision", "log_loss"):
            values = [run[metric] for run in runs]
            cells.append(f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}")
        recipe, comma, rest = name.partition(",")
        lines.append(f"| `{recipe}`{comma}{rest} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    _RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
