"""The Python API: what the command line does, in a few calls.

Imports are inside the functions, so that `import hush` and `hush --help` stay quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.types import Accountant, HushError, NothingTrainedError, Relation, RoundRecord, RunResult

if TYPE_CHECKING:
    from torch import nn

    from hush.config import Config
    from hush.recipes import Recipe

    RecipeLike = Recipe | Mapping[str, Any] | str
    ConfigLike = Config | Mapping[str, Any] | str | Path

Progress = Callable[[RoundRecord], None]


def simulate(
    config: ConfigLike,
    *,
    recipe: RecipeLike | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
    command: str = "",
    progress: Progress | None = None,
    announce: Callable[[tuple[str, ...], tuple[str, ...]], None] | None = None,
    ledgers: str | Path | None = None,
) -> RunResult:
    """Simulate one training run.

    Args:
        config: A config, a nested mapping, or the path of a TOML file.
        recipe: In place of the config's: a `hush.Recipe`, a name, or a table in which an option can stand for a slot,
            such as `{"name": "robust-hdp", "weight": MyWeight()}`.
        overrides: `key=value` strings, as `--set` takes them.
        out: The run directory; without one nothing is written.
        resume: Go on with the run in `out`.
        data: The directory with the public dataset files; else the environment's HUSH_DATA.
        dataset: Your own data in place of a named dataset: whatever `hush.data.clients` accepts.
        model: Your own module in place of a named model.
        command: What to note in the manifest as the way to run it again.
        progress: Called after every round.
        announce: Called before the first round with what no epsilon covers, and with what to warn of.
        ledgers: A directory of ledger files, one a client, that outlive the run: budgets are then for the life of the
            data, and a second run goes on from what is spent. Made where they do not exist. Noise is secure then,
            unless the config asks for seeded noise.

    Raises:
        NothingTrainedError: No client could afford a round. The run directory is written, and says so.
        HushError: Any other mistake in what was given.
    """
    checked = _config(config, overrides, recipe)
    if resume and out is None:
        raise HushError("resume: requires out, the directory of the run to resume")
    with _located(config, overrides):
        return _simulate(checked, out, resume, data, dataset, model, command, progress, announce, ledgers)


def compare(
    config: ConfigLike,
    recipes: Sequence[str],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    command: str = "",
    progress: Callable[[str, int, RoundRecord], None] | None = None,
) -> dict[str, Any]:
    """Run several recipes on the same clients, data and budgets, over several seeds.

    Returns:
        `{"command", "seeds", "recipes": {name: {"accuracy": spread over seeds, "runs": [...], "not_covered": [...]}}}`;
        the spread's `std` is the sample standard deviation, NaN with a single seed.
    """
    from hush.comparison import by_recipe, compared

    _check_listed("recipes", recipes)
    checked = _config(config, overrides)
    with _located(config, overrides):
        return compared(checked, by_recipe(checked, recipes), seeds, out, resume, data, command, progress)


def sweep(
    config: ConfigLike,
    grid: Sequence[str],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    command: str = "",
    progress: Callable[[str, int, RoundRecord], None] | None = None,
) -> dict[str, Any]:
    """Run every combination of settings, over several seeds, all in lockstep.

    Args:
        config: As for `simulate`.
        grid: Entries such as `local.lr=0.01,0.02`; several make a product.
        seeds: How many, counted up from the config's.
        overrides: As for `simulate`.
        out: The directory for all of it.
        resume: Go on with what is in `out`.
        data: As for `simulate`.
        command: What to note as the way to run it again.
        progress: Called with variant, seed and record after every round.

    Returns:
        As `compare`, with a variant such as "local.lr=0.01" in place of a recipe.
    """
    from hush.comparison import by_grid, compared

    _check_listed("grid", grid)
    checked = _config(config, overrides)
    with _located(config, overrides):
        return compared(checked, by_grid(checked, grid), seeds, out, resume, data, command, progress)


def plan(
    *,
    epsilon: float,
    delta: float,
    samples: int,
    batch: int,
    rounds: int,
    epochs: int = 1,
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
    noise_multiplier: float | None = None,
    plot: str | Path | None = None,
) -> dict[str, Any]:
    """What a budget costs one client.

    Args:
        epsilon: The client's budget.
        delta: Its delta.
        samples: Its training rows.
        batch: Expected rows in a step.
        rounds: Rounds it takes part in.
        epochs: Local epochs a round.
        accountant: `pld` or `rdp`.
        relation: How neighbouring datasets differ.
        noise_multiplier: To ask what this noise costs, in place of the least that keeps the budget.
        plot: Where to write a page with epsilon by round.

    Returns:
        The noise multiplier and the epsilon it spends, epsilon by round, the rounds that the budget affords at that
        noise, what other batches and epochs would need, and warnings where the guarantee means little.
    """
    from hush.privacy.forecast import forecast
    from hush.privacy.weak_guarantees import warnings_of

    if batch > samples:
        raise HushError(f"batch: {batch} is more than the {samples} samples; accepted: 1 to {samples}")
    found = forecast(epsilon, delta, samples, batch, rounds, epochs, relation, accountant, 1.0, noise_multiplier)
    if plot is not None:
        from hush.report import write_plan

        write_plan(Path(plot), found)
    return {
        "noise_multiplier": found.chosen.noise_multiplier,
        "epsilon": found.spent[-1],
        "delta": delta,
        "relation": relation,
        "accountant": accountant,
        "steps": rounds * found.chosen.steps,
        "sample_rate": found.chosen.sample_rate,
        "epsilon_by_round": dict(zip(map(str, found.marks), found.spent, strict=True)),
        "affordable_rounds": found.affordable_rounds,
        "choices": [asdict(choice) for choice in found.choices],
        "warnings": list(warnings_of(max(epsilon, found.spent[-1]), delta, samples)),
    }


def preview(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    data: str | None = None,
    plot: str | Path | None = None,
) -> dict[str, Any]:
    """Every client of a federation with its noise and the weight it would get, before anything is trained."""
    from hush.engines.preview import preview as look
    from hush.engines.setup import prepare

    checked = _config(config, overrides)
    with _located(config, overrides):
        federation = prepare(checked, root=data)
    found = look(federation)
    if plot is not None:
        from hush.report import write_plan

        write_plan(Path(plot), found)
    return {
        "recipe": federation.recipe_name,
        "clients": [asdict(each) for each in found],
        "third_party": federation.third_party(),
        "not_covered": list(federation.not_covered()),
        "warnings": list(federation.warnings()),
    }


def audit(
    config: ConfigLike,
    *,
    client: int | None = None,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    overrides: Sequence[str] = (),
    data: str | None = None,
) -> dict[str, Any]:
    """Attack all that a client releases in the run of a config: a lower bound on epsilon, beside the one claimed.

    `releases` names what the claim covers and how much of it was looked at, `not_looked_at` what was not.
    """
    from hush.auditing.run import audit as attack

    checked = _config(config, overrides)
    with _located(config, overrides):
        found = attack(
            checked, root=data, client=client, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed
        )
    return {**asdict(found), "refuted": found.refuted}


def measure(
    directory: str | Path,
    *,
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """What the papers measure besides accuracy, for a finished run: training loss and its gap, how the clients'
    gradients differ, and how fairly clients fare. It looks at all data without noise: for simulations alone.

    Args:
        directory: The run's.
        data: As for `simulate`.
        dataset: The data that the run was given, if it was; others are refused.
        model: The module that the run was given, if it was, as it was before the run.
    """
    from hush.engines.metrics import measure_run

    return measure_run(Path(directory), data, dataset, model)


def _config(config: ConfigLike, overrides: Sequence[str], recipe: RecipeLike | None = None) -> Config:
    from hush.config import Config, load, overridden, parse

    _check_listed("overrides", overrides)
    if isinstance(config, str | Path):
        loaded = load(Path(config), overrides)
        return loaded if recipe is None else _with_recipe(loaded, recipe)
    if not isinstance(config, Config | Mapping):
        raise HushError(
            f"config: found {type(config).__name__}; accepted: a Config, a mapping or the path of a TOML file"
        )
    if isinstance(config, Config):
        # The options of a recipe that was given in Python are kept as they are. What is not given stays so: the number
        # of clients may follow from the data.
        raw = {**config.model_dump(exclude_unset=True), "recipe": config.recipe}
    else:
        raw = dict(config)
        if not isinstance(raw.get("recipe", {}), Mapping):
            raw = {**raw, "recipe": _table(raw["recipe"])}
    if recipe is not None:
        raw["recipe"] = _table(recipe)
    return parse(overridden(raw, overrides))


def _with_recipe(config: Config, recipe: RecipeLike) -> Config:
    return config.model_copy(update={"recipe": _table(recipe)})


def _table(recipe: RecipeLike) -> dict[str, Any]:
    from hush.recipes import as_table

    return as_table(recipe)


def _check_listed(name: str, values: object) -> None:
    if isinstance(values, str):
        raise HushError(f"{name}: found the string {values!r}; accepted: a list of strings")


@contextmanager
def _located(config: ConfigLike, overrides: Sequence[str]) -> Iterator[None]:
    """Errors about a key say where in the file, or on the command line, it stands."""
    from hush.config import located

    try:
        yield
    except HushError as error:
        raise (located(error, Path(config), overrides) if isinstance(config, str | Path) else error) from None


def _simulate(
    config: Config,
    out: str | Path | None,
    resume: bool,
    data: str | None,
    dataset: object,
    model: nn.Module | None,
    command: str,
    progress: Progress | None,
    announce: Callable[[tuple[str, ...], tuple[str, ...]], None] | None,
    ledgers: str | Path | None,
) -> RunResult:
    from hush import report
    from hush.engines import simulator
    from hush.engines.setup import own_data, prepare

    if dataset is not None and config.data.files is not None:
        raise HushError("data.files: given beside dataset; accepted: one of them", "data.files")
    rows = None if dataset is None else own_data(dataset, config)
    federation = prepare(config, root=data, dataset=rows, module=model, lasting=ledgers is not None)
    path = Path(out) if out is not None else None
    result = simulator.run(
        federation, path, resume=resume, command=command, progress=progress, announce=announce,
        ledgers=Path(ledgers) if ledgers is not None else None,
    )  # fmt: skip
    if path is not None:
        report.write(path)
    if not result.trained:
        where = f"; see {path / 'report.html'}" if path is not None else ""
        raise NothingTrainedError(
            f"{result.ended}; accepted: larger budgets, or ledgers with remaining budget{where}", result
        )
    return result
