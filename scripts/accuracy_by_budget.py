"""Accuracy by budget: `hush`, the papers' recipes and no privacy, into results/accuracy-by-budget.json and the figure.

Ten clients share the digits; the budgets of `hush demo` are multiplied by a factor from 1/4 to 8. Every recipe but
`hush` is run at several learning rates, and its best one for the budget is reported, as nobody could choose it
beforehand; `hush` runs at the automatic rate alone. Run it from the repository:
`OMP_NUM_THREADS=1 .venv/bin/python -m scripts.accuracy_by_budget --measure`, a few minutes on one core. Without
`--measure` the figure docs/accuracy.svg is drawn again from the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scripts.accuracy_figure import Curve, figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "accuracy-by-budget.json"
FIGURE = ROOT / "docs" / "accuracy.svg"
SEEDS = 5
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
RATES: tuple[str | float, ...] = ("auto", 0.1, 0.3, 1.0)
OTHERS = ("robust-hdp", "weiavg", "pfa", "dp-fedavg", "dp-scaffold", "minimum")
REFERENCE = "fedavg"
LABELS = {"hush": "hush (ours)", "fedavg": "no privacy"}


def measured() -> dict[str, Any]:
    """The accuracy of each recipe, rate and factor by seed; without privacy there is nothing to multiply."""
    import hush
    from hush.config import load
    from hush.engines.results import versions

    config = load(ROOT / "src" / "hush" / "demo.toml")
    budgets = list(config.privacy.budgets)

    def accuracies(recipes: tuple[str, ...], rate: str | float, factor: float) -> dict[str, list[float]]:
        changed = {
            **config.model_dump(exclude_unset=True),
            "local": {**config.local.model_dump(exclude_unset=True), "lr": rate},
            "privacy": {**config.privacy.model_dump(exclude_unset=True), "budgets": [factor * b for b in budgets]},
        }
        found = hush.compare(changed, recipes=recipes, seeds=SEEDS)["recipes"]
        return {name: [round(run["accuracy"]["mean"], 4) for run in entry["runs"]] for name, entry in found.items()}

    by_factor = {}
    for factor in FACTORS:
        by_recipe: dict[str, dict[str, list[float]]] = {name: {} for name in ("hush", *OTHERS)}
        for rate in RATES:
            for name, values in accuracies(("hush", *OTHERS) if rate == "auto" else OTHERS, rate, factor).items():
                by_recipe[name][str(rate)] = values
        by_factor[f"{factor:g}"] = by_recipe
    return {
        "command": "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.accuracy_by_budget --measure",
        "versions": versions(),
        "config": config.model_dump(),
        "seeds": [config.seed + number for number in range(SEEDS)],
        "reference": {str(rate): accuracies((REFERENCE,), rate, 1.0)[REFERENCE] for rate in RATES},
        "factors": by_factor,
    }


def best(rates: Mapping[str, list[float]]) -> tuple[str, list[float]]:
    """The rate with the highest mean accuracy, and its accuracies."""
    return max(rates.items(), key=lambda each: mean(each[1]))


def curves(results: Mapping[str, Any]) -> list[Curve]:
    """A curve for each recipe, and a level for no privacy: percent by factor."""
    drawn = []
    for name in ("hush", *OTHERS):
        each = [best(by_recipe[name])[1] for by_recipe in results["factors"].values()]
        drawn.append(
            Curve(
                label=LABELS.get(name, name),
                kind="own" if name == "hush" else "other",
                values=tuple(100 * mean(values) for values in each),
                spread=tuple(100 * stdev(values) for values in each),
            )
        )
    level = 100 * mean(best(results["reference"])[1])
    return [*drawn, Curve(label=LABELS[REFERENCE], kind="reference", values=(level,) * len(results["factors"]))]


def table(results: Mapping[str, Any]) -> str:
    """The figure as a Markdown table: mean accuracy in percent and sample standard deviation over the seeds."""
    middle = float(sorted(results["config"]["privacy"]["budgets"])[4])
    factors = [float(factor) for factor in results["factors"]]
    head = " | ".join(f"{factor * middle:g}" for factor in factors)
    lines = [f"| recipe, by the epsilon of the middle clients | {head} |", "|---|" + "---|" * len(factors)]
    for curve in curves(results):
        cells = [f"{value:.1f}" for value in curve.values]
        if curve.spread:
            cells = [f"{cell} ± {spread:.1f}" for cell, spread in zip(cells, curve.spread, strict=True)]
        name = f"`{curve.label.split()[0]}`" if curve.kind != "reference" else f"no privacy (`{REFERENCE}`)"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drawing(results: Mapping[str, Any]) -> str:
    """The figure as SVG."""
    middle = float(sorted(results["config"]["privacy"]["budgets"])[4])
    return figure(curves(results), [float(factor) * middle for factor in results["factors"]])


def main() -> None:
    """Measure if asked to, and draw."""
    if "--measure" in sys.argv[1:]:
        text = json.dumps(measured(), indent=2)
        RESULTS.write_text(_compact(text) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    FIGURE.write_text(drawing(results), encoding="utf-8")
    print(table(results))


def _compact(text: str) -> str:
    import re

    return re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)


if __name__ == "__main__":
    main()
