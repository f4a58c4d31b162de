"""The Python API: what the command line does, in a few calls.

Imports are inside the functions, so that `import hush` and `hush --help` stay quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.types import Accountant, HushError, Relation, RoundRecord, RunResult

if TYPE_CHECKING:
    from torch import nn

    from hush.config import Config
    from hush.data.datasets import Dataset

    ConfigLike = Config | Mapping[str, Any] | str | Path

Progress = Callable[[RoundRecord], None]


def simulate(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    command: str = "",
    progress: Progress | None = None,
    announce: Callable[[tuple[str, ...]], None] | None = None,
    ledgers: str | Path | None = None,
) -> RunResult:
    """Run one federation.

    Args:
        config: A config, a nested mapping, or the path of a TOML file.
        overrides: `key=value` strings, as `--set` takes them.
        out: The run directory; without one nothing is written.
        resume: Go on with the run in `out`.
        data: The directory with the public dataset files; else the environment's HUSH_DATA.
        dataset: Your own arrays (`hush.data.from_arrays`) in place of a named dataset.
        model: Your own module in place of a named model.
        command: What to note in the manifest as the way to run it again.
        progress: Called after every round.
        announce: Called before the first round with what no epsilon covers.
        ledgers: A directory of ledger files, one a client, that outlive the run: budgets are then for the life of the
            data, and a second run goes on from what is spent. Made where they do not exist.
    """
    checked = _config(config, overrides)
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
        `{"command", "seeds", "recipes": {name: {"accuracy": spread over seeds, "runs": [...], "not_covered": [...]}}}`
    """
    from hush.comparison import by_recipe, compared

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
        noise, and what other batches and epochs would need.
    """
    from hush.privacy.forecast import forecast

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
    }


def outlook(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    data: str | None = None,
    plot: str | Path | None = None,
) -> dict[str, Any]:
    """Every client of a federation with its noise and the weight it would get, before anything is trained."""
    from hush.engines.federation import prepare
    from hush.engines.outlook import outlook as look

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
    """Attack the training that a config describes: a lower bound on epsilon, beside the epsilon that is claimed."""
    from hush.engines.audit import audit as attack

    checked = _config(config, overrides)
    with _located(config, overrides):
        found = attack(
            checked, root=data, client=client, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed
        )
    return {**asdict(found), "refuted": found.refuted}


def measure(directory: str | Path, *, data: str | None = None) -> dict[str, Any]:
    """What the papers measure besides accuracy, for a finished run: training loss and its gap, how the clients'
    gradients differ, and how fairly clients fare. It looks at all data without noise: for simulations alone.
    """
    from hush.engines.measures import measure_run

    return measure_run(Path(directory), data)


def _config(config: ConfigLike, overrides: Sequence[str]) -> Config:
    from hush.config import Config, load, overridden, parse

    if isinstance(config, str | Path):
        return load(Path(config), overrides)
    raw = config.model_dump() if isinstance(config, Config) else dict(config)
    return parse(overridden(raw, overrides))


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
    dataset: Dataset | None,
    model: nn.Module | None,
    command: str,
    progress: Progress | None,
    announce: Callable[[tuple[str, ...]], None] | None,
    ledgers: str | Path | None,
) -> RunResult:
    from hush import report
    from hush.engines import cohort
    from hush.engines.federation import prepare

    federation = prepare(config, root=data, dataset=dataset, module=model)
    path = Path(out) if out is not None else None
    result = cohort.run(
        federation, path, resume=resume, command=command, progress=progress, announce=announce,
        ledgers=Path(ledgers) if ledgers is not None else None,
    )  # fmt: skip
    if path is not None:
        report.write(path)
    return result
