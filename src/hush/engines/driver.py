"""The driver of a run: it enrols or restores, runs the rounds, evaluates and saves each of them, and makes the result.

A simulation and a deployment share it. What differs between them is the `Host`: where the clients are, and who answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hush.callbacks import RoundFunction
from hush.engines.fine_tuning import fine_tuning_warnings, frozen_score
from hush.engines.results import outcome
from hush.engines.round_costs import round_costs_of
from hush.engines.setup import Federation
from hush.engines.trained import trained_model
from hush.models import Model
from hush.objective.evaluation import evaluate_metrics
from hush.privacy.ledger import Spending
from hush.privacy.round_costs import RoundCosts
from hush.recipes.context import State
from hush.server.evaluation import SLOT, chosen
from hush.server.loop import Answers, ServerState, ended_early, serve, start
from hush.server.run_directory import RunDir
from hush.stop_request import clear_stop, stop_requested
from hush.trained_model import contents
from hush.training import input_mean, memory
from hush.types import STOPPED, RoundRecord, RunResult, Task

_AT_ONCE = {"cpu": 512, "cuda": 4096}  # rows that are evaluated at a time, at least on a GPU
ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletedRun:
    """All that a run leaves in memory.

    Attributes:
        result: As it is saved.
        records: Of every round.
        models: The released models, models x p, for inputs as they are.
        assignments: The model of each client.
        federation: As it was planned from enrolment.
    """

    result: RunResult
    records: tuple[RoundRecord, ...]
    models: Tensor
    assignments: tuple[int, ...]
    federation: Federation


Rounds = Generator[list[Task], Answers, CompletedRun]
Evaluation = tuple[tuple[float, ...], float]  # the primary score of each client, and the mean loss
Evaluator = Callable[[Model, Tensor, Sequence[int], Tensor, Tensor, Sequence[range]], Evaluation]


class Host(Protocol):
    """Where the clients of a run are: in this process, or on machines of their own."""

    @property
    def ledgers(self) -> Sequence[Spending]:
        """What each client has spent, as far as it is known here."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """What the clients are called; empty where they have only numbers."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What to warn of before anything that a round brings."""
        ...

    @property
    def on_round_end(self) -> Sequence[RoundFunction]:
        """What is called after each round, once it is saved; one that returns True stops the run there."""
        ...

    def enrolled(self, costs: RoundCosts, records: Sequence[RoundRecord]) -> None:
        """Tell what the rounds will cost the clients, before the first one."""
        ...

    @property
    def idle(self) -> float:
        """Seconds so far that this run waited for others, which do not count."""
        ...

    def enrol(self) -> tuple[Federation, State]:
        """Begin a new run: the federation as it is planned from enrolment, and the state from enrolment."""
        ...

    def resume(self, state: ServerState, records: Sequence[RoundRecord]) -> Federation:
        """Take up a saved run: what its rounds released is counted again."""
        ...

    def evaluate(self, models: Tensor, placed: Sequence[int], round_number: int) -> tuple[tuple[float, ...], float]:
        """Return the primary score of each client under the model it is placed on, and the mean loss."""
        ...

    def measure(self, models: Tensor, placed: Sequence[int], round_number: int) -> dict[str, Any]:
        """Return all metrics of the objective (`hush.objective.evaluation`), at the end of a run."""
        ...

    def enrolment_saved(self) -> None:
        """Note that the first round is saved, and with it what enrolment released."""
        ...


def drive(host: Host, directory: RunDir | None, *, resume: bool, began: float) -> Rounds:
    """Run all rounds from enrolment or the last saved round: a generator that yields tasks and receives answers.

    `began` is when the run began, by `time.perf_counter`. The result is then in the directory as well, unless the run
    was stopped: what is saved can then be resumed.
    """
    restored = directory.restore() if directory is not None and resume else None
    records: list[RoundRecord] = []
    if restored is not None:
        state, records = restored
        federation = host.resume(state, records)
        began -= records[-1].seconds
    else:
        federation, enrolment = host.enrol()
        state = start(federation.terms, federation.starts(), enrolment)

    costs = round_costs_of(federation, host.ledgers, records)
    if directory is not None:
        clear_stop(directory.path)
        directory.write_costs(costs.to_json())
    host.enrolled(costs, tuple(records))
    primary = federation.model.objective.primary.name
    accuracies = primary == ACCURACY

    def keep(new: ServerState, record: RoundRecord) -> bool:
        scores, loss = host.evaluate(*released(federation, new), new.round)
        seconds = time.perf_counter() - began - host.idle
        done = replace(
            record,
            loss=loss,
            seconds=seconds,
            primary=primary,
            accuracy_per_client=scores if accuracies else (),
            score_per_client=() if accuracies else scores,
        )
        records.append(done)
        if directory is not None:
            directory.save(new, done)
        if new.round == 1:
            host.enrolment_saved()
        # Every function is called, also if one before it stops the run.
        answers = [function(done) for function in host.on_round_end]
        if directory is not None and stop_requested(directory.path):
            clear_stop(directory.path)
            return True
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    state = yield from serve(federation.terms, state, keep)
    ended = ended_early(federation.terms, state)
    stopped = ended is None and state.round < len(federation.terms.participants)
    ended = ended or (f"{STOPPED} {state.round}" if stopped else "all rounds are done")
    models, assignments = released(federation, state)
    metrics = host.measure(models, assignments, state.round)
    tuned: tuple[str, ...] = ()
    if federation.model.adapters is not None:
        scores, before = (host.evaluate(each, assignments, state.round)[0] for each in (models, federation.starts()))
        metrics["frozen"] = frozen_score(federation, models, scores, before)
        tuned = fine_tuning_warnings(federation, metrics["frozen"])
    result = outcome(federation, host.ledgers, records, ended, host.names, metrics)
    result = replace(result, warnings=(*host.warnings, *tuned, *result.warnings))
    if directory is not None and not stopped:
        directory.finish(result, contents(trained_model(federation, models, assignments, result)))
    return CompletedRun(
        result=result, records=tuple(records), models=models, assignments=assignments, federation=federation
    )


def released(federation: Federation, state: ServerState) -> tuple[Tensor, tuple[int, ...]]:
    """Return the models that a state releases, models x p, for inputs as they are, and the model of each client."""
    assignments = federation.recipe.assign.assignments(range(len(federation.members)), state.slots["assign"])
    asked = federation.recipe.evaluation
    best = None if asked is None else chosen(asked, state.slots.get(SLOT, {}))
    models = state.released if best is None else best
    return uncentred(federation, models, state.slots["protect"]), tuple(assignments)


def run_rounds(rounds: Rounds, answer: Callable[[list[Task]], Answers]) -> CompletedRun:
    """Run all rounds with answers that a function obtains."""
    try:
        tasks = next(rounds)
        while True:
            tasks = rounds.send(answer(tasks))
    except StopIteration as end:
        done: CompletedRun = end.value
        return done


def uncentred(federation: Federation, models: Tensor, protect: State) -> Tensor:
    """Return models, models x p, for inputs as they are, if training centred inputs by an estimated mean."""
    mean = federation.recipe.protect.input_mean(protect)
    return models if mean is None else input_mean.uncentred(input_mean.linear_layer(federation.model), models, mean)


def evaluate(
    model: Model, vectors: Tensor, placed: Sequence[int], x: Tensor, y: Tensor, test: Sequence[range]
) -> tuple[tuple[float, ...], float]:
    """Return the primary score of each client under the model it is placed on, and the mean loss over all rows.

    Args:
        model: Gives the outputs, and what they mean.
        vectors: Parameters of each model, models x p.
        placed: The model number of each client.
        x: Inputs of all clients.
        y: Targets of all clients.
        test: The test rows of each client.
    """
    objective = model.objective
    rows = torch.cat([torch.arange(r.start, r.stop) for r in test])
    owner = torch.repeat_interleave(torch.arange(len(test)), torch.tensor([len(r) for r in test]))
    total = torch.zeros(len(test), dtype=torch.float64)
    loss = 0.0
    for number, vector in enumerate(vectors.to(x.device)):
        mine = (torch.tensor(placed)[owner] == number).nonzero().flatten()
        for part in mine.split(rows_at_once(model, x)):
            chosen = rows[part].to(x.device)
            outputs, truth = model.logits(vector, x[chosen]), y[chosen]
            loss += objective.loss(outputs.double(), truth, reduction="sum").item()
            total.index_add_(0, owner[part], objective.row_scores(outputs, truth).cpu())
    counts = torch.tensor([len(r) for r in test], dtype=torch.float64)
    return tuple(objective.score_of(total / counts).tolist()), loss / len(rows)


def rows_at_once(model: Model, x: Tensor) -> int:
    """Return how many rows are evaluated at a time: on a GPU, where each piece is waited for, as many as fit; on a CPU
    few, whose activations stay in its cache.
    """
    least = _AT_ONCE[x.device.type]
    return max(least, memory.physical_batch(model, x.device, 1)) if x.is_cuda else least


def measure(
    model: Model, vectors: Tensor, placed: Sequence[int], x: Tensor, y: Tensor, test: Sequence[range],
    names: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return all metrics over the clients' test rows; arguments as for `evaluate`, and the names of the clients."""
    outputs = []
    for home, own in zip(placed, test, strict=True):
        vector = vectors[home].to(x.device)
        parts = x[own.start : own.stop].split(rows_at_once(model, x))
        outputs += [model.logits(vector, part).cpu() for part in parts]
    targets = torch.cat([y[own.start : own.stop].cpu() for own in test])
    return evaluate_metrics(model.objective, torch.cat(outputs), targets, [len(own) for own in test], names)
