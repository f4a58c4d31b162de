"""Few rounds: `hush` with the automatic rate against other private recipes at several rates.

The results go into results/few-rounds.json. Run it from the repository, with HUSH_DATA set for the settings on images:
`OMP_NUM_THREADS=1 .venv/bin/python -m scripts.few_rounds digits digits-mlp --seeds 3`. What is measured replaces what
the file has of the same setting and rounds; `--table` prints the file as the table of docs/recipes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "few-rounds.json"
RATES: tuple[str | float, ...] = ("auto", 0.02, 0.1, 0.5)
OTHERS = ("dp-fedavg", "dp-fedsgd", "weiavg", "pfa", "robust-hdp", "dp-scaffold")
SHOWN = ("dp-fedavg", "weiavg", "robust-hdp")  # at the automatic rate, in columns of their own
_PRIVACY = {"delta": 1e-4, "clip": 1.0}
_IMAGES = {"batch_size": [16, 64, 128]}
_DIGITS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 12},
    "privacy": {"budgets": "dist2", **_PRIVACY},
    "local": {"batch_size": [8, 16, 32, 64]},
}

# Settings on images use so many rows, and their scattering features under a linear model, as `scattering-linear` does.
ROWS = {"fashion-mnist": 15_000, "mnist": 12_000}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fashion-mnist": {
        "data": {"clients": 15, "partition": {"name": "shards", "classes": 6}},
        "privacy": {"budgets": "dist4", **_PRIVACY},
        "local": _IMAGES,
    },
    "mnist": {"data": {"clients": 12}, "privacy": {"budgets": "dist6", **_PRIVACY}, "local": _IMAGES},
    "digits": {**_DIGITS, "model": {"name": "logreg"}},
    "digits-mlp": {
        **_DIGITS,
        "model": {"name": "mlp", "hidden": 32},
        "privacy": {"budgets": [1.0, 8.0] * 6, **_PRIVACY},
    },
    # Settings with little noise, which had no part in choosing anything before ADR 60.
    "tabular": {
        "data": {"clients": 6},
        "model": {"name": "logreg"},
        "privacy": {"budgets": [0.5, 1.0, 1.0, 2.0, 4.0, 8.0], "delta": 1e-5, "clip": 1.0},
        "local": {"batch_size": 32},
    },
    "two-moons": {
        "data": {"clients": 8},
        "model": {"name": "mlp", "hidden": 32},
        "privacy": {"budgets": [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0], "delta": 1e-5, "clip": 1.0},
        "local": {"batch_size": 32},
    },
}


def measured(setting: str, rounds: int, seeds: Sequence[int]) -> dict[str, Any]:
    """The accuracy of each recipe and rate, by seed."""
    found: dict[str, Any] = {"hush": {"auto": _accuracies(setting, rounds, seeds, "hush", "auto")}}
    for recipe in OTHERS:
        found[recipe] = {str(rate): _accuracies(setting, rounds, seeds, recipe, rate) for rate in RATES}
    return {"seeds": list(seeds), "accuracy": found}


def _accuracies(setting: str, rounds: int, seeds: Sequence[int], recipe: str, rate: str | float) -> list[float]:
    import hush

    config = SETTINGS[setting]
    dataset = features(setting) if setting in ROWS else MADE[setting]() if setting in MADE else None
    return [
        round(
            hush.simulate(
                {**config, "seed": seed, "rounds": rounds, "local": {**config["local"], "lr": rate}},
                recipe=recipe,
                dataset=dataset,
            ).accuracy["mean"],
            4,
        )
        for seed in seeds
    ]


@cache
def features(name: str) -> object:
    """Scattering features of the first rows of an image dataset, in random order."""
    import numpy as np
    import torch

    from hush.config import parse
    from hush.data import from_arrays
    from hush.engines.setup import load
    from hush.models import build_model

    config = parse({"data": {"name": name}, "model": {"name": "scattering-linear"}})
    data = load(config, os.environ.get("HUSH_DATA")).dataset
    rows = np.random.default_rng(0).permutation(len(data.y))[: ROWS[name]]
    model = build_model(config.model, tuple(data.x.shape[1:]), data.classes, 0)
    assert model.features is not None
    return from_arrays(model.features(torch.from_numpy(data.x[rows])).flatten(1).numpy(), data.y[rows])


@cache
def tabular() -> object:
    """Made rows of 25 correlated columns, whose class of three follows a linear model with noise."""
    import numpy as np

    from hush.data import from_arrays

    draw = np.random.default_rng(5)
    x = (0.4 * draw.normal(size=(9000, 25)) @ draw.normal(size=(25, 25)) + draw.normal(size=25)).astype("float32")
    logits = x @ (0.6 * draw.normal(size=(25, 3)))
    return from_arrays(x, (logits + draw.gumbel(size=logits.shape)).argmax(1))


@cache
def two_moons() -> object:
    """Two half circles in the plane, with noise."""
    from sklearn.datasets import make_moons

    from hush.data import from_arrays

    x, y = make_moons(6000, noise=0.2, random_state=3)
    return from_arrays(x.astype("float32"), y)


MADE: Mapping[str, Callable[[], object]] = {"tabular": tabular, "two-moons": two_moons}


def table(results: Mapping[str, Any]) -> str:
    """Mean accuracies in percent: a row for each setting and number of rounds."""
    autos = " | ".join(f"{other}, auto" for other in SHOWN)
    lines = [f"| setting | rounds | seeds | hush | best other (its rate) | {autos} |"]
    lines.append("|---|---|---|---|---|" + "---|" * len(SHOWN))
    for setting, by_rounds in results["settings"].items():
        for rounds, measured in by_rounds.items():
            means = {(r, rate): _mean(v) for r, rates in measured["accuracy"].items() for rate, v in rates.items()}
            own = means.pop(("hush", "auto"))
            recipe, rate = max(means, key=lambda each: means[each])
            autos = " | ".join(f"{100 * means[other, 'auto']:.1f}" for other in SHOWN)
            best = f"{100 * means[recipe, rate]:.1f} ({recipe}, {rate})"
            lines.append(f"| {setting} | {rounds} | {len(measured['seeds'])} | {100 * own:.1f} | {best} | {autos} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Measure the settings that are asked for, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("settings", nargs="*", choices=[*SETTINGS, []])
    parser.add_argument("--rounds", default="3,6,12,30")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print the table and measure nothing")
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"settings": {}}
    if asked.table:
        print(table(known))
        return
    from hush.engines.results import versions

    for rounds in map(int, asked.rounds.split(",")):
        for setting in asked.settings:
            known["settings"].setdefault(setting, {})[str(rounds)] = measured(
                setting, rounds, range(1, asked.seeds + 1)
            )
            ordered = {
                name: dict(sorted(known["settings"][name].items(), key=lambda each: int(each[0])))
                for name in SETTINGS
                if name in known["settings"]
            }
            known = {
                "command": "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.few_rounds SETTING --rounds N --seeds N",
                "versions": versions(),
                "configs": SETTINGS,
                "rows": ROWS,
                "settings": ordered,
            }
            text = json.dumps(known, indent=2, ensure_ascii=False)
            text = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
            RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
