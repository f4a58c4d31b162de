"""A worker of a cluster: it trains blocks of clients with the code of the simulator, and holds their updates.

It knows no ledger and writes nothing that outlives it: what it is asked for depends on its arguments alone, so that a
worker that was lost, or that goes on unnoticed beside its successor, does no harm. Clients come with a receipt for
their round.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush.config import Config
from hush.engines import client_round
from hush.engines.client_round import Client
from hush.engines.cluster.allocator import keep_freed_memory
from hush.engines.cluster.blocks import Blocks
from hush.engines.driver import Evaluation, evaluate
from hush.engines.row_file import read_only
from hush.engines.row_stores import decoded, without_vectors
from hush.models import Model
from hush.privacy.persons import Persons
from hush.privacy.schedule import Output, Stage
from hush.privacy.side_release import ReleaseShape
from hush.recipes import Recipe
from hush.recipes.context import Columns, summed_parts
from hush.recipes.stored_rows import chosen_columns, summed
from hush.training.train import train
from hush.types import HushError, Layout, Receipt, SideAnswers, Task, TaskExtras, VectorFacts

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is the same for all clients and rounds."""

    config: Config
    recipe: Recipe
    model: Model
    shape: ReleaseShape
    pull: float
    shared_draws: bool
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class ClientOrder:
    """The task of one client, with its receipt. Tensors that many tasks share are numbers of a table.

    Attributes:
        client: Its number.
        round: The round.
        rows: Its training rows: the first, and the one behind the last.
        stage: How it trains.
        receipt: The proof that its ledger was charged.
        models: The models that it is sent, in the table.
        clip: The clipping norm of the round, if it changes.
        input_mean: The mean of the inputs, in the table, if they are centred.
        drift: What is added to its gradients.
        slots: What options send, in the table, by name.
        output: How it noises its trained model, where the recipe has it do so.
        persons: Whose its rows are, where the unit of privacy is a person.
        held_out: The first of the rows that it holds out of training, and the one after the last.
    """

    client: int
    round: int
    rows: tuple[int, int]
    stage: Stage
    receipt: Receipt
    models: int
    clip: float | None = None
    input_mean: int | None = None
    drift: Tensor | None = None
    slots: Mapping[str, int] = field(default_factory=dict)
    output: Output | None = None
    persons: Persons | None = None
    held_out: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class BlockReport:
    """What is reported of a trained block: facts of its vectors, what accompanies them, their norms, and the time."""

    facts: tuple[VectorFacts, ...]
    side: tuple[SideAnswers, ...]
    norms: np.ndarray
    seconds: float


class Worker:
    """Trains blocks of clients, and keeps the updates of the present round."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        keep_freed_memory()
        self._setup = setup
        self._device = _device(setup.config.engine.device)
        setup.model.to(self._device)
        self._x = self._y = torch.empty(0)
        self._round, self._blocks = -1, Blocks()

    def ready(self) -> bool:
        """Return that the worker has started."""
        return True

    def hold(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Take the rows of all clients; on a CPU they stay in the memory that all workers of a node share."""
        self._x, self._y = (read_only(each).to(self._device) for each in (x, y))
        return True

    def train(self, number: int, orders: Sequence[ClientOrder], table: Arrays) -> BlockReport:
        """Train a block of clients, and keep its updates until another round begins."""
        began = time.perf_counter()
        self._begin(orders[0].round)
        tensors = [read_only(each) for each in table]
        tasks = {order.client: _task(self._setup, order, tensors) for order in orders}
        setup, config = self._setup, self._setup.config
        works = [
            client_round.work(tasks[order.client], order.receipt, order.stage, self._client(order)) for order in orders
        ]
        limit = None if config.engine.physical_batch == "auto" else config.engine.physical_batch
        jobs = [work.job for work in works]
        vectors = train(setup.model, self._x, self._y, jobs, limit, config.engine.precision, config.engine.strict)
        updates = [client_round.sealed(work, vector) for work, vector in zip(works, vectors, strict=True)]
        block = decoded(setup.recipe, tasks, updates)
        self._blocks.keep(number, block)
        return BlockReport(
            facts=tuple(update.vector_facts for update in without_vectors(updates) if update.vector_facts is not None),
            side=tuple(update.side for update in updates),
            norms=np.array([float(row.double().norm()) for row in block]),
            seconds=time.perf_counter() - began,
        )

    def columns(self, blocks: Sequence[int], chosen: Sequence[Tensor], which: Columns) -> list[np.ndarray]:
        """Return some columns of the chosen rows of blocks."""
        pairs = zip(blocks, chosen, strict=True)
        return [chosen_columns(self._blocks[number], own, which).contiguous().numpy() for number, own in pairs]

    def combined(self, blocks: Sequence[int], weights: Sequence[Tensor], layout: Layout | None) -> np.ndarray:
        """Return the sum of blocks, in float64, with weights for each of their rows."""
        total: Tensor | None = None
        for number, own in zip(blocks, weights, strict=True):
            block = self._blocks[number]
            part = summed(block, own) if layout is None else summed_parts(block, own, layout)
            total = part if total is None else total.add_(part)
        assert total is not None
        found: np.ndarray = total.numpy()
        return found

    def added(self, *parts: np.ndarray) -> np.ndarray:
        """Return the sum of sums."""
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total

    def block(self, number: int) -> np.ndarray:
        """Return one block."""
        found: np.ndarray = self._blocks[number].numpy()
        return found

    def evaluate(self, models: np.ndarray, placed: Sequence[int], test: Sequence[range]) -> Evaluation:
        """Return the primary scores of some clients on their test rows, and the mean loss over these rows."""
        return evaluate(self._setup.model, read_only(models), placed, self._x, self._y, test)

    def forget(self) -> None:
        """Drop all updates."""
        self._blocks.clear()

    def _begin(self, number: int) -> None:
        if number != self._round:
            self._round = number
            self._blocks.clear()

    def _client(self, order: ClientOrder) -> Client:
        setup, (first, end) = self._setup, order.rows
        return Client(
            recipe=setup.recipe,
            config=setup.config,
            model=setup.model,
            x=self._x[first:end],
            y=self._y[first:end],
            first_row=first,
            source=client_round.source(setup.config, order.client, order.round, shared=setup.shared_draws),
            shape=setup.shape,
            pull=setup.pull,
            output=order.output,
            persons=order.persons,
            held_x=self._x[slice(*order.held_out)],
            held_y=self._y[slice(*order.held_out)],
        )


def _task(setup: Setup, order: ClientOrder, table: Sequence[Tensor]) -> Task:
    extras = TaskExtras(
        clip=order.clip,
        input_mean=None if order.input_mean is None else table[order.input_mean],
        drift=order.drift,
        slots={name: table[at] for name, at in order.slots.items()},
    )
    layout = setup.model.layout
    return Task(
        client=order.client,
        round=order.round,
        models=table[order.models],
        layout=layout,
        answer=setup.recipe.project.answer(layout, extras),
        extras=extras,
    )


class TensorTable:
    """Collects the tensors that tasks share, each once."""

    def __init__(self) -> None:
        self.tensors: list[np.ndarray] = []
        self._numbers: dict[Any, int] = {}
        self._digests: dict[int, str] = {}
        self._kept: list[Tensor] = []  # so that no other tensor takes the place of one that is known

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor in the table."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(tensor.contiguous().numpy())
            self._kept.append(tensor)
        return self._numbers[key]

    def digest(self, tensor: Tensor) -> str:
        """Return the SHA-256 of a tensor of the table, which is computed once."""
        number = self.number(tensor)
        if number not in self._digests:
            self._digests[number] = tensor_digest(tensor)
        return self._digests[number]


def tensor_digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor, with its type and shape."""
    array = tensor.contiguous().numpy()
    found = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise HushError(
            "engine.device: cuda is not available on a worker; accepted: cpu, auto, or a cluster of nodes with GPUs",
            "engine.device",
        )
    return torch.device(name)
