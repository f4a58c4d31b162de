"""The simulator: all clients of a round as one batched computation."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import load, save
from torch import Tensor

from hush.callbacks import Callbacks, RunStart, objects, round_functions
from hush.engines import client_round
from hush.engines.client_round import Client, Work
from hush.engines.driver import CompletedRun, Evaluator, Rounds, drive, evaluate, measure, released, run_rounds
from hush.engines.enrolment import approve_training, enrolled
from hush.engines.fingerprint import Hashes, identity
from hush.engines.results import manifest
from hush.engines.row_stores import BlockRows, DeviceRows, FileRows, MemoryRows, decoded, without_vectors
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import Federation
from hush.models.isolation import TracedModule
from hush.privacy.ledger import BudgetSpentError, Spending
from hush.privacy.persons import Persons
from hush.privacy.round_costs import RoundCosts
from hush.privacy.schedule import ENROLMENT, Stage
from hush.recipes import Recipe
from hush.recipes.context import SAMPLE, State
from hush.recipes.stored_rows import StoredRows
from hush.server.loop import Answer, Answers, ServerState, StoredAnswers
from hush.server.participation import BUDGET_SPENT
from hush.server.run_directory import MANIFEST, RunDir, read_json
from hush.training.job import Job
from hush.training.train import train
from hush.types import Decline, HushError, Receipt, RoundRecord, RunResult, SideAnswers, Task, Update

_log = logging.getLogger("hush")
_RELEASES = "releases."
_SEEDED_LEDGERS = (
    'privacy.noise = "seeded" with ledger files: their budget is spent, and nothing is private, because whoever knows '
    'the seed can subtract the noise; leave privacy.noise out, or set "secure", for data that must be protected'
)
_CLIENTS = 2048  # whose jobs are in memory at a time
_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}  # of the parameters that train at a time
Arrays = dict[object, tuple[Tensor, Tensor]]
Order = Callable[[Task], bytes]


@dataclass(frozen=True)
class Charged:
    """A task whose costs are charged: its receipt, and what the client does."""

    task: Task
    receipt: Receipt
    stage: Stage


_SHORT = 2**26  # numbers in all rows of a run
_WORTH = 2**22  # numbers of a round's updates from which they stay on a GPU


class Simulator:
    """The clients, simulated together: the `Host` of a simulation.

    `arrays` are shared between runs on the same data. `warnings` are those of opening the ledgers, `callbacks`
    are called after each round.
    """

    names: Sequence[str] = ()

    def __init__(
        self,
        federation: Federation,
        ledgers: RunLedgers,
        arrays: Arrays | None = None,
        *,
        warnings: Sequence[str] = (),
        callbacks: Callbacks = (),
    ) -> None:
        self.federation, self.warnings = federation, warnings
        self._arrays: Arrays = {} if arrays is None else arrays
        self._ledgers = ledgers
        self.on_round_end = round_functions(callbacks)
        self._callbacks = objects(callbacks)
        federation.model.to(federation.device)
        self._bounds = federation.data.bounds()
        self._persons = [federation.persons(member.client) for member in federation.members]
        self._phase: tuple[int, ...] | None = None
        self._round, self._stays = -1, False
        self.x = self.y = torch.empty(0)
        self.idle = 0.0
        self.evaluator: Evaluator = evaluate

    @property
    def ledgers(self) -> Sequence[Spending]:
        """Those of all clients, in order of their numbers."""
        return self._ledgers.ledgers

    def enrol(self) -> tuple[Federation, State]:
        """Charge and run enrolment with every client, and plan training from the answers."""
        self.federation, enrolment = enrolled(self.federation, self._ledgers, self.rows)
        return self.federation, enrolment

    def resume(self, state: ServerState, records: Sequence[RoundRecord]) -> Federation:
        """Plan from the numbers of a saved run, and charge what it has already released."""
        self.federation = self.federation.counted([int(count) for count in state.slots["loop"]["samples"]])
        _recharge(self.federation, self._ledgers, records)
        self.enrolment_saved()
        return self.federation

    def enrolled(self, costs: RoundCosts, records: Sequence[RoundRecord]) -> None:
        """Tell the callbacks."""
        for callback in self._callbacks:
            callback.on_enrolled(costs, records)

    def enrolment_saved(self) -> None:
        """Record that each client's enrolment answer was received: it is not requested again."""
        for member in self.federation.members:
            self._ledgers.sent(member.client, ENROLMENT)

    def accept(self, tasks: Sequence[Task]) -> tuple[list[Work], list[Answer]]:
        """Charge each client, and return the work of those that can afford it and the answers of the others."""
        charged, declined = self.charge(tasks)
        if charged:
            self._hold(charged[0].task.round)
        charged = [replace(one, task=task) for one, task in zip(charged, self._moved(charged), strict=True)]
        works = [
            client_round.work(one.task, one.receipt, one.stage, self._client(one.task.client, one.task.round))
            for one in charged
        ]
        return works, declined

    def _moved(self, charged: Sequence[Charged]) -> list[Task]:
        """Return the tasks with their models on the device, those that clients share once."""
        shared: dict[object, Tensor] = {}
        tasks = []
        for task in (one.task for one in charged):
            models = task.models
            key = (models.data_ptr(), models.shape, models.stride())
            tasks.append(replace(task, models=shared.setdefault(key, models.to(self.x.device))))
        return tasks

    def charge(self, tasks: Sequence[Task], order: Order | None = None) -> tuple[list[Charged], list[Answer]]:
        """Charge each client, and return the tasks of those that can afford it and the answers of the others.

        Where a task's answer follows from its `order`, a round that a dead process had charged is computed again under
        the same receipt, if the order is the one that was sealed then.
        """
        accepted: list[Charged] = []
        declined: list[Answer] = []
        schedules, stage_of_round = self.federation.schedules, self.federation.terms.stage_table.of
        for task in tasks:
            stage = schedules[task.client].stages[stage_of_round[task.round]]
            try:
                sealing = None if order is None else partial(order, task)
                charged = self._ledgers.charge(task.client, task.round, stage.round_costs, sealing)
            except BudgetSpentError as error:
                declined.append(Decline(task.client, task.round, f"{BUDGET_SPENT}: {error}", final=True))
                continue
            if charged is None:
                declined.append(
                    Decline(task.client, task.round, "already answered, and the answer is no longer stored")
                )
            elif isinstance(charged, Receipt):
                accepted.append(Charged(task, charged, stage))
            elif order is not None and charged[1] == order(task):
                accepted.append(Charged(task, charged[0], stage))
            elif order is not None:
                declined.append(Decline(task.client, task.round, "already charged for a task with other models"))
            else:
                declined.append(_unpacked(task, *charged))
        return accepted, declined

    def answer(self, tasks: Sequence[Task]) -> list[Answer]:
        """Return the answers of a round, for one run alone."""
        works, declined = self.accept(tasks)
        return [*declined, *self.seal(works, train_together([(self, works)])[0])]

    def collecting(self, tasks: Sequence[Task]) -> RoundAnswers:
        """Return the collection of a round's answers, block by block."""
        federation = self.federation
        block = federation.config.engine.block
        collected = RoundAnswers(
            federation.recipe, tasks, federation.model.layout.size, federation.device,
            None if block == "auto" else block,
        )  # fmt: skip
        self._stays = collected.on_device
        return collected

    def seal(self, works: Sequence[Work], vectors: Sequence[Tensor]) -> list[Answer]:
        """Return the updates to send back."""
        given = vectors if self._stays else _fetched(works, vectors)
        pairs = zip(works, given, strict=True)
        updates = [client_round.sealed(done, vector, stays=self._stays) for done, vector in pairs]
        for update in updates:
            self._ledgers.seal(update.client, update.receipt, partial(_packed, update))
            self._ledgers.sent(update.client, update.round)
        return list(updates)

    def sent(self, updates: Sequence[Update]) -> None:
        """Record that updates whose orders were sealed with their charges are computed."""
        for update in updates:
            self._ledgers.sent(update.client, update.round)

    def _client(self, client: int, number: int) -> Client:
        federation = self.federation
        config = federation.config
        source = client_round.source(config, client, number, shared=federation.shared_draws)
        first, end, last = self._bounds[client]
        x, y, shape = self.x[first:end], self.y[first:end], federation.terms.shape
        return Client(
            recipe=federation.recipe,
            config=config,
            model=federation.model,
            x=x,
            y=y,
            first_row=first,
            source=source,
            shape=shape,
            pull=federation.pull,
            output=federation.outputs[client],
            persons=self._persons[client],
            held_x=self.x[end:last],
            held_y=self.y[end:last],
        )

    def training_rows(self, client: int) -> tuple[int, int]:
        """Return where a client's training rows are: the first, and the one behind the last."""
        first, end, _ = self._bounds[client]
        return first, end

    def held_out_rows(self, client: int) -> tuple[int, int]:
        """Return where the rows are that a client holds out of training: the first, and the one behind the last."""
        _, end, last = self._bounds[client]
        return end, last

    def persons(self, client: int) -> Persons | None:
        """Return whose a client's training rows are, where the unit of privacy is a person."""
        return self._persons[client]

    def arrays(self, round_number: int) -> tuple[object, tuple[Tensor, Tensor]]:
        """Return inputs and targets of all clients in a round, and a key that changes when they do."""
        self._hold(round_number)
        return self._phase, (self.x, self.y)

    def rows(self, client: int) -> tuple[Tensor, Persons | None]:
        """Return a client's training rows as it holds them in the first round, behind the model's fixed features, and
        whose they are.
        """
        self._hold(1)
        first, end, _ = self._bounds[client]
        return self.x[first:end], self._persons[client]

    def evaluate(self, models: Tensor, placed: Sequence[int], round_number: int) -> tuple[tuple[float, ...], float]:
        """Return the primary score of each client on its own test rows, and the mean loss over all of them."""
        self._hold(round_number)
        return self.evaluator(self.federation.model, models, placed, self.x, self.y, self._test)

    def measure(self, models: Tensor, placed: Sequence[int], round_number: int) -> dict[str, Any]:
        """Return all metrics, of each client on its own test rows."""
        self._hold(round_number)
        names = [member.name or str(member.client) for member in self.federation.members]
        return measure(self.federation.model, models, placed, self.x, self.y, self._test, names)

    @property
    def _test(self) -> list[range]:
        return [range(first, end) for _, first, end in self._bounds]

    def _hold(self, round_number: int) -> None:
        """Have the arrays of this round on the device."""
        if round_number == self._round:
            return
        self._round = round_number
        if self.federation.data.static and self._phase is not None:
            return
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


Execution = Generator[tuple[Simulator, list[Work]], Sequence[Tensor], CompletedRun]


def run(
    federation: Federation,
    out: Path | None = None,
    *,
    resume: bool = False,
    command: str = "",
    callbacks: Callbacks = (),
    ledgers: Path | None = None,
) -> CompletedRun:
    """Run a federation to its end, keeping every round in `out` if that is given.

    `ledgers` is a directory of ledger files to go on with; without one, ledgers live as long as the run.
    """
    one = execution(federation, out, resume=resume, command=command, callbacks=callbacks, ledgers=ledgers)
    (done,) = lockstep([one])
    return done


def execution(
    federation: Federation,
    out: Path | None = None,
    *,
    resume: bool = False,
    command: str = "",
    callbacks: Callbacks = (),
    ledgers: Path | None = None,
    arrays: Arrays | None = None,
    hashes: Hashes | None = None,
    run_ledgers: RunLedgers | None = None,
) -> Execution:
    """Run a federation as a generator that yields the work to train, receives the updates and returns the outcome.

    `run_ledgers` are ledgers that the caller has opened, approved the run with, and closes.
    """
    with _connected(federation, ledgers):
        return (
            yield from _execution(
                federation, out, resume=resume, command=command, callbacks=callbacks, ledgers=ledgers, arrays=arrays,
                hashes=hashes, given=run_ledgers,
            )
        )  # fmt: skip


def _connected(federation: Federation, ledgers: Path | None) -> AbstractContextManager[None]:
    """Return the context in which a run computes. What only Ray needs is imported for Ray alone."""
    if federation.config.engine.name != "ray":
        return nullcontext()
    from hush.engines.cluster.rounds import on_ray

    return on_ray(federation.config, ledgers)


def _execution(
    federation: Federation, out: Path | None, *, resume: bool, command: str, callbacks: Callbacks,
    ledgers: Path | None, arrays: Arrays | None, hashes: Hashes | None, given: RunLedgers | None,
) -> Execution:  # fmt: skip
    began = time.perf_counter()
    new = out is not None and not (out / MANIFEST).exists()
    directory = _open(federation, out, resume, command, hashes, ledgers)
    seeded = ledgers is not None and federation.config.privacy.noise == "seeded"
    warned = [_SEEDED_LEDGERS] if seeded else []
    if seeded:
        _log.warning(_SEEDED_LEDGERS)
    for callback in objects(callbacks):
        callback.on_run_start(_start(federation, out))
    if directory is not None and (found := directory.finished()) is not None:
        return _notify_end(_finished_run(federation, directory, found), callbacks)
    if directory is not None:
        _check_ledgers(directory.path, ledgers)
    try:
        run = _run_name(directory)
        run_ledgers = given or RunLedgers(
            federation.ledgers(ledgers, warned.append, run), run, durable=ledgers is not None
        )
    except BaseException:
        # Nothing was charged: the directory can be used for another attempt.
        if directory is not None and new:
            directory.discard()
        raise
    try:
        simulator = Simulator(federation, run_ledgers, arrays, warnings=warned, callbacks=callbacks)
        rounds = drive(simulator, directory, resume=resume, began=began)
        if federation.config.engine.name == "ray":
            return _notify_end(_on_ray(simulator, rounds), callbacks)
        try:
            tasks = next(rounds)
            while True:
                with simulator.collecting(tasks) as collected:
                    for block in collected.blocks:
                        works, declined = simulator.accept(block)
                        vectors = yield simulator, works
                        collected.add([*declined, *simulator.seal(works, vectors)])
                        works, vectors = [], []
                    tasks = rounds.send(collected.answers())
        except StopIteration as end:
            return _notify_end(end.value, callbacks)
    finally:
        if given is None:
            run_ledgers.close()


def _on_ray(simulator: Simulator, rounds: Rounds) -> CompletedRun:
    """Run all rounds with workers on Ray. Imported here, because a simulation in one process needs none of it."""
    from hush.engines.cluster.rounds import rounds_on_ray

    with rounds_on_ray(simulator) as cluster:
        simulator.evaluator = cluster.evaluate
        return run_rounds(rounds, cluster.answer)


def _start(federation: Federation, out: Path | None) -> RunStart:
    config = federation.config
    return RunStart(
        recipe=federation.recipe_name,
        seed=config.seed,
        rounds=config.rounds,
        clients=tuple(member.name or str(member.client) for member in federation.members),
        not_covered=federation.not_covered(),
        warnings=federation.warnings(),
        config=config.model_dump(),
        directory=out,
    )


def _finished_run(federation: Federation, directory: RunDir, result: RunResult) -> CompletedRun:
    """Return a run that was finished before, with its models."""
    state, records = directory.last()
    federation = federation.counted([int(count) for count in state.slots["loop"]["samples"]])
    models, assignments = released(federation, state)
    return CompletedRun(
        result=result, records=tuple(records), models=models, assignments=assignments, federation=federation
    )


def _notify_end(done: CompletedRun, callbacks: Callbacks) -> CompletedRun:
    for callback in objects(callbacks):
        callback.on_run_end(done.result)
    return done


def lockstep(executions: Sequence[Execution]) -> list[CompletedRun]:
    """Drive several runs together, round by round: what can be trained in one piece is."""
    results: dict[int, CompletedRun] = {}
    waiting: dict[int, tuple[Simulator, list[Work]]] = {}
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


def train_together(asked: Sequence[tuple[Simulator, list[Work]]]) -> list[list[Tensor]]:
    """Train each run's jobs and return the updates. Runs with the same kind of model and rows are trained together."""
    groups: dict[object, list[int]] = {}
    for number, (cohort, _) in enumerate(asked):
        groups.setdefault(_kind(cohort), []).append(number)
    trained: list[list[Tensor]] = [[] for _ in asked]
    for numbers in groups.values():
        chosen = [asked[number] for number in numbers]
        x, y, firsts = _rows([cohort for cohort, _ in chosen])
        jobs = [_moved(work.job, first) for (_, works), first in zip(chosen, firsts, strict=True) for work in works]
        engine = chosen[0][0].federation.config.engine
        model = chosen[0][0].federation.model
        limit = None if engine.physical_batch == "auto" else engine.physical_batch
        vectors = iter(train(model, x, y, jobs, limit, engine.precision, engine.strict))
        for number, (_, works) in zip(numbers, chosen, strict=True):
            trained[number] = [next(vectors) for _ in works]
    return trained


def _kind(cohort: Simulator) -> object:
    """Return the key that two runs must share to be trained together."""
    model = cohort.federation.model
    # Long rows, and all rows on a CPU, are not worth copying side by side: runs that share them go together.
    shared = None if cohort.x.is_cuda and cohort.x.numel() <= _SHORT else id(cohort.x)
    config, shapes = cohort.federation.config, (cohort.x.shape[1:], cohort.y.shape[1:])
    together = (config.engine, config.privacy.rows_per_person)
    # What is not trained, such as the layers beside adapters, is in no vector of parameters; traced graphs name it.
    values = (*model.module.named_parameters(), *model.module.named_buffers())
    frozen = not isinstance(model.module, TracedModule) and any(name not in model.layout.names for name, _ in values)
    own = id(model.module) if frozen else None
    modules = (str(model.module), str(model.training), own)
    return (modules, model.layout, model.objective.loss, shapes, together, shared)


def _rows(cohorts: Sequence[Simulator]) -> tuple[Tensor, Tensor, list[int]]:
    """Return all rows of the runs, each array once, and where each run's rows begin."""
    distinct = {id(cohort.x): cohort for cohort in cohorts}
    if len(distinct) == 1:
        return cohorts[0].x, cohorts[0].y, [0] * len(cohorts)
    starts, begun = {}, 0
    for key, cohort in distinct.items():
        starts[key] = begun
        begun += len(cohort.x)
    x = torch.cat([cohort.x for cohort in distinct.values()])
    y = torch.cat([cohort.y for cohort in distinct.values()])
    return x, y, [starts[id(cohort.x)] for cohort in cohorts]


def _fetched(works: Sequence[Work], vectors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return small vectors in the host's memory, copied at once; others, and those still needed on a GPU, as given."""
    small = len(vectors) > 1 and len(vectors) * vectors[0].numel() <= _WORTH
    if not small or not vectors[0].is_cuda or any(done.output is not None or done.plan.whole_update for done in works):
        return vectors
    return torch.stack(list(vectors)).cpu().unbind()


def _moved(job: Job, by: int) -> Job:
    return replace(job, first_row=job.first_row + by) if by else job


def _open(
    federation: Federation, out: Path | None, resume: bool, command: str, hashes: Hashes | None, ledgers: Path | None
) -> RunDir | None:  # fmt: skip
    if out is None:
        return None
    content = {**manifest(federation, command), **(same := identity(federation, hashes)), "ledgers": _place(ledgers)}
    if resume and (out / MANIFEST).exists():
        if read_json(out / MANIFEST).get("config_hash") != content["config_hash"]:
            # Noise that a config leaves open follows from whether there are ledger files: that is said first.
            _check_ledgers(out, ledgers)
        return RunDir.reopen(out, content["config_hash"], same)
    if resume and out.exists() and any(out.iterdir()):
        raise HushError(f"{out}: nothing to resume: it contains no manifest.json")
    return RunDir.create(out, content)


def _check_ledgers(out: Path, ledgers: Path | None) -> None:
    """Raise a `HushError` if a run goes on with other ledgers: neither would then hold all that it releases."""
    kept, given = read_json(out / MANIFEST).get("ledgers"), _place(ledgers)
    if kept != given:
        raise HushError(
            f"{out}: was started with {_ledgers_of(kept)}, and is resumed with {_ledgers_of(given)}; "
            "accepted: the ledgers that it was started with"
        )


def _place(ledgers: Path | None) -> str | None:
    return None if ledgers is None else str(ledgers.resolve())


def _ledgers_of(place: str | None) -> str:
    return "no ledger directory" if place is None else f"the ledgers in {place}"


def _run_name(directory: RunDir | None) -> str:
    """Return the name of a run in ledgers that outlive it."""
    return str(read_json(directory.path / MANIFEST)["run"]) if directory is not None else uuid.uuid4().hex


def _recharge(federation: Federation, ledgers: RunLedgers, records: Sequence[RoundRecord]) -> None:
    """Charge what a resumed run has already released."""
    if federation.terms.stage_table.of[ENROLMENT] >= 0:
        for member in federation.members:
            ledgers.recharge(member.client, federation.stage(member.client, ENROLMENT).round_costs, ENROLMENT)
        approve_training(federation, ledgers)
    for record in records:
        for client in record.charged:
            ledgers.recharge(client, federation.stage(client, record.round).round_costs, record.round)


def _packed(update: Update) -> bytes:
    side = {f"{_RELEASES}{what}": answer for what, answer in update.side.releases.items()}
    packed: bytes = save({"vector": update.vector.contiguous(), **side}, {"choice": json.dumps(update.side.choice)})
    return packed


def _unpacked(task: Task, receipt: Receipt, payload: bytes) -> Update:
    size = int.from_bytes(payload[:8], "little")
    choice = json.loads(json.loads(payload[8 : 8 + size])["__metadata__"]["choice"])
    tensors = load(payload)
    vector = tensors.pop("vector")
    releases = {name.removeprefix(_RELEASES): answer for name, answer in tensors.items()}
    side = SideAnswers(choice=choice, releases=releases)
    return Update(client=task.client, round=task.round, vector=vector, layout=task.answer, receipt=receipt, side=side)


def clients_at_once(clients: int, parameters: int, device: str) -> int:
    """Return how many clients of a round train at a time: all of them, unless memory is to be spared."""
    if clients * parameters <= SAMPLE:
        return min(clients, _CLIENTS)
    return max(1, min(_CLIENTS, _NUMBERS[device] // parameters))


def _fits(numbers: int, device: torch.device) -> bool:
    """Whether so many numbers are better kept on the device: there are many, and they take little of its memory."""
    return device.type == "cuda" and numbers > _WORTH and 16 * numbers < torch.cuda.mem_get_info(device)[0]


class RoundAnswers:
    """Collects the answers to a round's tasks. To be used as a context: files are removed at its end.

    `on_device` says whether the vectors of updates are to stay on the device.

    With a size of `blocks` that is given, updates are kept and summed in these blocks even if they are few: what
    another engine computes in the same blocks is then equal to the last bit.
    """

    def __init__(
        self, recipe: Recipe, tasks: Sequence[Task], parameters: int, device: torch.device, block: int | None = None
    ) -> None:
        self._recipe, self._tasks = recipe, {task.client: task for task in tasks}
        size = block or max(1, clients_at_once(len(tasks), parameters, device.type))
        self.blocks = [tasks[first : first + size] for first in range(0, len(tasks), size)]
        self._resources = ExitStack()
        self._answers: list[Answer] = []
        self.on_device = block is None and _fits(len(tasks) * parameters, device)
        large = len(tasks) * parameters > SAMPLE
        self._store: BlockRows | None = None
        if self.on_device:
            self._store = DeviceRows(parameters)
        elif large:
            self._store = FileRows(parameters, self._resources)
        elif block is not None:
            self._store = MemoryRows(parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def add(self, answers: Sequence[Answer]) -> None:
        """Take the answers of a block."""
        updates = [answer for answer in answers if isinstance(answer, Update)]
        if self._store is None or not updates:
            self._answers += answers
            return
        self._answers += [answer for answer in answers if not isinstance(answer, Update)]
        self._answers += without_vectors(updates)
        self._store.add(decoded(self._recipe, self._tasks, updates))

    def answers(self) -> Answers:
        """Return all answers."""
        return self._answers if self._store is None else StoredAnswers(self._answers, StoredRows.of(self._store))
