"""The Python API: what the command line does, in a few calls.

Imports are inside the functions, so that `import hush` and `hush --help` stay quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.types import Accountant, HushError, Relation, RoundRecord, RunResult

if TYPE_CHECKING:
    from torch import nn

    from hush.callbacks import Callback
    from hush.config import Config
    from hush.recipes import Recipe
    from hush.simulation import Simulation

    RecipeLike = Recipe | Mapping[str, Any] | str
    ConfigLike = Config | Mapping[str, Any] | str | Path

Progress = Callable[[RoundRecord], object]


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
    task: str | None = None,
    loss: str | Callable[..., Any] | None = None,
    metrics: Sequence[str | Callable[..., Any]] | None = None,
    command: str = "",
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    ledgers: str | Path | None = None,
) -> RunResult:
    """Simulate one training run. `hush.Simulation` does the same, and keeps the trained model.

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
        task: "binary", "multiclass", "multilabel" or "regression", in place of the config's; by default it follows from
            the targets.
        loss: The name of a loss, or your own function of the output and the target of one example.
        metrics: Names of metrics, and your own functions of the true values and of predictions or probabilities.
        command: What to note in the manifest as the way to run it again.
        progress: Called with the record of every round.
        callbacks: `hush.Callback` objects, which hear of the start and the end as well, and can stop the run.
        ledgers: A directory of ledger files, one a client, that outlive the run: budgets are then for the life of the
            data, and a second run goes on from what is spent. Made where they do not exist. Noise is secure then,
            unless the config asks for seeded noise.

    Raises:
        NothingTrainedError: No client could afford a round. The run directory is written, and says so.
        HushError: Any other mistake in what was given.
    """
    if progress is not None and not callable(progress):
        raise HushError(f"progress: found {type(progress).__name__}; accepted: a function")
    objective = {"task": task, "loss": loss, "metrics": metrics}
    given = _simulation(config, overrides, data, dataset, model, recipe, **objective)
    listed: list[Callback | Progress] = [*callbacks, *([] if progress is None else [progress])]
    done = given.fit(out, resume=resume, callbacks=listed, progress=False, ledgers=ledgers, command=command)
    return done.run


def compare(
    config: ConfigLike,
    recipes: str | Sequence[str] | Mapping[str, RecipeLike],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
    command: str = "",
    progress: Callable[[str, int, RoundRecord], None] | None = None,
) -> dict[str, Any]:
    """Run several recipes on the same clients, data and budgets, over several seeds.

    Args:
        config: As for `simulate`.
        recipes: A name, several, or a mapping from labels to recipes.
        seeds: How many, counted up from the config's.
        overrides: As for `simulate`.
        out: The directory for all of it.
        resume: Go on with what is in `out`.
        data: As for `simulate`.
        dataset: As for `simulate`.
        model: As for `simulate`.
        command: What to note as the way to run it again.
        progress: Called with recipe, seed and record after every round.

    Returns:
        `{"command", "seeds", "recipes": {name: {"accuracy": spread over seeds, "runs": [...], "not_covered": [...]}}}`;
        the spread's `std` is the sample standard deviation, NaN with a single seed.
    """
    given, shown = _simulation(config, overrides, data, dataset, model), False if progress is None else progress
    return dict(given.compare(recipes, seeds=seeds, out=out, resume=resume, progress=shown, command=command).facts)


def sweep(
    config: ConfigLike,
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    *,
    within_budget: bool = False,
    ledgers: str | Path | None = None,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
    command: str = "",
    progress: Callable[[str, int, RoundRecord], None] | None = None,
) -> dict[str, Any]:
    """Run every combination of settings, over several seeds, all in lockstep.

    Args:
        config: As for `simulate`.
        grid: Entries such as `local.lr=0.01,0.02`; several make a product. Or a mapping from keys to lists of values.
        within_budget: Whether all combinations together, and noised evaluations that choose among them, keep each
            client's budget.
        ledgers: A directory of ledger files to charge, with `within_budget`.
        seeds: How many, counted up from the config's.
        overrides: As for `simulate`.
        out: The directory for all of it.
        resume: Go on with what is in `out`.
        data: As for `simulate`.
        dataset: As for `simulate`.
        model: As for `simulate`.
        command: What to note as the way to run it again.
        progress: Called with variant, seed and record after every round.

    Returns:
        As `compare`, with a variant such as "local.lr=0.01" in place of a recipe; with `within_budget`, the choice and
        its price under "tuning".
    """
    given, shown = _simulation(config, overrides, data, dataset, model), False if progress is None else progress
    found = given.sweep(
        grid, within_budget=within_budget, ledgers=ledgers, seeds=seeds, out=out, resume=resume, progress=shown,
        command=command,
    )  # fmt: skip
    return dict(found.facts)


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
    """Compute the privacy cost for one client.

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
    dataset: object = None,
    model: nn.Module | None = None,
    plot: str | Path | None = None,
) -> dict[str, Any]:
    """Return the noise and the expected weight of every client of a federation, before anything is trained."""
    return dict(_simulation(config, overrides, data, dataset, model).preview(plot).facts)


def audit(
    config: ConfigLike,
    *,
    client: int | str | None = None,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    overrides: Sequence[str] = (),
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Attack everything that a client releases in a run: a lower bound on epsilon, and the epsilon claimed.

    `releases` lists what the claim covers, how much of it was audited and what was found in each alone; `not_audited`
    what was not audited; `meaning` says all of it in plain words.
    """
    given = _simulation(config, overrides, data, dataset, model)
    found = given.audit(
        client=client, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed, progress=progress
    )
    return dict(found.facts)


def measure(
    directory: str | Path,
    *,
    data: str | None = None,
    dataset: object = None,
    model: nn.Module | None = None,
    bound: bool = False,
) -> dict[str, Any]:
    """Compute the papers' metrics besides accuracy for a finished run: training loss and its gap, how the clients'
    gradients differ, and how fairly clients fare. It looks at all data without noise: for simulations alone.

    Args:
        directory: The run's.
        data: As for `simulate`.
        dataset: The data that the run was given, if it was; others are refused.
        model: The module that the run was given, if it was, as it was before the run.
        bound: Whether to add the convergence bound of the recipe's paper, for logistic regression, beside what was
            measured.
    """
    from hush.engines.metrics import measure_run
    from hush.simulation import path_argument

    return measure_run(path_argument("directory", directory), data, dataset, model, bound)


def _simulation(
    config: ConfigLike,
    overrides: Sequence[str],
    data: str | None,
    dataset: object,
    model: nn.Module | None,
    recipe: RecipeLike | None = None,
    **objective: Any,
) -> Simulation:
    from hush.simulation import Simulation

    listed = [overrides] if isinstance(overrides, str) or not isinstance(overrides, Sequence) else overrides
    for each in listed:
        if listed is not overrides or not isinstance(each, str):
            raise HushError(f"overrides: found {each!r:.80}; accepted: a list of strings")
    if config is None:
        raise HushError("config: found NoneType; accepted: a Config, a mapping or the path of a TOML file")
    if model is not None:
        _check_module(model)
    return Simulation(
        dataset, model, config=config, settings=tuple(overrides), data_dir=data, recipe=recipe, **objective
    )


def _check_module(model: object) -> None:
    from torch import nn

    if isinstance(model, type):
        raise HushError(f"model: found the class {model.__name__}; accepted: an instance, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise HushError(f"model: found {type(model).__name__}; accepted: an instance of torch.nn.Module")
