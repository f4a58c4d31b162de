"""The simulator: all clients of a round as one batched computation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hush.engines import answer
from hush.engines.answer import Client, Work
from hush.engines.books import Books
from hush.engines.enrol import enrolled, with_counts
from hush.engines.evaluate import evaluate
from hush.engines.federation import Federation
from hush.engines.outcome import manifest, outcome
from hush.engines.together import train_together
from hush.models import unflatten
from hush.privacy.course import ENROLMENT
from hush.privacy.ledger import BudgetSpentError
from hush.server.loop import Answer, ServerState, serve, short_of_quorum, start
from hush.server.rundir import MANIFEST, RunDir, read_json
from hush.types import Decline, HushError, RoundRecord, RunResult, Task, Update

Progress = Callable[[RoundRecord], None]
Arrays = dict[object, tuple[Tensor, Tensor]]


class Cohort:
    """The clients, simulated together."""

    def __init__(self, federation: Federation, held: Books, arrays: Arrays | None = None) -> None:
        self.federation = federation
        self._arrays: Arrays = {} if arrays is None else arrays
        self._books = held
        federation.model.module.to(federation.device)
        self._bounds = federation.data.bounds()
        self._phase: tuple[int, ...] | None = None
        self._round = -1
        self.x = self.y = torch.empty(0)
        self.idle = 0.0

    def accept(self, tasks: Sequence[Task]) -> tuple[list[Work], list[Answer]]:
        """What to train for the clients that can afford it, and the answers of the others. The receipt comes first."""
        works: list[Work] = []
        declined: list[Answer] = []
        for task in tasks:
            stage = self.federation.stage(task.client, task.round)
            try:
                receipt = self._books.charge(task, stage.costs())
            except BudgetSpentError as error:
                declined.append(Decline(task.client, task.round, f"budget spent: {error}", final=True))
                continue
            if receipt is None:
                declined.append(Decline(task.client, task.round, "answered before, and the answer is no longer kept"))
            elif isinstance(receipt, Update):
                declined.append(receipt)
            else:
                self._hold(task.round)
                works.append(answer.work(task, receipt, stage, self._client(task.client, task.round)))
        return works, declined

    def answer(self, tasks: Sequence[Task]) -> list[Answer]:
        """All of a round, for one run alone."""
        works, declined = self.accept(tasks)
        return [*declined, *self.seal(works, train_together([(self, works)])[0])]

    def seal(self, works: Sequence[Work], vectors: Sequence[Tensor]) -> list[Answer]:
        """The updates to send back."""
        updates = [answer.sealed(done, vector) for done, vector in zip(works, vectors, strict=True)]
        for update in updates:
            self._books.seal(update)
        return list(updates)

    def _client(self, client: int, number: int) -> Client:
        federation = self.federation
        config = federation.config
        source = answer.source(federation.recipe, config, client, number)
        first, end, _ = self._bounds[client]
        x, y = self.x[first:end], self.y[first:end]
        return Client(federation.recipe, config, federation.model, x, y, first, source, federation.outputs[client])

    def rows(self, client: int) -> Tensor:
        """A client's training rows as it holds them in the first round, behind the model's fixed features."""
        self._hold(1)
        first, end, _ = self._bounds[client]
        return self.x[first:end]

    def evaluate(self, models: Tensor, placed: Sequence[int], round_number: int) -> tuple[tuple[float, ...], float]:
        """Accuracy of each client on its own test rows, and the mean loss over all of them."""
        self._hold(round_number)
        test = [range(first, end) for _, first, end in self._bounds]
        return evaluate(self.federation.model, models, placed, self.x, self.y, test)

    def _hold(self, round_number: int) -> None:
        """Have the arrays of this round on the device."""
        if round_number == self._round:
            return
        self._round = round_number
        phase = self.federation.data.phase(round_number)
        if phase == self._phase:
            return
        key = (self.federation.data_key(), phase)
        if key not in self._arrays:
            if self._phase is not None:
                self._arrays.pop((self.federation.data_key(), self._phase), None)
            self._arrays[key] = self.federation.arrays(round_number)
        self.x, self.y = self._arrays[key]
        self._phase = phase


Execution = Generator[tuple[Cohort, list[Work]], Sequence[Tensor], RunResult]


def run(
    federation: Federation,
    out: Path | None = None,
    *,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
    announce: Callable[[tuple[str, ...]], None] | None = None,
    ledgers: Path | None = None,
) -> RunResult:
    """Run a federation to its end, keeping every round in `out` if that is given.

    `announce` is told, before the first round, what no epsilon covers. `ledgers` is a directory of ledger files to go
    on with; without one, ledgers live as long as the run.
    """
    one = execution(
        federation, out, resume=resume, command=command, progress=progress, announce=announce, ledgers=ledgers
    )
    (result,) = lockstep([one])
    return result


def execution(
    federation: Federation,
    out: Path | None = None,
    *,
    resume: bool = False,
    command: str = "",
    progress: Progress | None = None,
    announce: Callable[[tuple[str, ...]], None] | None = None,
    ledgers: Path | None = None,
    arrays: Arrays | None = None,
) -> Execution:
    """One run as a generator: it gives what is to be trained, is sent the updates, and returns the result."""
    began = time.perf_counter()
    directory = _open(federation, out, resume, command)
    if announce is not None:
        announce(federation.not_covered())
    if directory is not None and (done := directory.finished()) is not None:
        return done
    held = Books(federation.ledgers(ledgers), _run_name(directory), durable=ledgers is not None)
    records: list[RoundRecord] = []
    cohort = Cohort(federation, held, arrays)
    terms, kept = federation.terms, directory.restore() if directory is not None and resume else None
    if kept is not None:
        state, records = kept
        terms = with_counts(terms, state.slots["loop"]["samples"])
        _recharge(federation, held, records)
        began -= records[-1].seconds
    else:
        terms, told = enrolled(federation, held, cohort.rows)
        state = start(terms, federation.starts(), told)
    clients = range(len(federation.members))

    def keep(new: ServerState, record: RoundRecord) -> None:
        homes = federation.recipe.assign.homes(clients, new.slots["assign"])
        accuracies, loss = cohort.evaluate(federation.plain(new.released, new.slots["protect"]), homes, new.round)
        seconds = time.perf_counter() - began - cohort.idle
        done = replace(record, accuracy_per_client=accuracies, loss=loss, seconds=seconds)
        records.append(done)
        if directory is not None:
            directory.save(new, done)
        if progress is not None:
            progress(done)

    loop = serve(terms, state, keep)
    try:
        tasks = next(loop)
        while True:
            works, declined = cohort.accept(tasks)
            vectors = yield cohort, works
            tasks = loop.send([*declined, *cohort.seal(works, vectors)])
    except StopIteration as end:
        state = end.value
    ended = short_of_quorum(terms, state) or "all rounds are done"
    result = outcome(federation, held.ledgers, records, ended)
    held.close()
    if directory is not None:
        directory.finish(result, named(federation, federation.plain(state.released, state.slots["protect"])))
    return result


def lockstep(executions: Sequence[Execution]) -> list[RunResult]:
    """Drive several runs together, round by round: what can be trained in one piece is."""
    results: dict[int, RunResult] = {}
    waiting: dict[int, tuple[Cohort, list[Work]]] = {}
    since: dict[int, float] = {}

    def advance(number: int, vectors: Sequence[Tensor] | None) -> None:
        try:
            each = executions[number]
            waiting[number] = next(each) if vectors is None else each.send(vectors)
        except StopIteration as end:
            results[number] = end.value
        since[number] = time.perf_counter()

    for number in range(len(executions)):
        advance(number, None)
    while waiting:
        asked, waiting = waiting, {}
        total, began = max(1, sum(len(works) for _, works in asked.values())), time.perf_counter()
        trained = train_together(list(asked.values()))
        training = time.perf_counter() - began
        for number, vectors in zip(asked, trained, strict=True):
            # A run's own time is its own work and its part of the training; the rest it waited for others.
            cohort, works = asked[number]
            cohort.idle += time.perf_counter() - since[number] - training * len(works) / total
            advance(number, vectors)
    return [results[number] for number in range(len(executions))]


def _open(federation: Federation, out: Path | None, resume: bool, command: str) -> RunDir | None:
    if out is None:
        return None
    content = manifest(federation, command)
    if resume and (out / "manifest.json").exists():
        return RunDir.reopen(out, content["config_hash"])
    if resume and out.exists() and any(out.iterdir()):
        raise HushError(f"{out}: nothing to resume: it holds no manifest.json")
    return RunDir.create(out, content)


def _run_name(directory: RunDir | None) -> str:
    """What a run is called in ledgers that outlive it."""
    return str(read_json(directory.path / MANIFEST)["run"]) if directory is not None else uuid.uuid4().hex


def _recharge(federation: Federation, held: Books, records: Sequence[RoundRecord]) -> None:
    """Charge what a resumed run has already released."""
    if federation.terms.outline.of[ENROLMENT] >= 0:
        for member in federation.members:
            held.recharge(member.client, federation.stage(member.client, ENROLMENT).costs(), ENROLMENT)
    for record in records:
        for client in record.charged:
            held.recharge(client, federation.stage(client, record.round).costs(), record.round)


def named(federation: Federation, models: Tensor) -> dict[str, Tensor]:
    """The released models by the names of their tensors, as they are stored."""
    layout = federation.model.layout
    if len(models) == 1:
        return {name: value.contiguous() for name, value in unflatten(models[0], layout).items()}
    return {
        f"{number}.{name}": value.contiguous()
        for number, model in enumerate(models)
        for name, value in unflatten(model, layout).items()
    }
