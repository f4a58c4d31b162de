"""The simulator: all clients of a round as one batched computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hush.engines.evaluate import evaluate
from hush.engines.federation import Federation
from hush.engines.outcome import manifest, outcome
from hush.local.train import Job, train
from hush.models import unflatten
from hush.privacy import noise
from hush.privacy.ledger import BudgetSpentError, Ledger
from hush.server.loop import Answer, ServerState, serve, short_of_quorum, start
from hush.server.rundir import RunDir
from hush.types import Decline, HushError, Receipt, RoundRecord, RunResult, Task, Update

Progress = Callable[[RoundRecord], None]


class Cohort:
    """The clients, simulated together."""

    def __init__(self, federation: Federation, ledgers: Sequence[Ledger]) -> None:
        self._federation = federation
        self._ledgers = ledgers
        self._device = federation.device
        federation.model.module.to(self._device)
        self._bounds = federation.data.bounds()
        self._phase: tuple[int, ...] | None = None
        self._x = self._y = torch.empty(0)

    def answer(self, tasks: Sequence[Task]) -> list[Answer]:
        """Train every task whose client can afford it. The receipt comes first, the work after."""
        granted: list[tuple[Task, Receipt]] = []
        declined: list[Answer] = []
        for task in tasks:
            try:
                receipt = self._ledgers[task.client].reserve(self._federation.plans[task.client], task.round)
            except BudgetSpentError as error:
                declined.append(Decline(task.client, task.round, f"budget spent: {error}", final=True))
            else:
                granted.append((task, receipt))
        return [*declined, *self._train(granted)]

    def _train(self, granted: Sequence[tuple[Task, Receipt]]) -> list[Update]:
        if not granted:
            return []
        self._hold(granted[0][0].round)
        jobs = [self._job(task) for task, _ in granted]
        engine = self._federation.config.engine
        vectors = train(self._federation.model, self._x, self._y, jobs, engine.physical_batch)
        return [
            Update(task.client, task.round, vector.cpu(), task.layout, receipt)
            for (task, receipt), vector in zip(granted, vectors, strict=True)
        ]

    def evaluate(self, models: Tensor, placed: Sequence[int], round_number: int) -> tuple[tuple[float, ...], float]:
        """Accuracy of each client on its own test rows, and the mean loss over all of them."""
        self._hold(round_number)
        test = [range(first, end) for _, first, end in self._bounds]
        return evaluate(self._federation.model, models, placed, self._x, self._y, test)

    def _job(self, task: Task) -> Job:
        config = self._federation.config
        secure = config.privacy.noise == "secure"
        source = noise.secure() if secure else noise.replayable(config.seed, task.client, task.round)
        first = self._bounds[task.client][0]
        return Job(task.model.to(self._device), first, self._federation.plans[task.client], config.local.lr, source)

    def _hold(self, round_number: int) -> None:
        """Have the arrays of this round on the device."""
        phase = self._federation.data.phase(round_number)
        if phase == self._phase:
            return
        x, y = self._federation.data.arrays(round_number)
        inputs = torch.from_numpy(np.ascontiguousarray(x)).to(self._device)
        features = self._federation.model.features
        self._x = inputs if features is None else features(inputs)
        self._y = torch.from_numpy(y).to(self._device)
        self._phase = phase


def run(
    federation: Federation,
    out: Path | None = None,
    *,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
    announce: Callable[[tuple[str, ...]], None] | None = None,
) -> RunResult:
    """Run a federation to its end, keeping every round in `out` if that is given.

    `announce` is told, before the first round, what no epsilon covers.
    """
    began = time.perf_counter()
    directory = _open(federation, out, resume, command)
    if announce is not None:
        announce(federation.not_covered())
    ledgers = federation.ledgers()
    records: list[RoundRecord] = []
    state = start(federation.recipe, federation.model.start)
    if directory is not None and resume and (kept := directory.restore()) is not None:
        state, records = kept
        _recharge(federation, ledgers, records)
        began -= records[-1].seconds
    cohort = Cohort(federation, ledgers)
    clients = range(len(federation.members))

    def keep(new: ServerState, record: RoundRecord) -> None:
        placed = federation.recipe.assign.place(clients, new.slots.get("assign", {}))
        accuracies, loss = cohort.evaluate(new.released, placed, new.round)
        done = RoundRecord(
            **{**vars(record), "accuracy_per_client": accuracies, "loss": loss, "seconds": time.perf_counter() - began}
        )
        records.append(done)
        if directory is not None:
            directory.save(new, done)
        if progress is not None:
            progress(done)

    loop = serve(federation.terms, state, keep)
    try:
        tasks = next(loop)
        while True:
            tasks = loop.send(cohort.answer(tasks))
    except StopIteration as end:
        state = end.value
    ended = short_of_quorum(federation.terms, state) or "all rounds are done"
    result = outcome(federation, ledgers, records, ended)
    if directory is not None:
        directory.finish(result, _named(federation, state.released))
    return result


def _open(federation: Federation, out: Path | None, resume: bool, command: str) -> RunDir | None:
    if out is None:
        return None
    content = manifest(federation, command)
    if resume and (out / "manifest.json").exists():
        return RunDir.reopen(out, content["config_hash"])
    if resume and out.exists() and any(out.iterdir()):
        raise HushError(f"{out}: nothing to resume: it holds no manifest.json")
    return RunDir.create(out, content)


def _recharge(federation: Federation, ledgers: Sequence[Ledger], records: Sequence[RoundRecord]) -> None:
    """Charge the rounds that a resumed run has already released."""
    for record in records:
        for client in record.charged:
            ledgers[client].reserve(federation.plans[client], record.round)


def _named(federation: Federation, models: Tensor) -> dict[str, Tensor]:
    layout = federation.model.layout
    if len(models) == 1:
        return {name: value.contiguous() for name, value in unflatten(models[0], layout).items()}
    return {
        f"{number}.{name}": value.contiguous()
        for number, model in enumerate(models)
        for name, value in unflatten(model, layout).items()
    }
