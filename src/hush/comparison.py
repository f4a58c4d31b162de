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
from hush.callbacks import Callback
from hush.config import Config, assigned, given, located, parse, text_value
from hush.engines import simulator
from hush.engines.fingerprint import Hashes
from hush.engines.results import spread, versions
from hush.engines.setup import Federation, load, prepare
from hush.recipes import RECIPES, as_table
from hush.recipes.from_config import SYNONYMS
from hush.server.run_directory import saved_round, to_json, write_atomically
from hush.stop_request import clear_stop, stop_requested
from hush.types import HushError, RoundRecord, RunInterrupted, RunResult, unknown

COMPARISON = "comparison.json"
_PAGES = 60
Progress = Callable[[str, int, RoundRecord], None]
Observers = Callable[[str, int], Sequence[Callback]]
Prepare = Callable[[Config], Federation]
Axes = Mapping[str, Sequence[tuple[str, Any]]]  # for each dotted key its values, each behind its label


def compared(
    config: Config,
    variants: Mapping[str, Config],
    seeds: int,
    out: str | Path | None,
    resume: bool,
    federation_of: Prepare,
    command: str,
    progress: Progress | None,
    axes: Axes | None = None,
    callbacks: Observers | None = None,
) -> dict[str, Any]:
    """Run all variants over all seeds and summarise the results. With `resume`, finished rounds are not repeated.

    `axes` are those of a sweep, whose variants are their combinations; `callbacks` gives those of a variant and seed.
    """
    check_seeds(seeds)
    if resume and out is None:
        raise HushError("resume: requires out, the directory of the runs to resume")
    root = Path(out) if out is not None else None
    numbers = [config.seed + i for i in range(seeds)]
    runs = executed(variants, numbers, root, resume, federation_of, command, progress, callbacks)
    return summarised(config, variants, runs, root, command, axes)


def summarised(
    config: Config,
    variants: Mapping[str, Config],
    runs: Mapping[str, Sequence[RunResult]],
    root: Path | None,
    command: str,
    axes: Axes | None = None,
) -> dict[str, Any]:
    """Return the summary of all variants' runs, over the same seeds, and write it with its pages to `root`."""
    numbers = [result.seed for result in next(iter(runs.values()))]
    first = next(result for results in runs.values() for result in results)
    summary: dict[str, Any] = {
        "command": command,
        "seeds": numbers,
        "config": config.model_dump(),
        "versions": versions(),
        "task": first.metrics["task"],
        "primary": first.primary,
        "axes": {key: [label for label, _ in values] for key, values in (axes or {}).items()},
        "recipes": {name: _gathered(name, results) for name, results in runs.items()},
    }
    for name, place in zip(variants, itertools.product(*summary["axes"].values()) if axes else (), strict=False):
        summary["recipes"][name]["place"] = list(place)
    if root is not None:
        write_atomically(root / COMPARISON, to_json(summary))
        # In a large sweep only the first seed's runs get a page; `hush report` creates the others.
        paged = numbers if len(variants) * len(numbers) <= _PAGES else numbers[:1]
        for name, number in itertools.product(variants, paged):
            report.write(root / path_of(name, number))
        report.write(root)
    return summary


def check_seeds(seeds: object) -> None:
    """Raise a `HushError` for what is no number of seeds."""
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise HushError(f"seeds: found {seeds!r}; accepted: an integer, 1 or more")


def executed(
    variants: Mapping[str, Config],
    numbers: Sequence[int],
    root: Path | None,
    resume: bool,
    federation_of: Prepare,
    command: str,
    progress: Progress | None,
    callbacks: Observers | None = None,
) -> dict[str, list[RunResult]]:
    """Run every variant for each seed in lockstep, and return the results.

    `federation_of` prepares a config; configs that share their data share it in memory too (`from_files`).
    """
    asked = [(name, seed) for name in variants for seed in numbers]
    configs = [variants[name].model_copy(update={"seed": seed}) for name, seed in asked]
    runs: dict[str, list[RunResult]] = {name: [] for name in variants}
    if configs and configs[0].engine.name == "ray":
        return {**runs, **_executed_on_ray(asked, configs, root, resume, federation_of, command, progress, callbacks)}
    arrays: simulator.Arrays = {}
    hashes: Hashes = {}

    def begun(name: str, one: Config) -> simulator.Execution:
        path = root / path_of(name, one.seed) if root is not None else None

        def report(record: RoundRecord) -> bool:
            if progress is not None:
                progress(name, one.seed, record)
            return root is not None and stop_requested(root)

        return simulator.execution(
            federation_of(one),
            path,
            resume=resume,
            command=command,
            callbacks=[report, *(callbacks(name, one.seed) if callbacks is not None else ())],
            arrays=arrays,
            hashes=hashes,
        )

    if root is not None:
        clear_stop(root)
    executions = [begun(name, one) for (name, _), one in zip(asked, configs, strict=True)]
    for (name, _), done in zip(asked, simulator.lockstep(executions), strict=True):
        runs[name].append(done.result)
    if root is not None and stop_requested(root):
        clear_stop(root)
        if any(result.stopped for results in runs.values() for result in results):
            raise RunInterrupted(saved_round(root), resumable=True)
    return runs


def _executed_on_ray(
    asked: Sequence[tuple[str, int]], configs: Sequence[Config], root: Path | None, resume: bool,
    federation_of: Prepare, command: str, progress: Progress | None, callbacks: Observers | None,
) -> dict[str, list[RunResult]]:  # fmt: skip
    """Run every config as a task on Ray. Rounds are reported, and callbacks called, when their run is finished."""
    from hush.engines.cluster.runs import run_all

    paths = [None if root is None else root / path_of(name, seed) for name, seed in asked]
    results: dict[int, RunResult] = {}

    def called(number: int) -> Sequence[Callback]:
        return callbacks(*asked[number]) if callbacks is not None else ()

    if root is not None:
        clear_stop(root)
    for number, result, records in run_all(configs, paths, federation_of, called, command, resume):
        results[number] = result
        for record in records:
            if progress is not None:
                progress(*asked[number], record)
        if root is not None and stop_requested(root) and len(results) < len(asked):
            clear_stop(root)
            raise RunInterrupted(saved_round(root), resumable=True)
    runs: dict[str, list[RunResult]] = {}
    for number, (name, _) in enumerate(asked):
        runs.setdefault(name, []).append(results[number])
    return runs


def from_files(root: str | None) -> Prepare:
    """Return a function that prepares configs with the data that they name; data that several share are read once."""
    loaded: dict[str, Any] = {}

    def prepared(config: Config) -> Federation:
        key = f"{config.data.model_dump_json()} {config.seed}"
        if key not in loaded:
            loaded[key] = load(config, root)
        return prepare(config, dataset=loaded[key])

    return prepared


def by_recipe(config: Config, recipes: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Config]:
    """Return a variant for each recipe; slots in the config apply only to the recipe that the config names.

    `recipes` is one name, several, or a mapping from labels to recipes: names, tables or `Recipe` objects.
    """
    own = config.recipe.get("name")
    if isinstance(recipes, Mapping):
        tables = {str(label): as_table(recipe) for label, recipe in recipes.items()}
    else:
        names = [recipes] if isinstance(recipes, str) else list(recipes)
        for recipe in names:
            if not isinstance(recipe, str):
                raise HushError(
                    f"recipes: found {type(recipe).__name__}; accepted: names, or a mapping from labels to recipes, "
                    'such as {"mine": hush.Recipe(...)}'
                )
            if recipe not in RECIPES:
                raise unknown("recipes", "recipe", recipe, RECIPES, meant=SYNONYMS.get(recipe.lower(), ""))
        if len(set(names)) != len(names):
            raise HushError(f"recipes: duplicate names: {', '.join(sorted({r for r in names if names.count(r) > 1}))}")
        tables = {name: dict(config.recipe) if own == name else {"name": name} for name in names}
    if not tables:
        raise HushError(f"recipes: none given; accepted: {', '.join(RECIPES)}")
    return {label: config.model_copy(update={"recipe": table}) for label, table in tables.items()}


def axes_of(grid: str | Sequence[str]) -> Axes:
    """Return the axes of a grid from its `key=value,value,...` entries."""
    listed = [grid] if isinstance(grid, str) else list(grid)
    if not listed:
        raise HushError("--grid: expected KEY=VALUE,VALUE,..., such as local.lr=0.01,0.02; can be repeated")
    axes = dict(map(_axis, listed))
    if len(axes) < len(listed):
        raise HushError("--grid: a key is given twice; accepted: all values of a key in one entry")
    return axes


def by_axes(config: Config, axes: Axes, option: str = "--grid") -> dict[str, Config]:
    """Return a variant for each combination of values, labelled "key=value, key=value"; `option` is cited in errors."""
    found = {}
    for chosen in itertools.product(*axes.values()):
        raw = given(config)
        for key, (_, value) in zip(axes, chosen, strict=True):
            raw = assigned(raw, key, value)
        labels = [f"{key}={text}" for key, (text, _) in zip(axes, chosen, strict=True)]
        try:
            found[", ".join(labels)] = parse(raw)
        except HushError as error:
            raise HushError(str(located(error, None, labels, option))) from None
    return found


def combinations(axes: Axes) -> list[tuple[Any, ...]]:
    """Return the values of each variant, in the order of `by_axes`; labels stand for lists and tables."""
    return [
        tuple(text if isinstance(value, list | dict) else value for text, value in chosen)
        for chosen in itertools.product(*axes.values())
    ]


def _axis(entry: str) -> tuple[str, list[tuple[str, Any]]]:
    """Split `key=a,b` at the commas that are outside of brackets and quotes."""
    key, equals, text = entry.partition("=")
    values = [value.strip() for value in re.findall(r'(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|[^,])+', text)]
    if not equals or not key.strip() or not values or not all(values):
        raise HushError(f"--grid {entry}: expected KEY=VALUE,VALUE,..., such as local.lr=0.01,0.02")
    if len(set(values)) != len(values):
        raise HushError(f"--grid {entry}: duplicate value")
    return key.strip(), [(value, text_value(value)) for value in values]


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
    """Return the mean of each metric over the seeds for which it is defined."""
    found = {name: [values[name] for values in each if math.isfinite(values[name])] for name in each[0]}
    return {name: statistics.fmean(values) if values else math.nan for name, values in found.items()}
