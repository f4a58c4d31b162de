"""Whole runs of the product on the references' toy problem, in float64 and with every draw given.

The server loop, the recipe, the client's half of a round and the training are the product's own. Only this is
not: draws come from a script, all numbers are float64, the gate is shown float32 copies of the updates, since it lets
nothing else in, and noise is set by a rule of thumb in place of an accountant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hush.config import Config, LocalConfig, PrivacyConfig
from hush.engines import client_round
from hush.engines.setup import terms_of
from hush.engines.side_releases import release_shape
from hush.models import Model
from hush.privacy.schedule import PrivacySchedule, RoundSpec, with_noise
from hush.privacy.sensitivity import SLACK
from hush.privacy.side_release import ReleaseShape
from hush.recipes import Recipe
from hush.recipes.slots import protect
from hush.server import loop
from hush.server.participation import stages_of
from hush.server.validation import validate
from hush.training.train import train
from hush.types import Layout, Member, Policy, Receipt, RoundRecord, Task, Update
from tests.conformance.references.toy import Array
from tests.conformance.references.toy import Client as Known

DELTA = 1e-3


class Script:
    """A source that hands out given batches and draws, and knows nothing else."""

    def __init__(self, batches: Sequence[Sequence[int]], draws: Sequence[Array]) -> None:
        self._batches, self._draws = list(batches), list(draws)

    def chosen(self, size: int, rate: float) -> Tensor:
        rows = torch.tensor([int(row) for row in self._batches.pop(0)], dtype=torch.int64)
        assert rate < 1 or len(rows) == size
        return rows

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        draw = torch.tensor(np.atleast_1d(self._draws.pop(0)), dtype=dtype)
        assert draw.numel() == size
        return draw

    def uniform(self, size: int) -> Tensor:
        raise AssertionError("no batch of a fixed size is drawn here")

    def discrete(self, size: int, sigma: int) -> Tensor:
        raise AssertionError("no discrete noise is drawn here")

    @property
    def left(self) -> tuple[int, int]:
        """Batches and draws that nobody asked for."""
        return len(self._batches), len(self._draws)


@dataclass(frozen=True)
class Given:
    """The server's numbers, by name: the same in every round, or one array a round."""

    arrays: Mapping[str, Callable[[int], Array]]
    round: int

    def uniform(self, name: str, *shape: int) -> Tensor:
        return self._named(name, shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        return self._named(name, shape)

    def _named(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(self.arrays[name](self.round), dtype=torch.float64).reshape(shape)


@dataclass(frozen=True)
class Toy:
    """The clients as the product knows them: data, budgets, groups, and the settings of the run.

    `declared`: the budgets that they tell the server, where these are not their own.
    """

    clients: Sequence[Known]
    rounds: int
    steps: int
    lr: float = 0.3
    clip: float = 0.5
    weight_decay: float = 0.0
    loss_clip: float = 1.5
    epsilons: Sequence[float] = (1.0, 3.0, 4.0)
    groups: Sequence[int] = (0, 0, 0)
    schedule: Sequence[Sequence[int]] | None = None
    whole: bool = False
    declared: Sequence[float] | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """Their public facts."""
        return self._members(self.epsilons)

    @property
    def disclosed(self) -> tuple[Member, ...]:
        """The same, with what the server knows of them."""
        return self._members(self.epsilons if self.declared is None else self.declared)

    def _members(self, epsilons: Sequence[float]) -> tuple[Member, ...]:
        return tuple(
            Member(
                client=i,
                policy=Policy(e, DELTA),
                samples=c.size,
                batch=c.size if self.whole else int(c.divisor),
                group=g,
            )
            for i, (c, e, g) in enumerate(zip(self.clients, epsilons, self.groups, strict=True))
        )

    @property
    def config(self) -> Config:
        """Their settings."""
        local = LocalConfig(batch_size=2, steps=self.steps, lr=self.lr, weight_decay=self.weight_decay)
        privacy = PrivacyConfig(noise="seeded", clip=self.clip, accountant="rdp", loss_clip=self.loss_clip)
        return Config(rounds=self.rounds, local=local, privacy=privacy)

    @property
    def invited(self) -> tuple[tuple[int, ...], ...]:
        """Who takes part in which round."""
        everyone = [range(len(self.clients))] * self.rounds
        return tuple(tuple(ids) for ids in (everyone if self.schedule is None else self.schedule))

    def schedules(self, recipe: Recipe, members: Sequence[Member] | None = None) -> list[PrivacySchedule]:
        """What each client does by the recipe, with a noise that follows from its policy."""
        stage_table = recipe.stage_table(self.rounds)
        orders = stages_of(stage_table, self.invited, len(self.clients))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protect, "calibrated", _simple)
            return recipe.protect.schedules(members or self.members, stage_table, orders, self.config)

    def known(self, recipe: Recipe) -> list[Known]:
        """The clients as the references know them, with the clip and noise of the recipe's plans."""
        plans = [schedule.plan for schedule in self.schedules(recipe)]
        return [
            replace(
                c, clip=p.clip, z=p.noise_multiplier, slack=SLACK, divisor=float(c.size) if self.whole else c.divisor
            )
            for c, p in zip(self.clients, plans, strict=True)
        ]


def _simple(schedule: PrivacySchedule, policy: Policy) -> PrivacySchedule:
    """A noise that takes no time to find, more of it for smaller budgets: how much is right is tested elsewhere."""
    return with_noise(schedule, 1.5 / policy.epsilon)


@dataclass
class Played:
    """What happened: the state after each round, the records, and the updates as they were sent."""

    states: list[loop.ServerState] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)
    sent: list[dict[int, Update]] = field(default_factory=list)

    def models(self, number: int = 0) -> list[Array]:
        """One of the models after each round."""
        return [state.models[number].numpy() for state in self.states]

    def all_models(self) -> list[Array]:
        """All of them."""
        return [state.models.numpy() for state in self.states]


def play(
    recipe: Recipe,
    toy: Toy,
    starts: Array,
    script: Callable[[int, int], Script],
    server: Mapping[str, Callable[[int], Array]] | None = None,
    enrolment: Mapping[str, Tensor] | None = None,
) -> Played:
    """A run of the recipe; `script` gives the numbers of a round (from 1) and a client, `enrolment` is its state."""
    config, members, schedules = toy.config, toy.members, toy.schedules(recipe)
    stage_table = recipe.stage_table(toy.rounds)
    vectors = torch.tensor(np.atleast_2d(starts), dtype=torch.float64)
    features = toy.clients[0].x.shape[1]
    classes = vectors.shape[1] // (features + 1)
    module = nn.Linear(features, classes).double().requires_grad_(False)
    layout = Layout(("weight", "bias"), ((classes, features), (classes,)))
    model = Model(name="toy", module=module, layout=layout, start=vectors[0])
    shape = release_shape(config, model, (features,), classes)
    expected = toy.schedules(recipe, toy.disclosed)
    terms = terms_of(config, recipe, toy.disclosed, stage_table, expected, model, toy.invited, shape)
    terms = replace(terms, rng=lambda number: Given(server or {}, number))
    outputs = recipe.protect.output(members, toy.rounds)
    played = Played()

    def work(task: Task) -> tuple[client_round.Work, Script, tuple[Tensor, Tensor]]:
        data = toy.clients[task.client]
        x, y = torch.tensor(data.x), torch.tensor(data.y)
        source = script(task.round, task.client)
        client = client_round.Client(
            recipe=recipe,
            config=config,
            model=model,
            x=x,
            y=y,
            first_row=0,
            source=source,  # type: ignore[arg-type]
            shape=shape,
            pull=recipe.local.pull(),
            output=outputs[task.client],
        )
        stage = schedules[task.client].stages[stage_table.of[task.round]]
        return client_round.work(task, Receipt(task.client, task.round, 1), stage, client), source, (x, y)

    def respond(task: Task) -> Update:
        todo, source, rows = work(task)
        (vector,) = train(model, *rows, [todo.job])
        sealed = client_round.sealed(todo, vector)
        assert source.left == (0, 0), (task.round, task.client, source.left)
        return sealed

    def keep(state: loop.ServerState, record: RoundRecord) -> None:
        played.states.append(state)
        played.records.append(record)

    state = _doubled(loop.start(terms, vectors, enrolment))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "validate", _gate)
        serving = loop.serve(terms, state, keep)
        try:
            tasks = next(serving)
            while True:
                updates = [respond(task) for task in tasks]
                played.sent.append({update.client: update for update in updates})
                tasks = serving.send(updates)
        except StopIteration:
            return played


def _doubled(state: loop.ServerState) -> loop.ServerState:
    slots = {
        slot: {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        for slot, tensors in state.slots.items()
    }
    return replace(state, slots=slots)


def _gate(
    tasks: Sequence[Task], updates: Sequence[Update], spec: RoundSpec, shape: ReleaseShape, *bounds: Any
) -> tuple[list[Update], Mapping[int, str]]:
    copies = [replace(update, vector=update.vector.float()) for update in updates]
    accepted, refused = validate(tasks, copies, spec, shape, *bounds)
    originals = {update.client: update for update in updates}
    return [originals[update.client] for update in accepted], refused
