"""Simulation: federated training of your model on your data in this process, with every setting as an argument.

The command line and the functions of `hush.api` do their work through it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from hush import comparison, report
from hush.auditing.membership import membership
from hush.auditing.run import audit
from hush.callbacks import Callback, Callbacks, RoundFunction, as_callbacks
from hush.config import Config, assigned, described, given, locating, overridden, parse, read
from hush.data import ClientData, client_data, datasets
from hush.engines import metrics, simulator
from hush.engines.driver import CompletedRun
from hush.engines.objective import outputs_of, targets_of, task_of
from hush.engines.preview import preview
from hush.engines.setup import Federation, load, own_data, prepare
from hush.fit_result import FitResult
from hush.interruption import interruptible
from hush.models import Model
from hush.models.inputs import shapes_of
from hush.models.user_module import given_module
from hush.models.validation import seeded
from hush.progress import NoBar, RunProgress, progress_bar, round_words, task_progress
from hush.recipes import Recipe, as_table
from hush.report.toml import inline, toml
from hush.result_tables import (
    attack_table,
    audit_table,
    comparison_table,
    measure_table,
    preview_table,
    tuning_table,
)
from hush.server.participation import trained
from hush.server.run_directory import write_atomically
from hush.table import Table
from hush.tracking import Tracking, tracking_of
from hush.tuning import tuned
from hush.types import HushError, NothingTrainedError, RoundRecord, RunResult, unknown
from hush.user_code import user_code

_log = logging.getLogger("hush")
_FILES = (".csv", ".parquet", ".npz")
Factory = Callable[..., nn.Module]
# The keyword arguments that stand for one key of the config.
KEYWORDS: Mapping[str, str] = {
    "epsilon": "privacy.budgets",
    "delta": "privacy.delta",
    "lifetime": "privacy.lifetime",
    "clip": "privacy.clip",
    "noise": "privacy.noise",
    "relation": "privacy.relation",
    "accountant": "privacy.accountant",
    "rounds": "rounds",
    "seed": "seed",
    "participation": "participation",
    "quorum": "quorum",
    "max_weight": "max_weight",
    "secure_aggregation": "secure_aggregation",
    "mode": "mode",
    "adapters": "model.adapters",
    "weights": "model.weights",
    "clients": "data.clients",
    "partition": "data.partition",
    "label": "data.label",
    "client": "data.client",
    "person": "data.person",
    "rows_per_person": "privacy.rows_per_person",
    "unit": "privacy.unit",
    "row_budgets": "privacy.row_budgets",
    "schema": "data.schema",
    "test_fraction": "data.test_fraction",
    "task": "objective.task",
    "loss": "objective.loss",
    "metrics": "objective.metrics",
    "batch_size": "local.batch_size",
    "epochs": "local.epochs",
    "steps": "local.steps",
    "lr": "local.lr",
    "weight_decay": "local.weight_decay",
    "device": "engine.device",
    "engine": "engine.name",
    "address": "engine.address",
    "precision": "engine.precision",
}


class Simulation:
    """A federated training run in this process.

    Every argument that is left out is as in a config file without that key. Budgets, `delta` and `batch_size` are one
    value for all clients, a list with one each (for `batch_size`: choices), or a mapping from clients' names.

    Args:
        data: Whatever `hush.data.clients` accepts (arrays, a list or dict of (x, y) per client, DataFrames, datasets,
            files), what it returns, or the name of a built-in dataset.
        model: An `nn.Module`; the name of a built-in model; a function or class that makes a module, called without
            arguments or with (input shape, number of classes); or a mapping, the table `[model]` of a config.
        epsilon: The privacy budgets, or the name of a distribution of them, such as "dist6".
        delta: Of the budgets.
        adapters: "lora" to train low-rank updates of the model's layers and its head alone (docs/models.md).
        weights: The file or directory with the weights of a pretrained model.
        recipe: The algorithm: a name, a mapping of slots, or a `hush.Recipe`.
        rounds: How many there are.
        seed: Of all random choices.
        clients: How many clients share the rows out by `partition`; or, for arrays, the client of each row.
        partition: How rows are divided among clients that have none of their own.
        label: The column with the targets.
        client: The column with the names of the clients.
        person: The column with the key of each row's person; for arrays, the keys, or a mapping from clients to theirs.
        row_budgets: The column with the epsilon of each row; for arrays, the epsilons.
        schema: What columns may hold, declared in public.
        classes: The list of classes, or their number; by default those found in the rows, which no epsilon covers.
        test_fraction: The fraction of each client's rows that is held out.
        task: "binary", "multiclass", "multilabel" or "regression"; by default it follows from the targets.
        loss: The name of a loss, or your own function of the output and the target of one example.
        metrics: Names of metrics, and your own functions of the true values and of predictions or probabilities.
        batch_size: Expected rows in a step.
        epochs: Local epochs in a round.
        steps: Local steps in a round, in place of epochs.
        lr: The learning rate, or "auto".
        weight_decay: Of local training.
        clip: The clipping norm.
        noise: "seeded", "secure" or "auto": secure with ledger files, else seeded.
        relation: "add-remove" or "replace-one".
        unit: What the guarantee protects: "row" or "person"; by default persons where `person` is given.
        rows_per_person: How many rows of a sampled person a step averages.
        accountant: "pld" or "rdp".
        lifetime: The budgets for the life of the data, where ledgers outlive the run.
        participation: The fraction of clients in a round.
        quorum: The fewest clients with budget left.
        max_weight: The largest share of one client in a round.
        secure_aggregation: Whether the server sees sums of updates alone.
        mode: "sound" or "faithful".
        device: "cpu", "cuda" or "auto".
        engine: "process", or "ray" for the workers of a Ray cluster (docs/cluster.md).
        address: Of the Ray cluster; by default Ray is started on this machine.
        precision: "float32", "tf32" or "bf16".
        settings: Any other keys of the config, dotted: {"privacy.sampler": "fixed"}, or strings "key=value".
        config: What the arguments are applied to: a mapping, the path of a TOML file, or a `Config`.
        data_dir: The directory with the public dataset files; else the environment's HUSH_DATA.

    Raises:
        HushError: An argument is wrong; the message names it, what was found and what is accepted.
    """

    def __init__(
        self,
        data: object = None,
        model: nn.Module | Factory | Mapping[str, Any] | str | None = None,
        *,
        adapters: str | None = None,
        weights: str | Path | None = None,
        epsilon: object = None,
        delta: object = None,
        recipe: Recipe | Mapping[str, Any] | str | None = None,
        rounds: int | None = None,
        seed: int | None = None,
        clients: object = None,
        partition: str | Mapping[str, Any] | None = None,
        label: str | None = None,
        client: str | None = None,
        person: object = None,
        row_budgets: object = None,
        schema: object = None,
        classes: int | Sequence[object] | None = None,
        test_fraction: float | None = None,
        task: str | None = None,
        loss: str | Callable[..., Any] | None = None,
        metrics: Sequence[str | Callable[..., Any]] | None = None,
        batch_size: object = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | str | None = None,
        weight_decay: float | None = None,
        clip: float | None = None,
        noise: str | None = None,
        relation: str | None = None,
        unit: str | None = None,
        rows_per_person: int | None = None,
        accountant: str | None = None,
        lifetime: object = None,
        participation: float | None = None,
        quorum: int | None = None,
        max_weight: float | None = None,
        secure_aggregation: bool | None = None,
        mode: str | None = None,
        device: str | None = None,
        engine: str | None = None,
        address: str | None = None,
        precision: str | None = None,
        settings: Mapping[str, Any] | Sequence[str] = (),
        config: Config | Mapping[str, Any] | str | Path | None = None,
        data_dir: str | Path | None = None,
    ) -> None:
        named, rows = _named_data(data)
        table = {f"model.{key}": value for key, value in model.items()} if isinstance(model, Mapping) else {}
        owners = None if rows is None or clients is None or isinstance(clients, int) else clients
        arguments: dict[str, Any] = {
            "epsilon": epsilon, "delta": delta, "lifetime": lifetime, "clip": clip, "noise": noise,
            "relation": relation, "accountant": accountant, "rounds": rounds, "seed": seed,
            "participation": participation, "quorum": quorum, "max_weight": max_weight, "mode": mode,
            "secure_aggregation": secure_aggregation,
            "clients": clients if owners is None else None, "partition": partition, "label": label, "client": client,
            "unit": unit, "rows_per_person": rows_per_person,
            "person": person if isinstance(person, str) else None,
            "row_budgets": row_budgets if isinstance(row_budgets, str) else None,
            "schema": schema, "test_fraction": test_fraction, "task": task, "loss": loss,
            "metrics": metrics, "batch_size": batch_size, "epochs": epochs,
            "steps": steps, "lr": lr, "weight_decay": weight_decay, "device": device, "engine": engine,
            "address": address, "precision": precision, "adapters": adapters, "weights": weights,
        }  # fmt: skip
        self._keywords = {KEYWORDS[name]: name for name, value in arguments.items() if value is not None}
        self._keywords |= {**dict.fromkeys(named, "data"), **({} if recipe is None else {"recipe": "recipe"})}
        self._keywords |= {} if model is None or table else {"model.name": "model"}
        self._path = path_argument("config", config) if isinstance(config, str | Path) else None
        self._settings, self._overrides = _checked_settings(settings, self._keywords)
        self._data_dir = None if data_dir is None else str(data_dir)
        self._module, self._factory, model_name = _given_model(None if isinstance(model, Mapping) else model)
        with self._citing():
            raw = _raw(config)
            if self._overrides:
                raw = overridden(raw, self._overrides)
            for key, value in self._settings.items():
                raw = assigned(raw, key, _plain(value))
            for name, value in arguments.items():
                if value is not None:
                    raw = assigned(raw, KEYWORDS[name], _plain(value))
            for key, value in {**named, **table, **({} if model_name is None else {"model.name": model_name})}.items():
                raw = assigned(raw, key, value)
            if recipe is not None:
                raw["recipe"] = as_table(recipe)
            self.config = parse(raw)
            persons, apart = (None if isinstance(each, str) else each for each in (person, row_budgets))
            self._rows = self._own_rows(rows, owners, classes, persons, apart)
        self._loaded: dict[str, ClientData] = {}
        self._last: CompletedRun | None = None

    @classmethod
    def from_toml(cls, path: str | Path, **arguments: Any) -> Simulation:
        """Return the simulation that a TOML file describes; arguments, those of the class, replace what it says."""
        return cls(config=Path(path), **arguments)

    def to_toml(self, path: str | Path | None = None) -> str:
        """Return the config as TOML, and write it to `path` if given. What TOML cannot hold is named in comments."""
        raw = given(self.config)
        remarks: list[str] = []
        if self._rows is not None:
            remarks.append(f"data: {self._rows!r}; pass data= to hush.Simulation.from_toml")
        if self._module is not None:
            remarks.append(f"model: an nn.Module ({type(self._module).__name__}); pass model=")
        if self._factory is not None:
            remarks.append(f"model: made by {_name_of(self._factory)}; pass model=")
        for slot, value in list(raw["recipe"].items()):
            raw["recipe"][slot] = described(value)
            if not _importable(type(value) if is_dataclass(value) else None):
                del raw["recipe"][slot]
                remarks.append(f"recipe.{slot}: {type(value).__name__}, which no module defines by that name")
        for key, value in list(raw.get("objective", {}).items()):
            functions = [each for each in (value if isinstance(value, list) else [value]) if callable(each)]
            raw["objective"][key] = self.config.model_dump()["objective"][key]
            if not all(map(_importable, functions)):
                del raw["objective"][key]
                remarks.append(f"{key}: {', '.join(map(_name_of, functions))}; pass {key}=")
        head = ["# Given in Python, and not part of this file:", *(f"# {' '.join(text.split())}" for text in remarks)]
        text = "\n".join([*(head if remarks else []), toml(raw)])
        if path is not None:
            try:
                write_atomically(path_argument("path", path), text.encode())
            except OSError as error:
                raise HushError(f"{path}: cannot be written: {error.strerror or error}") from None
        return text

    def preview(self, plot: str | Path | None = None) -> Table:
        """Return the noise multiplier, steps, epsilon and expected weight of every client, before anything is trained.

        Args:
            plot: Where to write a page with a plot.
        """
        with self._citing():
            federation = self._prepare()
        found = preview(federation)
        if plot is not None:
            report.write_plan(path_argument("plot", plot), found)
        return preview_table(
            {
                "recipe": federation.recipe_name,
                "clients": [asdict(each) for each in found],
                "third_party": federation.third_party(),
                "not_covered": list(federation.not_covered()),
                "warnings": list(federation.warnings()),
            }
        )

    def fit(
        self,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        callbacks: Callbacks | Callback | RoundFunction = (),
        progress: bool | None = None,
        ledgers: str | Path | None = None,
        track: str | Sequence[str] | None = None,
        command: str = "",
    ) -> FitResult:
        """Train.

        Args:
            out: The run directory, in which every round is saved; without one nothing is written.
            resume: Go on with the run in `out`.
            callbacks: `hush.Callback` objects, or functions of a round's record; one that returns True stops the run.
            progress: Whether to show a bar; by default in a terminal and in a notebook.
            ledgers: A directory of ledger files, one a client, that outlive the run: budgets are then for the life of
                the data, and a second run goes on from what is spent. Made where they do not exist.
            track: "mlflow", "tensorboard" or "wandb", or several: they get config, metrics, epsilon per client, files.
            command: What to note in the manifest as the way to run it again.

        Raises:
            NothingTrainedError: No client could afford a round. The run directory is written, and says so.
            RunInterrupted: Ctrl-C; a KeyboardInterrupt that says which round was the last.
            HushError: Any other mistake in what was given.
        """
        path, places = _directory(out, resume), None if ledgers is None else path_argument("ledgers", ledgers)
        listed = as_callbacks(callbacks)
        total = self.config.rounds
        tracking = tracking_of(track)
        with (
            self._citing(), tracking, _files(path, tracking) as files, interruptible(path) as over,
            progress_bar(total, progress) as bar,
        ):  # fmt: skip
            federation = self._prepare(lasting=places is not None)
            written = [_ReportWriter(files)] if files is not None else []
            shown = [] if isinstance(bar, NoBar) else [RunProgress(bar)]
            done = simulator.run(
                federation, files, resume=resume, command=command, ledgers=places,
                callbacks=[over.append, *written, *shown, *listed, *tracking.of(directory=path)],
            )  # fmt: skip
        if not done.result.trained:
            where = f"; see {path / 'report.html'}" if path is not None else ""
            raise NothingTrainedError(
                f"{done.result.ended}; accepted: larger budgets, or ledgers with remaining budget{where}", done.result
            )
        self._last = done
        return FitResult(done, path)

    def compare(
        self,
        recipes: str | Sequence[str] | Mapping[str, Any],
        *,
        seeds: int = 5,
        out: str | Path | None = None,
        resume: bool = False,
        progress: bool | comparison.Progress | None = None,
        track: str | Sequence[str] | None = None,
        command: str = "",
    ) -> Table:
        """Run several recipes on the same clients, data and budgets, all in lockstep.

        Args:
            recipes: Names, or a mapping from labels to recipes (names, mappings of slots, `hush.Recipe` objects).
            seeds: How many, counted up from the simulation's.
            out: The directory for all of it.
            resume: Go on with what is in `out`.
            progress: As for `fit`; or a function of label, seed and record, called after every round.
            track: As for `fit`: a tracked run for each recipe and seed.
            command: As for `fit`.

        Returns:
            A row for each recipe, best first: mean and sample standard deviation over the seeds.
        """
        with self._citing():
            variants = comparison.by_recipe(self.config, recipes)
        return comparison_table(self._side_by_side(variants, seeds, out, resume, progress, track, command))

    def sweep(
        self,
        grid: Mapping[str, Sequence[Any]] | Sequence[str],
        *,
        within_budget: bool = False,
        ledgers: str | Path | None = None,
        seeds: int = 1,
        out: str | Path | None = None,
        resume: bool = False,
        progress: bool | comparison.Progress | None = None,
        track: str | Sequence[str] | None = None,
        command: str = "",
    ) -> Table:
        """Run every combination of settings, all in lockstep.

        Args:
            grid: The values to try, by keyword argument ("lr", "recipe") or dotted key ("local.lr"); or strings such as
                "local.lr=0.01,0.02".
            within_budget: Whether all combinations together, and noised evaluations that choose among them, keep each
                client's budget. By default each combination has the whole budget: a comparison for experiments.
            ledgers: As for `fit`; with `within_budget`.
            seeds: As for `compare`.
            out: As for `compare`.
            resume: As for `compare`.
            progress: As for `compare`.
            track: As for `compare`.
            command: As for `compare`.

        Returns:
            A row for each combination, best first; with `within_budget` by noised scores, and `facts["tuning"]` has the
            choice and its price.
        """
        axes = _axes(grid) if isinstance(grid, Mapping) else comparison.axes_of(grid)
        keys = [str(key) for key in (grid if isinstance(grid, Mapping) else axes)]
        with self._citing():
            variants = comparison.by_axes(self.config, axes, "grid:" if isinstance(grid, Mapping) else "--grid")
        labels = dict(zip(variants, comparison.combinations(axes), strict=True))
        if within_budget:
            for name, given in (("seeds", seeds != 1), ("resume", resume), ("track", track is not None)):
                if given:
                    raise HushError(f"{name}: not available with within_budget; leave it out")
            summary = self._tuned(variants, out, ledgers, progress, command, axes)
            return tuning_table(summary, keys, labels)
        if ledgers is not None:
            raise HushError("ledgers: every combination of a sweep has the whole budget; accepted: with within_budget")
        summary = self._side_by_side(variants, seeds, out, resume, progress, track, command, axes)
        return comparison_table(summary, keys, labels)

    def audit(
        self,
        *,
        client: int | str | None = None,
        kind: str = "auto",
        canaries: int | None = None,
        runs: int | None = None,
        confidence: float = 0.95,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Table:
        """Attack everything that a client releases in the run, and compare a lower bound on epsilon with the claim.

        Args:
            client: By number or name; default: the one with the largest budget.
            kind: "one-run", "two-datasets", or "auto".
            canaries: Planted rows of a one-run audit.
            runs: Trainings; by default as many as fit into about a minute.
            confidence: Of the lower bound.
            seed: Of the audit.
            progress: As for `fit`.

        Returns:
            A row for each release that the claim covers, with what was found in it alone; `facts` has the bounds of
            all together, and their meaning in plain words.
        """
        with self._citing(), task_progress("auditing", "training runs", progress) as callback:
            rows, module = self._inputs(self.config, self._loaded)
            found = audit(
                self.config, root=self._data_dir, dataset=rows, module=module, client=client, kind=kind,
                canaries=canaries, runs=runs, confidence=confidence, seed=seed, progress=callback,
            )  # fmt: skip
        return audit_table(asdict(found))

    def attack(self, epsilons: Sequence[float] = (math.inf, 8.0, 1.0), *, shadows: int = 32, seed: int = 0) -> Table:
        """Attack the trained model as people know it: membership inference by LiRA, at several budgets for all clients.

        Args:
            epsilons: The budgets; infinity trains without privacy.
            shadows: The number of runs at each budget, which are trained in lockstep on random halves of the rows.
            seed: Of the halves, and of the runs.

        Returns:
            A row for each budget: how well members are distinguished, and the most that the guarantee allows.
        """
        with self._citing():
            rows, module = self._inputs(self.config, self._loaded)
            found = membership(
                self.config, epsilons, root=self._data_dir, dataset=rows, module=module, shadows=shadows, seed=seed
            )
        return attack_table([asdict(each) for each in found])

    def measure(self, directory: str | Path | None = None) -> Table:
        """Compute the metrics of the papers besides accuracy, for the last `fit` or the finished run in a directory.

        It looks at all data without noise: for simulations alone.
        """
        if directory is not None:
            module = self._inputs(self.config, self._loaded)[1]
            return measure_table(
                metrics.measure_run(path_argument("directory", directory), self._data_dir, self._rows, module)
            )
        if self._last is None:
            raise HushError("measure: nothing is trained yet; call fit first, or give the directory of a finished run")
        done = self._last
        if not trained(done.records):
            raise HushError(f"measure: {done.result.ended}; only the initial model could be measured")
        return measure_table(metrics.measures(done.federation, done.models, done.assignments, done.result.rounds))

    def __repr__(self) -> str:
        config = self.config
        data = repr(self._rows) if self._rows is not None else repr(config.data.files or config.data.name)
        made = self._module if self._module is not None else self._factory
        model = repr(config.model.name) if made is None else _name_of(made)
        return (
            f"Simulation(data={data}, model={model}, recipe={config.recipe.get('name', 'custom')!r}, "
            f"rounds={config.rounds}, seed={config.seed})"
        )

    def _side_by_side(
        self, variants: Mapping[str, Config], seeds: int, out: str | Path | None, resume: bool,
        progress: bool | comparison.Progress | None, track: str | Sequence[str] | None, command: str,
        axes: comparison.Axes | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        path = _directory(out, resume)
        comparison.check_seeds(seeds)
        callback = progress if callable(progress) else None
        show = progress if progress is None or isinstance(progress, bool) else False
        total = seeds * sum(variant.rounds for variant in variants.values())
        federation_of = self._preparation()
        tracking = tracking_of(track)
        with self._citing(), tracking, interruptible(path) as over, progress_bar(total, show) as bar:

            def callbacks(name: str, seed: int) -> list[Callback]:
                if not tracking:
                    return []
                folder = None if path is None else path / comparison.path_of(name, seed)
                written = [] if folder is None else [_ReportWriter(folder)]
                group = path.name if path is not None else f"{len(variants)} variants, seed {self.config.seed}"
                return [*written, *tracking.of(f"{name}, seed {seed}", group, folder)]

            def advance(name: str, seed: int, record: RoundRecord) -> None:
                over.append(record)
                bar.show(name, record)
                bar.advance(None, round_words(record, f"{name}, seed {seed}"))
                if callback is not None:
                    callback(name, seed, record)

            return comparison.compared(
                self.config, variants, seeds, path, resume, federation_of, command, advance, axes, callbacks
            )

    def _tuned(
        self, variants: Mapping[str, Config], out: str | Path | None, ledgers: str | Path | None,
        progress: bool | comparison.Progress | None, command: str, axes: comparison.Axes,
    ) -> dict[str, Any]:  # fmt: skip
        """Tune within the budgets, and return the summary of a sweep with the choice in it."""
        path = _directory(out, False)
        callback = progress if callable(progress) else None
        show = progress if progress is None or isinstance(progress, bool) else False
        total = sum(variant.rounds for variant in variants.values())
        with self._citing(), progress_bar(total, show) as bar:

            def callbacks(name: str, seed: int) -> list[RoundFunction]:
                def advance(record: RoundRecord) -> None:
                    bar.show(name, record)
                    bar.advance(None, round_words(record, name))
                    if callback is not None:
                        callback(name, seed, record)

                return [advance]

            found = tuned(
                variants, self._preparation(), out=path, command=command, callbacks=callbacks,
                ledgers=None if ledgers is None else path_argument("ledgers", ledgers),
            )  # fmt: skip
        runs = {name: [run.result] for name, run in found.runs.items()}
        self._last = found.runs[found.chosen]
        summary = comparison.summarised(self.config, variants, runs, path, command, axes)
        return {**summary, "tuning": found.facts()}

    def _preparation(self) -> comparison.Prepare:
        """Return a function that prepares configs, which share data and isolated modules where they can."""
        loaded: dict[str, ClientData] = {}
        isolated: dict[object, Model] = {}

        def federation_of(config: Config) -> Federation:
            rows, module = self._inputs(config, loaded)
            if module is None:
                return prepare(config, root=self._data_dir, dataset=rows)
            shape, which = rows.dataset.x.shape[1:], None if self._factory is None else config.seed
            variant = (config.model.model_dump_json(), config.seed if config.model.adapters != "none" else None)
            key = (which, shape, rows.dataset.classes, config.objective.task, config.engine.device, variant)
            federation = prepare(config, root=self._data_dir, dataset=rows, module=isolated.get(key, module))
            isolated[key] = federation.model
            return federation

        return federation_of

    def _prepare(self, *, lasting: bool = False) -> Federation:
        """Return the federation of the given data and model; what is read from files is read once."""
        rows, module = self._inputs(self.config, self._loaded)
        return prepare(self.config, root=self._data_dir, dataset=rows, module=module, lasting=lasting)

    def _inputs(self, config: Config, loaded: dict[str, ClientData]) -> tuple[ClientData, nn.Module | None]:
        """Return the rows and the module that a config is run with."""
        key = f"{config.data.model_dump_json()} {config.seed}"
        if key not in loaded:
            loaded[key] = load(config, self._data_dir) if self._rows is None else own_data(self._rows, config)
        rows = loaded[key]
        if self._factory is None:
            return rows, self._module
        with seeded(config.seed):
            return rows, _made(self._factory, config, rows)

    def _own_rows(
        self, rows: object, owners: object, classes: int | Sequence[object] | None, persons: object, apart: object
    ) -> ClientData | None:
        if rows is None and (persons is not None or apart is not None):
            raise HushError("person, row_budgets: given without data; accepted: those of the rows of your own data")
        if rows is None:
            if classes is not None:
                raise HushError("classes: given without data; accepted: the classes of your own data")
            return None
        data = self.config.data
        if data.files is not None:
            raise HushError("data.files: given beside data; accepted: one of them", "data.files")
        if isinstance(rows, datasets.Dataset) and owners is None:
            own = datasets.as_own(rows)
            own = own if persons is None else client_data.with_persons(own, persons)
            return ClientData(own if apart is None else client_data.with_row_budgets(own, apart))
        return client_data.clients(
            rows, clients=owners, label=data.label, client=data.client, schema=data.table_schema, classes=classes,
            targets=targets_of(self.config), person=data.person if persons is None else persons,
            row_budgets=self.config.privacy.row_budgets if apart is None else apart,
        )  # fmt: skip

    @contextmanager
    def _citing(self) -> Iterator[None]:
        """Errors name the keyword argument in place of its key, or say where in the file a key stands."""
        try:
            with locating(self._path, self._overrides, [*self._keywords, *self._settings]):
                yield
        except HushError as error:
            key = error.key or ""
            if key in self._keywords and type(error) is HushError and str(error).startswith(key):
                raise HushError(f"{self._keywords[key]}{str(error).removeprefix(key)}", key) from None
            raise


@contextmanager
def _files(path: Path | None, tracking: Tracking) -> Iterator[Path | None]:
    """Yield the run directory, or a temporary one where only a tracker keeps the files."""
    if path is not None or not tracking:
        yield path
        return
    with TemporaryDirectory(prefix="hush-") as folder:
        yield Path(folder)


class _ReportWriter(Callback):
    """Writes the report of a run directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_run_end(self, result: RunResult) -> None:
        """Write it."""
        report.write(self._path)


def _named_data(data: object) -> tuple[dict[str, Any], object]:
    """Return data given by name or as files as config keys, and any other data as it is."""
    if data is None:
        return {}, None
    if isinstance(data, str) and not data.lower().endswith(_FILES) and not any(mark in data for mark in "*?/\\"):
        return {"data.name": data}, None
    if isinstance(data, str | Path):
        return {"data.files": str(data)}, None
    if isinstance(data, list) and data and all(isinstance(each, str | Path) for each in data):
        return {"data.files": [str(each) for each in data]}, None
    return {}, data


def _given_model(model: object) -> tuple[nn.Module | None, Factory | None, str | None]:
    """Return a model as a module, as a function that makes one, or as a name."""
    if model is None or isinstance(model, str):
        return None, None, model
    if isinstance(model, nn.Module):
        return model, None, None
    if callable(model):
        return None, model, None
    found = type(model).__name__
    raise HushError(
        f"model: found {found}; accepted: an nn.Module, a model's name, a mapping, or a function that makes one"
    )


def _made(factory: Factory, config: Config, rows: ClientData) -> nn.Module:
    """Return the module that a factory makes for the rows."""
    dataset = rows.dataset
    shape = shapes_of(tuple(dataset.x.shape[1:]), dataset.inputs)
    return given_module(factory, shape, outputs_of(task_of(config, dataset), dataset))


def _checked_settings(
    settings: Mapping[str, Any] | Sequence[str], keywords: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings as values by dotted key, or as `key=value` strings."""
    if isinstance(settings, str) or not isinstance(settings, Mapping | Sequence):
        raise HushError(
            f"settings: found {settings!r:.80}; accepted: a mapping from dotted keys, or a list of key=value strings"
        )
    if isinstance(settings, Mapping):
        values = {KEYWORDS.get(str(key), str(key)): value for key, value in settings.items()}
        if twice := [keywords[key] for key in values if key in keywords]:
            raise HushError(f"settings: {', '.join(twice)} also given as an argument; accepted: one of them")
        return values, ()
    if wrong := [each for each in settings if not isinstance(each, str)]:
        raise HushError(f"settings: found {wrong[0]!r:.80}; accepted: key=value strings, or a mapping")
    return {}, tuple(settings)


def _raw(config: Config | Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """Return a config as a nested mapping of the keys that are given; others may follow from the data."""
    if config is None:
        return {}
    if isinstance(config, str | Path):
        return read(Path(config))
    if isinstance(config, Config):
        return given(config)
    if not isinstance(config, Mapping):
        raise HushError(
            f"config: found {type(config).__name__}; accepted: a Config, a mapping or the path of a TOML file"
        )
    raw = dict(config)
    return raw if isinstance(raw.get("recipe", {}), Mapping) else {**raw, "recipe": as_table(raw["recipe"])}


def _plain(value: Any) -> Any:
    """Convert arrays, tuples and paths to lists, numbers and strings, as a config holds them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value) and hasattr(value, "record"):
        return value.record()
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _axes(grid: Mapping[str, Sequence[Any]]) -> comparison.Axes:
    """Return the axes of a grid given in Python, with a label for each value."""
    axes: dict[str, list[tuple[str, Any]]] = {}
    known = [*KEYWORDS, "recipe"]
    for name, values in grid.items():
        if not isinstance(name, str) or ("." not in name and name not in known):
            raise unknown("grid", "setting", name, known, ", or a dotted key such as local.lr")
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise HushError(f"grid: found {values!r:.80} for {name}; accepted: a list of values to try")
        listed = [as_table(value) if name == "recipe" else _plain(value) for value in values]
        if not listed:
            raise HushError(f"grid: no values for {name}; accepted: a list of values to try")
        labels = [
            value if isinstance(value, str) else inline(described(_plain(value)))
            for value in values
        ]  # fmt: skip
        if len(set(labels)) != len(labels):
            raise HushError(f"grid: duplicate values for {name}; accepted: different values")
        axes[KEYWORDS.get(name, name)] = list(zip(labels, listed, strict=True))
    if not axes:
        raise HushError('grid: empty; accepted: values to try by setting, such as {"lr": [0.01, 0.1]}')
    return axes


def _directory(out: str | Path | None, resume: bool) -> Path | None:
    """Return the directory to write to; says so where there is nothing in it to go on with."""
    if out is None:
        if resume:
            raise HushError("resume: requires out, the directory of the run to resume")
        return None
    path = path_argument("out", out)
    if resume and not (path.is_dir() and any(path.iterdir())):
        _log.warning("%s: nothing to resume there; starting a new run", path)
    return path


def path_argument(name: str, value: object) -> Path:
    """Return an argument as a path, or raise a `HushError` that names it."""
    if isinstance(value, str | Path) and "\0" not in str(value):
        return Path(value)
    raise HushError(f"{name}: found {value!r:.80}; accepted: a path")


def _importable(value: Any) -> bool:
    """Return whether a class or function reads back from its name."""
    if value is None:
        return True
    try:
        return value.__module__ != "__main__" and user_code(f"{value.__module__}:{value.__qualname__}") is value
    except Exception:
        return False


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__name__))
