"""What docs/recipes.md is measured on: four small federations, each with one kind of difference between its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SEEDS = 3
COMMAND = "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.recipe_pages --measure"

# A name of its own for few, large steps, so that is what these two are measured with; the others follow the config.
LARGE_STEPS = ["local.batch_size=60", "local.steps=2"]
OVERRIDES: Mapping[str, Sequence[str]] = {
    "fedsgd": LARGE_STEPS,
    "dp-fedsgd": LARGE_STEPS,
    "hush": ["local.lr=auto"],
}


@dataclass(frozen=True)
class Setting:
    """One experimental setting, and the clients whose accuracy is reported.

    `group` is the group of clients whose accuracy is reported, or None for all clients.
    """

    title: str
    where: str
    words: str
    looked_at: str
    config: Mapping[str, Any]
    group: int | None = None


@dataclass
class _Seen:
    """The accuracy of every client after the last round, by recipe and seed."""

    last: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def __call__(self, name: str, seed: int, record: Any) -> None:
        self.last[name, seed] = record.accuracy_per_client


def _config(partition: Any, budgets: Any, batch: Any, **more: Any) -> dict[str, Any]:
    local = {"batch_size": batch, "lr": 1.0, "epochs": more.pop("epochs", 1)}
    return {
        "seed": 1,
        "rounds": more.pop("rounds", 16),
        "data": {"name": "digits", "clients": 12, "partition": partition},
        "model": {"name": "logreg"},
        "privacy": {"budgets": budgets, "delta": 1e-4, "clip": 1.0},
        "local": local,
        **more,
    }


SETTINGS: Mapping[str, Setting] = {
    "budgets": Setting(
        "Budgets",
        "with widely different budgets and batch sizes",
        "Rows are partitioned at random; budgets are sampled from `dist2` (epsilon about 0.2, 1 or 5), batch sizes are "
        "8, 16, 32 or 64.",
        "mean over all clients",
        _config("iid", "dist2", [8, 16, 32, 64]),
    ),
    "labels": Setting(
        "Labels",
        "with few classes per client",
        "Each client has rows of two classes and trains for four local epochs per round; every other client has "
        "epsilon 1, the others 8.",
        "mean over all clients",
        _config({"name": "shards", "classes": 2}, [1.0, 8.0] * 6, 32, epochs=4),
    ),
    "clusters": Setting(
        "Clusters",
        "with two clusters of clients",
        "Eight clients have upright images, four have images rotated by 90 degrees; epsilon 5 for all.",
        "mean over the four of the minority",
        _config({"name": "rotation", "clusters": [8, 4]}, 5.0, 32, rounds=20),
        group=1,
    ),
    "quality": Setting(
        "Quality",
        "with low-quality data at some clients",
        "Six clients have 90 % of their pixels set to black or white, six have clean images; epsilon 5 for all. "
        "`padpfl` is configured to exclude the former (factors 0 and 1/6); the other recipes do not know the quality.",
        "mean over the six with clean images",
        _config(
            {"name": "quality", "groups": [6, 6], "density": [0.9, 0.0]}, 5.0, 32,
            recipe={"name": "padpfl", "weight": {"rule": "impact", "factors": [0.0, 1 / 6]}},
        ),
        group=1,
    ),
}  # fmt: skip


def measure(recipes: Sequence[str]) -> dict[str, Any]:
    """Every recipe on every setting: what results/recipes.json holds."""
    from hush.engines.results import versions

    return {
        "command": COMMAND,
        "versions": versions(),
        "overrides": {name: list(changes) for name, changes in OVERRIDES.items()},
        "settings": {key: _measured(setting, recipes) for key, setting in SETTINGS.items()},
    }


def _measured(setting: Setting, recipes: Sequence[str]) -> dict[str, Any]:
    import hush
    from hush.config import parse
    from hush.engines.setup import prepare

    config = parse(setting.config)
    groups = [member.group for member in prepare(config).members]
    seen = _Seen()
    calls: dict[tuple[str, ...], list[str]] = {}
    for name in recipes:
        calls.setdefault(tuple(OVERRIDES.get(name, ())), []).append(name)
    for changes, names in calls.items():
        found = hush.compare(config, names, seeds=SEEDS, overrides=changes, progress=seen)
    seeds = found["seeds"]
    wanted = [setting.group in (None, group) for group in groups]
    by_name = {name: [seen.last[name, seed] for seed in seeds] for name in recipes}
    return {
        "config": config.model_dump(),
        "seeds": seeds,
        "looked_at": setting.looked_at,
        "recipes": {name: _figures(runs, wanted) for name, runs in by_name.items()},
    }


def _figures(runs: Sequence[Sequence[float]], wanted: Sequence[bool]) -> dict[str, Any]:
    return {
        "accuracy": _spread([_mean([a for a, w in zip(run, wanted, strict=True) if w]) for run in runs]),
        "all_clients": _spread([_mean(run) for run in runs]),
        "worst_client": _spread([min(run) for run in runs]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    from hush.engines.results import spread

    found = spread(values)
    return {"mean": round(found["mean"], 6), "std": round(found["std"], 6), "by_seed": [round(v, 6) for v in values]}
