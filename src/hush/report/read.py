"""Read the files of a run or a comparison into one frozen record each; no other module of this package reads files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from hush.objective.metrics import BESIDE, METRICS, Metric, metric_named
from hush.privacy.round_costs import RoundCosts
from hush.server.participation import trained
from hush.server.run_directory import COSTS, MANIFEST, REPORT, RESULT, ROUNDS, guarantee, read_json
from hush.text import printable
from hush.types import Guarantee, HushError, RoundRecord

COMPARISON = "comparison.json"
FEDERATION = "federation.json"  # the members of a federation's run
_MAPPINGS = ("weights", "noise_estimated", "noise_planned", "refused")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The data of one run for its page.

    `guarantees` and `metrics` are empty until the run has finished; `primary` is the score of clients. `federation`:
    the members trained on machines of their own, and scores are those on the coordinator's public test set. `costs` is
    what rounds cost each client, for runs that say so.
    """

    recipe: str
    dataset: str
    model: str
    parameters: int
    clients: int
    planned_rounds: int
    seed: int
    noise: str
    command: str
    started: str
    config: Mapping[str, Any]
    config_hash: str
    versions: Mapping[str, str]
    records: tuple[RoundRecord, ...]
    finished: bool
    guarantees: tuple[Guarantee, ...] = ()
    not_covered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = math.nan
    primary: Metric = METRICS["accuracy"]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    data_given: bool = False
    module_given: bool = False
    federation: bool = False
    costs: RoundCosts | None = None

    def name(self, client: int) -> str:
        """What to call a client: its name, or its number."""
        return self.names[client] if client < len(self.names) else str(client)

    @property
    def given(self) -> str:
        """Custom data or model passed from Python instead of those named in the config."""
        return " and ".join(([self.dataset] if self.data_given else []) + ([self.model] if self.module_given else []))

    @property
    def untrained(self) -> bool:
        """Whether the run is over and no client released an update."""
        return self.finished and not trained(self.records)

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        return self.records[-1].round if self.records else 0

    @property
    def scores(self) -> tuple[float, ...]:
        """Each client's primary score after the last round that was evaluated."""
        return next((r.scores for r in reversed(self.records) if r.scores), ())


@dataclass(frozen=True, kw_only=True)
class SeedView:
    """One run of a comparison, with its primary score; `report` is the relative URL of its page, if it exists."""

    seed: int
    path: str
    score: Mapping[str, float]
    worst: float
    run: RunView | None
    report: str | None


@dataclass(frozen=True, kw_only=True)
class RecipeView:
    """One recipe of a comparison, or one combination of a sweep: its score and other metrics over seeds, and its runs.

    `place` has the value on each axis of a sweep.
    """

    name: str
    score: Mapping[str, float]
    not_covered: tuple[str, ...]
    runs: tuple[SeedView, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    place: tuple[str, ...] = ()

    @property
    def deviation(self) -> float | None:
        """The standard deviation of its score over seeds; None for a single seed."""
        return self.score["std"] if len(self.runs) > 1 else None


@dataclass(frozen=True, kw_only=True)
class ComparisonView:
    """Recipes on the same clients, or the combinations of a sweep, best first by the primary score.

    `axes` are the settings of a sweep with their values; empty in a comparison of recipes.
    """

    command: str
    seeds: tuple[int, ...]
    recipes: tuple[RecipeView, ...]
    primary: Metric = METRICS["accuracy"]
    beside: Metric | None = None
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sweep(self) -> bool:
        """Whether settings vary, and not recipes alone."""
        return bool(self.axes)

    @property
    def thing(self) -> str:
        """What is compared: a recipe, or a combination of settings."""
        return "combination" if self.sweep else "recipe"

    def worst(self, recipe: RecipeView) -> float:
        """The score of the worst client of any seed; NaN where there is none."""
        choose = min if self.primary.higher_is_better else max
        return choose((run.worst for run in recipe.runs if math.isfinite(run.worst)), default=math.nan)


def read_run(path: Path) -> RunView:
    """Read a run directory, finished or not."""
    manifest = read_json(path / MANIFEST)
    records = _rounds(path / ROUNDS)
    begun = _checked(path / MANIFEST, lambda: _begun(manifest, records))
    costs = RoundCosts.from_json((path / COSTS).read_bytes()) if (path / COSTS).exists() else None
    begun = replace(begun, federation=(path / FEDERATION).exists(), costs=costs)
    if not (path / RESULT).exists():
        return begun
    result = read_json(path / RESULT)
    return _checked(path / RESULT, lambda: _finished(begun, result))


def read_comparison(path: Path) -> ComparisonView:
    """Read a comparison directory."""
    raw = read_json(path / COMPARISON)
    return _checked(path / COMPARISON, lambda: _comparison(path, raw))


def _begun(manifest: Mapping[str, Any], records: tuple[RoundRecord, ...]) -> RunView:
    config, data, model = manifest["config"], manifest.get("data", {}), manifest.get("model", {})
    return RunView(
        recipe=str(manifest["recipe"]),
        dataset=str(data.get("name", config["data"]["name"])),
        model=str(model.get("name", config["model"]["name"])),
        data_given=bool(data.get("own", False)),
        module_given=bool(model.get("own", False)),
        names=tuple(map(printable, manifest.get("clients", ()))),
        parameters=int(manifest.get("parameters", 0)),
        clients=int(config["data"]["clients"]),
        planned_rounds=int(config["rounds"]),
        seed=int(manifest["seed"]),
        noise=str(config["privacy"]["noise"]),
        command=str(manifest.get("command", "")),
        started=str(manifest.get("started", "")),
        config=config,
        not_covered=tuple(map(str, manifest.get("not_covered", ()))),
        config_hash=str(manifest.get("config_hash", "")),
        versions={str(name): str(version) for name, version in manifest.get("versions", {}).items()},
        records=records,
        primary=metric_named(str(manifest.get("primary", "accuracy"))),
        finished=False,
    )


def _finished(begun: RunView, result: Mapping[str, Any]) -> RunView:
    return replace(
        begun,
        finished=True,
        dataset=str(result["dataset"]),
        model=str(result["model"]),
        guarantees=tuple(replace(guarantee(card), not_covered=()) for card in result["guarantees"]),
        not_covered=tuple(map(str, result["not_covered"])),
        warnings=tuple(map(str, result.get("warnings", ()))),
        metrics=result.get("metrics", {}),
        seconds=_number(result["seconds"]),
    )


def _comparison(path: Path, raw: Mapping[str, Any]) -> ComparisonView:
    primary = metric_named(str(raw.get("primary", "accuracy")))
    beside = BESIDE.get(str(raw.get("task")))
    recipes = (
        RecipeView(
            name=str(name),
            score=_numbers(_score(entry)),
            metrics=_numbers(entry.get("metrics", {})),
            not_covered=tuple(map(str, entry.get("not_covered", ()))),
            runs=tuple(_seed(path, run, primary) for run in entry["runs"]),
            place=tuple(map(str, entry.get("place", ()))),
        )
        for name, entry in raw["recipes"].items()
    )
    sign = -1.0 if primary.higher_is_better else 1.0
    best_first = sorted(recipes, key=lambda recipe: _or(sign * recipe.score["mean"], math.inf))
    return ComparisonView(
        command=str(raw.get("command", "")),
        seeds=tuple(int(seed) for seed in raw["seeds"]),
        recipes=tuple(best_first),
        primary=primary,
        beside=None if beside is None else metric_named(beside),
        axes={str(key): tuple(map(str, values)) for key, values in raw.get("axes", {}).items()},
    )


def _score(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The primary score; files from before there were others have an accuracy."""
    found: Mapping[str, Any] = entry.get("score", entry.get("accuracy"))
    return found


def _seed(root: Path, raw: Mapping[str, Any], primary: Metric) -> SeedView:
    inside, score = _inside(root, str(raw["path"])), _numbers(_score(raw))
    known = inside is not None and (root / inside / MANIFEST).exists()
    return SeedView(
        seed=int(raw["seed"]),
        path=str(raw["path"]),
        score=score,
        worst=score["min" if primary.higher_is_better else "max"],
        run=read_run(root / inside) if inside is not None and known else None,
        report=f"{inside}/{REPORT}" if inside is not None and (root / inside / REPORT).exists() else None,
    )


def _inside(root: Path, path: str) -> PurePosixPath | None:
    """Return the path if it is inside the comparison directory; a page must not link outside."""
    parts = PurePosixPath(path)
    stays = (root / parts).resolve().is_relative_to(root.resolve())
    return parts if stays and not parts.is_absolute() else None


def _rounds(path: Path) -> tuple[RoundRecord, ...]:
    """Return the rounds so far, ignoring an incomplete last line from an interrupted write."""
    if not path.exists():
        return ()
    try:
        *whole, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise HushError(f"{path}: cannot be read: {error.strerror or error}") from None
    return _checked(path, lambda: tuple(_record(line) for line in whole if line))


def _record(line: bytes) -> RoundRecord:
    raw = json.loads(line)
    for key in _MAPPINGS:
        convert = printable if key == "refused" else _number
        raw[key] = {int(client): convert(value) for client, value in raw[key].items()}
    raw["placed"] = {int(client): int(model) for client, model in raw.get("placed", {}).items()}
    raw["warnings"] = {int(client): str(words) for client, words in raw.get("warnings", {}).items()}
    each = ("accuracy_per_client", "score_per_client")
    scores = {key: tuple(_number(value) for value in raw.get(key, ())) for key in each}
    return RoundRecord(**{**raw, **scores, "loss": _number(raw.get("loss"))})


def _checked(path: Path, made: Callable[[], T]) -> T:
    try:
        return made()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HushError(f"{path}: not written by this version of hush: {' '.join(repr(error).split())}") from None


def _numbers(raw: Mapping[str, Any]) -> dict[str, float]:
    return {str(key): _number(value) for key, value in raw.items()}


def _number(value: Any) -> float:
    """Return the number; JSON null represents every number that is not finite."""
    return math.nan if value is None else float(value)


def _or(value: float, other: float) -> float:
    return value if math.isfinite(value) else other
