"""Comparison of several runs in lockstep: recipes on the same clients, or a grid of settings, over several seeds."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hush import report
from hush.config import Config, overridden, parse
from hush.engines import simulator
from hush.engines.fingerprint import Hashes
from hush.engines.results import spread, versions
from hush.engines.setup import load, prepare
from hush.recipes import RECIPES
from hush.server.run_directory import to_json, write_atomically
from hush.types import HushError, RoundRecord, RunResult, unknown

COMPARISON = "comparison.json"
Progress = Callable[[str, int, RoundRecord], None]


def compared(
    config: Config,
    variants: Mapping[str, Config],
    seeds: int,
    out: str | Path | None,
    resume: bool,
    data: str | None,
    command: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Run all variants over all seeds and summarise the results. With `resume`, finished rounds are not repeated."""
    if not isinstance(seeds, int) or seeds < 1:
        raise HushError(f"--seeds: expected an integer, 1 or more, found {seeds}")
    if resume and out is None:
        raise HushError("resume: requires out, the directory of the runs to resume")
    root = Path(out) if out is not None else None
    numbers = [config.seed + i for i in range(seeds)]
    runs = executed(variants, numbers, root, resume, data, command, progress)
    first = next(result for results in runs.values() for result in results)
    summary = {
        "command": command,
        "seeds": numbers,
        "config": config.model_dump(),
        "versions": versions(),
        "task": first.metrics["task"],
        "primary": first.primary,
        "recipes": {name: _gathered(name, results) for name, results in runs.items()},
    }
    if root is not None:
        write_atomically(root / COMPARISON, to_json(summary))
        # A page has some megabytes, so only the first seed's runs get one; `hush report` creates the others.
        for name in variants:
            report.write(root / path_of(name, numbers[0]))
        report.write(root)
    return summary


def executed(
    variants: Mapping[str, Config],
    numbers: Sequence[int],
    root: Path | None,
    resume: bool,
    data: str | None,
    command: str,
    progress: Progress | None,
) -> dict[str, list[RunResult]]:
    """Run every variant for each seed in lockstep, and return the results."""
    asked = [(name, seed) for name in variants for seed in numbers]
    configs = [variants[name].model_copy(update={"seed": seed}) for name, seed in asked]
    loaded: dict[str, Any] = {}
    arrays: simulator.Arrays = {}
    hashes: Hashes = {}

    def begun(name: str, one: Config) -> simulator.Execution:
        # Files are read once, and clients with the same rows share them in memory.
        key = f"{one.data.model_dump_json()} {one.seed}"
        if key not in loaded:
            loaded[key] = load(one, data)
        path = root / path_of(name, one.seed) if root is not None else None

        def told(record: RoundRecord) -> None:
            if progress is not None:
                progress(name, one.seed, record)

        federation = prepare(one, dataset=loaded[key])
        return simulator.execution(
            federation, path, resume=resume, command=command, progress=told, arrays=arrays, hashes=hashes
        )

    executions = [begun(name, one) for (name, _), one in zip(asked, configs, strict=True)]
    runs: dict[str, list[RunResult]] = {name: [] for name in variants}
    for (name, _), result in zip(asked, simulator.lockstep(executions), strict=True):
        runs[name].append(result)
    return runs


def by_recipe(config: Config, recipes: Sequence[str]) -> dict[str, Config]:
    """Return a variant for each recipe; slots in the file apply only to the recipe that the file names."""
    if not recipes:
        raise HushError(f"--recipes: expected names separated by commas; accepted: {', '.join(RECIPES)}")
    for recipe in recipes:
        if recipe not in RECIPES:
            raise unknown("--recipes", "recipe", recipe, RECIPES)
    if len(set(recipes)) != len(recipes):
        raise HushError(
            f"--recipes: duplicate names: {', '.join(sorted({r for r in recipes if recipes.count(r) > 1}))}"
        )
    own = config.recipe.get("name")
    return {
        name: config.model_copy(update={"recipe": config.recipe if own == name else {"name": name}}) for name in recipes
    }


def by_grid(config: Config, grid: Sequence[str]) -> dict[str, Config]:
    """Return a variant for each combination of `key=value,value,...` entries."""
    if not grid:
        raise HushError("--grid: expected KEY=VALUE,VALUE,..., such as local.lr=0.01,0.02; can be repeated")
    axes = [[f"{key}={value}" for value in values] for key, values in map(_axis, grid)]
    raw = config.model_dump(exclude_unset=True)
    return {", ".join(chosen): parse(overridden(raw, chosen)) for chosen in itertools.product(*axes)}


def _axis(entry: str) -> tuple[str, list[str]]:
    """Split `key=a,b` at the commas that are outside of brackets and quotes."""
    key, equals, text = entry.partition("=")
    values = [value.strip() for value in re.findall(r'(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|[^,])+', text)]
    if not equals or not key.strip() or not values or not all(values):
        raise HushError(f"--grid {entry}: expected KEY=VALUE,VALUE,..., such as local.lr=0.01,0.02")
    if len(set(values)) != len(values):
        raise HushError(f"--grid {entry}: duplicate value")
    return key.strip(), values


def path_of(name: str, seed: int) -> str:
    """Return the directory of a run within that of the comparison."""
    plain = re.sub(r"[^A-Za-z0-9.=_-]+", "_", name).strip("._") or "run"
    return f"{plain}/seed-{seed}"


def _gathered(name: str, results: Sequence[RunResult]) -> dict[str, Any]:
    return {
        **({"accuracy": spread([result.accuracy["mean"] for result in results])} if results[0].accuracy else {}),
        "score": spread([result.score["mean"] for result in results]),
        "metrics": _means([result.metrics["mean"] for result in results]),
        "not_covered": list(results[0].not_covered),
        "warnings": list(dict.fromkeys(text for result in results for text in result.warnings)),
        "runs": [
            {
                "seed": result.seed,
                "path": path_of(name, result.seed),
                **({"accuracy": dict(result.accuracy)} if result.accuracy else {}),
                "score": dict(result.score),
                "worst": result.metrics["worst"][result.primary],
                "loss": result.loss,
                "epsilon_spent_max": max(g.epsilon_spent or 0.0 for g in result.guarantees),
                "seconds": result.seconds,
                "ended": result.ended,
                "trained": result.trained,
            }
            for result in results
        ],
    }


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the seeds for which it is defined."""
    found = {name: [values[name] for values in each if math.isfinite(values[name])] for name in each[0]}
    return {name: statistics.fmean(values) if values else math.nan for name, values in found.items()}
