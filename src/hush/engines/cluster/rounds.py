"""Rounds on a cluster: clients are charged here, trained by workers in blocks, and their updates stay there.

Which clients form a block depends on the config alone, never on the workers, so that the results are the same bits on
any number of them, and after any of them was lost: its blocks are computed again with the same draws. The ledgers are
this side of the workers, and are charged once for a round, whatever happens to those who compute it. What an update
will be follows from the task and the seed, its order: a ledger file is charged and seals the order in one transaction,
so that a driver that takes the place of a dead one has the same updates computed under the same receipts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush.config import Config, config_hash
from hush.engines.cluster.ray_workers import WorkerPool, connected, library
from hush.engines.cluster.worker import BlockReport, ClientOrder, Setup, TensorTable, tensor_digest
from hush.engines.driver import Evaluation, evaluate
from hush.engines.row_file import read_only
from hush.engines.simulator import Charged, Simulator, clients_at_once
from hush.models import Model
from hush.recipes.context import Columns
from hush.recipes.stored_rows import StoredRows
from hush.server.loop import Answers, StoredAnswers
from hush.types import HushError, Layout, Task, Update

_BLOCKS, _LARGEST = 64, 64  # blocks of a round at least, and clients of a block at most, unless the config gives it
_AHEAD = 2  # blocks that a worker has been given at a time, so that it never waits for the next
_TRIES = 50  # lost workers in one round, or as many as there are
_SHARE = 512  # test rows that a worker evaluates at a time
_FAN_IN = 8  # sums that one worker, or the driver, adds up


def block_size(simulator: Simulator) -> int:
    """Return how many clients a worker trains at a time."""
    federation = simulator.federation
    given, clients = federation.config.engine.block, len(federation.members)
    if given != "auto":
        return given
    memory = clients_at_once(clients, federation.model.layout.size, "cpu")
    return min(memory, math.ceil(clients / _BLOCKS), _LARGEST)


@contextmanager
def on_ray(config: Config, ledgers: Path | None) -> Iterator[None]:
    """Connect to Ray for the time of a run, before anything is written or charged, or say why that is impossible."""
    library()
    if config.privacy.noise != "seeded":
        found = "secure noise" if ledgers is None else "ledger files, and so with secure noise"
        raise HushError(
            f'engine.name: "ray" with {found}: what is lost with a worker is computed again with the same draws, '
            'which only seeded noise has; accepted: engine.name = "process", or privacy.noise = "seeded" for '
            "experiments, in which nothing is private",
            "engine.name",
        )
    with connected(config.engine):
        yield


@contextmanager
def rounds_on_ray(simulator: Simulator) -> Iterator[RayRounds]:
    """Yield what answers the tasks of a run on Ray."""
    federation = simulator.federation
    engine = federation.config.engine
    setup = Setup(
        config=federation.config,
        recipe=federation.recipe,
        model=federation.model,
        shape=federation.terms.shape,
        pull=federation.pull,
        shared_draws=federation.shared_draws,
    )
    most = math.ceil(len(federation.members) / block_size(simulator))
    pool = WorkerPool(library(), engine, setup, most)
    try:
        yield RayRounds(simulator, pool)
    finally:
        pool.close()


class RayRounds:
    """Answers the tasks of rounds with the workers of a pool."""

    def __init__(self, simulator: Simulator, pool: WorkerPool) -> None:
        self._simulator, self._pool = simulator, pool
        self._phase: object = None
        self._rows: Tensor | None = None
        self._seconds: dict[int, float] = {}

    def answer(self, tasks: Sequence[Task]) -> Answers:
        """Charge and train the clients of a round. The updates stay with the workers until the next round begins."""
        simulator, federation = self._simulator, self._simulator.federation
        size, table = block_size(simulator), TensorTable()
        order = partial(_sealed_order, federation.config, table)
        asked = [simulator.charge(tasks[first : first + size], order) for first in range(0, len(tasks), size)]
        # Blocks are those of the tasks, so that a client that declines does not change who trains with whom.
        blocks, declined = (
            [block for block, _ in asked if block],
            [answer for _, answers in asked for answer in answers],
        )
        if not blocks:
            return declined
        phase, (x, y) = simulator.arrays(tasks[0].round)
        if phase != self._phase:
            self._pool.hold(x.numpy(), y.numpy())
            self._phase, self._rows = phase, x
        orders = [[self._order(one, table) for one in block] for block in blocks]
        store = RayRows(self._pool, orders, table, federation.model.layout.size, self._expected(blocks))
        for block, report in zip(blocks, store.reports, strict=True):
            for one in block:
                self._seconds[one.task.client] = report.seconds / len(block)
        updates = [
            Update(
                client=one.task.client,
                round=one.task.round,
                vector=torch.empty(0),
                layout=one.task.answer,
                receipt=one.receipt,
                side=side,
                vector_facts=facts,
            )
            for block, report in zip(blocks, store.reports, strict=True)
            for one, facts, side in zip(block, report.facts, report.side, strict=True)
        ]
        simulator.sent(updates)
        return StoredAnswers([*declined, *updates], StoredRows.of(store))

    def evaluate(
        self, model: Model, models: Tensor, placed: Sequence[int], x: Tensor, y: Tensor, test: Sequence[range]
    ) -> Evaluation:
        """Return what `driver.evaluate` does. Workers evaluate, where the test rows are many and they hold them."""
        shares = _shares(test)
        if len(shares) < 2 or x is not self._rows:
            return evaluate(model, models, placed, x, y, test)
        sent = self._pool.ray.put(models.numpy())
        asked = [(sent, [placed[client] for client in share], [test[client] for client in share]) for share in shares]
        answers = self._pool.anywhere("evaluate", asked)
        rows = [sum(len(test[client]) for client in share) for share in shares]
        loss = sum(count * loss for count, (_, loss) in zip(rows, answers, strict=True)) / sum(rows)
        return tuple(score for scores, _ in answers for score in scores), loss

    def _order(self, one: Charged, table: TensorTable) -> ClientOrder:
        task, extras = one.task, one.task.extras
        return ClientOrder(
            client=task.client,
            round=task.round,
            rows=self._simulator.training_rows(task.client),
            held_out=self._simulator.held_out_rows(task.client),
            stage=one.stage,
            receipt=one.receipt,
            models=table.number(task.models),
            clip=extras.clip,
            input_mean=None if extras.input_mean is None else table.number(extras.input_mean),
            drift=None if extras.drift is None else extras.drift.clone(),
            slots={name: table.number(tensor) for name, tensor in extras.slots.items()},
            output=self._simulator.federation.outputs[task.client],
            persons=self._simulator.persons(task.client),
        )

    def _expected(self, blocks: Sequence[Sequence[Charged]]) -> list[float]:
        """Return how long each block is expected to take: as measured, or by the examples in its steps."""
        works = [sum(one.stage.plan.steps * one.stage.plan.batch for one in block) for block in blocks]
        known = [[self._seconds.get(one.task.client) for one in block] for block in blocks]
        if any(seconds is None for block in known for seconds in block):
            return [float(work) for work in works]
        return [sum(seconds for seconds in block if seconds is not None) for block in known]


def _shares(test: Sequence[range]) -> list[range]:
    """Return consecutive clients that together have as many test rows as a worker evaluates at a time."""
    shares: list[range] = []
    first = rows = 0
    for client, own in enumerate(test):
        rows += len(own)
        if rows >= _SHARE or client == len(test) - 1:
            shares.append(range(first, client + 1))
            first, rows = client + 1, 0
    return shares


def _sealed_order(config: Config, table: TensorTable, task: Task) -> bytes:
    """Return what determines an update: the config with its seed, the round, and digests of what the task carries."""
    extras = task.extras
    parts = {
        "config": config_hash(config),
        "round": task.round,
        "models": table.digest(task.models),
        "clip": extras.clip,
        "input_mean": None if extras.input_mean is None else table.digest(extras.input_mean),
        "drift": None if extras.drift is None else tensor_digest(extras.drift),
        "slots": {name: table.digest(tensor) for name, tensor in extras.slots.items()},
    }
    return b"order " + json.dumps(parts, sort_keys=True).encode()


class RayRows:
    """The updates of a round, held by workers in blocks: the `RowStore` of a cluster.

    Blocks that were lost with their worker are trained again by others when they are asked for.
    """

    def __init__(
        self,
        pool: WorkerPool,
        orders: Sequence[Sequence[ClientOrder]],
        table: TensorTable,
        parameters: int,
        expected: Sequence[float],
    ) -> None:
        self._pool, self._orders, self.parameters = pool, orders, parameters
        self._table = pool.ray.put(table.tensors)
        self._expected = expected
        self._place: dict[int, int] = {}
        self._reports: dict[int, BlockReport] = {}
        self._losses = 0
        self._train(range(len(orders)))

    @property
    def reports(self) -> list[BlockReport]:
        """What was reported of each block."""
        return [self._reports[number] for number in range(len(self._orders))]

    @property
    def counts(self) -> Sequence[int]:
        """The number of rows in each block."""
        return [len(block) for block in self._orders]

    def norms(self) -> Tensor:
        """Return the norm of each row, in float64."""
        return torch.cat([torch.from_numpy(report.norms) for report in self.reports])

    def columns(self, chosen: Sequence[Tensor], which: Columns) -> list[Tensor]:
        """Return some columns of the chosen rows of each block."""
        empty = which.of(torch.empty(0, self.parameters))
        found = dict.fromkeys(range(len(self._orders)), empty)
        wanted = [number for number, own in enumerate(chosen) if len(own)]
        asked = self._ask("columns", wanted, lambda blocks: ([chosen[number] for number in blocks], which))
        for blocks, parts in asked:
            found |= {number: read_only(part) for number, part in zip(blocks, parts, strict=True)}
        return [found[number] for number in range(len(self._orders))]

    def combined(self, weights: Sequence[Tensor], layout: Layout | None) -> Tensor:
        """Return the sum over all blocks, in float64: each worker sums its own, and these sums are added, by workers
        where there are many of them.
        """
        wanted = [number for number, own in enumerate(weights) if bool((own != 0).any())]

        def arguments(blocks: Sequence[int]) -> tuple[list[Tensor], Layout | None]:
            return [weights[number] for number in blocks], layout

        def sums() -> Iterator[Any]:
            return (part for _, part in self._ask("combined", wanted, arguments))

        if len(self._blocks_of_workers(wanted)) > _FAN_IN:
            try:
                return self._total(self._added_by_workers(wanted, arguments), weights)
            except self._pool.lost:
                # Who was lost shows when each worker is asked by itself.
                return self._total(sums(), weights)
        return self._total(sums(), weights)

    def block(self, number: int) -> Tensor:
        """Return one block."""
        while True:
            (worker,) = self._blocks_of_workers([number])
            try:
                found = self._pool.get(self._pool.workers[worker].block.remote(number))
                return read_only(found)
            except self._pool.lost:
                self._lose(worker)

    def _total(self, parts: Iterator[Any], weights: Sequence[Tensor]) -> Tensor:
        total = torch.zeros(weights[0].shape[-2], self.parameters, dtype=torch.float64)
        for part in parts:
            total += read_only(part)
        return total

    def _added_by_workers(self, wanted: Sequence[int], arguments: Any) -> Iterator[Any]:
        """Yield few sums in place of one for each worker: workers add up those of others, a few at a time."""
        shares = self._blocks_of_workers(wanted)
        actors = [self._pool.workers[worker] for worker in shares]
        pairs = zip(actors, shares.values(), strict=True)
        refs = [actor.combined.remote(blocks, *arguments(blocks)) for actor, blocks in pairs]
        while len(refs) > _FAN_IN:
            groups = [refs[first : first + _FAN_IN] for first in range(0, len(refs), _FAN_IN)]
            refs = [actor.added.remote(*group) for actor, group in zip(actors, groups, strict=False)]
        return (self._pool.get(ref) for ref in refs)

    def _ask(self, method: str, wanted: Sequence[int], arguments: Any) -> Iterator[tuple[list[int], Any]]:
        """Yield what workers answer for the blocks that they hold, until all that are wanted are answered for."""
        left = list(wanted)
        while left:
            shares = self._blocks_of_workers(left)
            refs = {
                worker: getattr(self._pool.workers[worker], method).remote(blocks, *arguments(blocks))
                for worker, blocks in shares.items()
            }
            for worker, ref in refs.items():
                try:
                    answer = self._pool.get(ref)
                except self._pool.lost:
                    self._lose(worker)
                    continue
                left = [number for number in left if number not in shares[worker]]
                yield shares[worker], answer

    def _blocks_of_workers(self, blocks: Sequence[int]) -> Mapping[int, list[int]]:
        """Return the blocks that each worker holds; those that nobody holds are trained first."""
        while missing := [number for number in blocks if self._place.get(number) not in self._pool.workers]:
            self._train(missing)
        shares: dict[int, list[int]] = {}
        for number in blocks:
            shares.setdefault(self._place[number], []).append(number)
        return dict(sorted(shares.items(), key=lambda share: share[1]))

    def _train(self, blocks: Sequence[int]) -> None:
        """Have blocks trained, the longest first; each worker gets the next when it has finished one."""
        waiting = sorted(blocks, key=lambda number: (-self._expected[number], number))[::-1]
        self._pool.refresh()
        running: dict[Any, tuple[int, int]] = {}
        load = dict.fromkeys(self._pool.workers, 0)
        free = list(load)
        while waiting or running:
            # Every worker gets a first block before any gets a second one.
            for depth in range(_AHEAD):
                for worker in free:
                    if waiting and load.get(worker) == depth:
                        number = waiting.pop()
                        ref = self._pool.workers[worker].train.remote(number, self._orders[number], self._table)
                        running[ref] = (worker, number)
                        load[worker] += 1
            finished = self._finished(list(running))
            before, free = self._losses, []
            for ref in finished:
                worker, number = running.pop(ref)
                try:
                    self._reports[number] = self._pool.get(ref)
                    self._place[number] = worker
                except self._pool.lost:
                    waiting.append(number)
                    self._lose(worker)
                if worker in self._pool.workers:
                    load[worker] -= 1
                    free.append(worker)
            if self._losses > before:
                # Others may have taken the place of those that were lost.
                if not self._pool.workers:
                    self._pool.refresh()
                load = {worker: load.get(worker, 0) for worker in self._pool.workers}
                free = list(load)

    def _finished(self, running: list[Any]) -> list[Any]:
        """Wait for a block, and return all that are finished by then: a call for each would take time of the driver."""
        self._pool.ray.wait(running, num_returns=1)
        ready: list[Any] = self._pool.ray.wait(running, num_returns=len(running), timeout=0.0)[0]
        return ready

    def _lose(self, worker: int) -> None:
        if worker not in self._pool.workers:
            return
        self._losses += 1
        if self._losses > max(_TRIES, len(self._pool.workers)):
            raise HushError(
                f"engine.name: {self._losses} workers were lost in one round; accepted: a cluster with enough memory "
                "for its workers (smaller engine.block, or fewer engine.workers)",
                "engine.name",
            )
        self._pool.drop(worker)
        self._pool.refresh()
