"""Several recipes on the same clients, data and budgets, over several seeds: one table, one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hush import report
from hush.config import Config
from hush.engines import cohort
from hush.engines.federation import prepare
from hush.engines.outcome import spread, versions
from hush.recipes import RECIPES
from hush.server.rundir import to_json, write_atomically
from hush.types import HushError, RoundRecord, RunResult, unknown

COMPARISON = "comparison.json"
Progress = Callable[[str, int, RoundRecord], None]


def compared(
    config: Config,
    recipes: Sequence[str],
    seeds: int,
    out: str | Path | None,
    resume: bool,
    data: str | None,
    command: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Run them all and gather the outcome. With `resume`, finished runs are not run again."""
    _check(recipes, seeds)
    root = Path(out) if out is not None else None
    numbers = [config.seed + i for i in range(seeds)]
    runs: dict[str, list[RunResult]] = {}
    for recipe in recipes:
        runs[recipe] = []
        for seed in numbers:
            one = config.model_copy(update={"seed": seed, "recipe": _recipe(config, recipe)})
            path = root / _name(recipe, seed) if root is not None else None
            runs[recipe].append(_one(one, recipe, path, resume, data, command, progress))
    summary = {
        "command": command,
        "seeds": numbers,
        "config": config.model_dump(),
        "versions": versions(),
        "recipes": {recipe: _gathered(recipe, results) for recipe, results in runs.items()},
    }
    if root is not None:
        write_atomically(root / COMPARISON, to_json(summary))
        # A page is some megabytes, so only the first seed's runs get their own; `hush report` makes the others.
        for recipe in recipes:
            report.write(root / _name(recipe, numbers[0]))
        report.write(root)
    return summary


def _one(
    config: Config,
    recipe: str,
    path: Path | None,
    resume: bool,
    data: str | None,
    command: str,
    progress: Progress | None,
) -> RunResult:
    def told(record: RoundRecord) -> None:
        if progress is not None:
            progress(recipe, config.seed, record)

    federation = prepare(config, root=data)
    return cohort.run(federation, path, resume=resume, command=command, progress=told)


def _recipe(config: Config, name: str) -> dict[str, Any]:
    """A named recipe; the file's own slots stay with the recipe that the file names."""
    return config.recipe if config.recipe.get("name") == name else {"name": name}


def _name(recipe: str, seed: int) -> str:
    return f"{recipe}/seed-{seed}"


def _gathered(recipe: str, results: Sequence[RunResult]) -> dict[str, Any]:
    return {
        "accuracy": spread([result.accuracy["mean"] for result in results]),
        "not_covered": list(results[0].not_covered),
        "runs": [
            {
                "seed": result.seed,
                "path": _name(recipe, result.seed),
                "accuracy": dict(result.accuracy),
                "loss": result.loss,
                "epsilon_spent_max": max(g.epsilon_spent or 0.0 for g in result.guarantees),
                "seconds": result.seconds,
            }
            for result in results
        ],
    }


def _check(recipes: Sequence[str], seeds: int) -> None:
    if seeds < 1:
        raise HushError(f"--seeds: expected 1 or more, found {seeds}")
    if not recipes:
        raise HushError(f"--recipes: expected names separated by commas; accepted: {', '.join(RECIPES)}")
    for recipe in recipes:
        if recipe not in RECIPES:
            raise unknown("--recipes", "recipe", recipe, RECIPES)
    if len(set(recipes)) != len(recipes):
        raise HushError(f"--recipes: named twice: {', '.join(sorted({r for r in recipes if recipes.count(r) > 1}))}")
