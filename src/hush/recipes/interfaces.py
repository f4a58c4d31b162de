"""The interfaces of the six slots: what an option of each can do, with a default for all that has a sensible one.

An option overrides what it changes and nothing else. This file imports no option.

State goes in and comes out: an option keeps nothing. What it needs to remember is a flat mapping of named tensors,
which the server loop stores in every checkpoint.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from hush.config import Config
from hush.privacy.schedule import Output, PrivacySchedule, RoundSpec, StageTable
from hush.recipes.context import RoundView, ServerRng, State, Weights
from hush.types import Layout, Member, Policy, Release, TaskExtras


@dataclass(frozen=True)
class TaskShape:
    """What the shapes in a task depend on.

    Attributes:
        size: Parameters of the model.
        models: How many models the task brings.
        inputs: Numbers in a row, for a recipe that centres its inputs; else 0.
    """

    size: int
    models: int
    inputs: int = 0


@dataclass(frozen=True)
class Extra:
    """A tensor that a task carries beside its models: type and shape, and whether every task of the recipe has it."""

    dtype: Literal["F32", "F64"]
    shape: tuple[int, ...]
    always: bool = True


@dataclass(frozen=True)
class ModelFacts:
    """What an option may need to know of the model before it can be used.

    Attributes:
        name: The model's, for messages.
        linear_first: Whether its inputs enter a linear layer with a bias, and nothing else.
    """

    name: str
    linear_first: bool


class Option:
    """An option of any slot: by default it reveals nothing, asks for ordinary training, and sends no extras."""

    def fitted(self, model: ModelFacts) -> Self:
        """The option as it is used with this model: without what does not apply to it."""
        return self

    def left_out(self, model: ModelFacts) -> tuple[str, ...]:
        """What `fitted` leaves out, in words."""
        return ()

    def releases(self) -> tuple[Release, ...]:
        """What it reveals beyond the privatised update."""
        return ()

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """What round `number` of `rounds` asks of a client; number 0 is enrolment."""
        return RoundSpec(train=number > 0)

    def extras(self, shape: TaskShape) -> Mapping[str, Extra]:
        """What a task carries beside its models: the fields of `TaskExtras`, and what it has in `slots`, by name.

        A client refuses whatever is not declared here.
        """
        return {}


class Protect(Option, ABC):
    """How a client's privacy is kept."""

    @property
    def private(self) -> bool:
        """Whether clients are guaranteed anything: without that nothing can be noised and charged."""
        return True

    @property
    def own_budgets(self) -> bool:
        """Whether every client trains at its own budget, whatever those of the others are."""
        return True

    @property
    def spreads_budget(self) -> bool:
        """Whether noise is calibrated so that each budget lasts for all rounds of its client."""
        return True

    @property
    def shared_draws(self) -> bool:
        """Whether all clients of a round draw the same batches and noise."""
        return False

    @property
    def fixed_batches(self) -> bool:
        """Whether batches have a fixed size, which needs the true number of rows."""
        return False

    @property
    def round_steps(self) -> int | None:
        """The steps of a round, where they are not those of the config."""
        return None

    @property
    def centres_inputs(self) -> bool:
        """Whether inputs are centred by a privately estimated mean."""
        return False

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """The policy each client trains under; epsilon is infinite where nothing is guaranteed."""
        return [member.policy for member in members]

    @abstractmethod
    def schedules(
        self, members: Sequence[Member], stage_table: StageTable, orders: Sequence[Sequence[int]], config: Config
    ) -> list[PrivacySchedule]:
        """What each client does to keep its policy; `orders` has the stages of its rounds, one after the other."""

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """What each client does to its trained model before it is sent, if anything."""
        return [None] * len(members)

    def start(self, clip: float) -> State:
        """The state before the first round."""
        return {}

    def round_clip(self, state: State) -> float | None:
        """The clipping norm of the round, where it changes from round to round."""
        return None

    def input_mean(self, state: State) -> Tensor | None:
        """What clients centre their inputs by, if anything."""
        return None

    def absorb(self, view: RoundView, state: State) -> State:
        """Learn from the round."""
        return state


class LocalRule(Option):
    """What a client does in its steps besides following its noised gradient."""

    def pull(self) -> float:
        """How strongly steps are drawn back to the model that was sent."""
        return 0.0

    def start(self, clients: int, size: int) -> State:
        """The state before the first round."""
        return {}

    def drifts(self, clients: Sequence[int], homes: Sequence[int], models: int, state: State) -> Tensor | None:
        """What to add to every gradient of each client on each model, clients x models x p, if anything."""
        return None

    def absorb(self, view: RoundView, placed: Sequence[int], homes: Sequence[int], state: State) -> State:
        """Learn from the round."""
        return state


class Assign(Option):
    """Which of the models a client works on; by default there is one."""

    @property
    def models(self) -> int:
        """How many models there are."""
        return 1

    @property
    def number_given(self) -> bool:
        """Whether exactly so many models are asked for, in place of as many as suit the updates, up to `models`."""
        return True

    @property
    def alike(self) -> bool:
        """Whether all models start from the same parameters."""
        return True

    def start(self, clients: int) -> State:
        """The state before the first round."""
        return {}

    def offers(self, number: int, state: State) -> bool:
        """Whether a client that is asked to choose is shown all models, or only its own."""
        return self.models > 1

    def place(self, view: RoundView, state: State, rng: ServerRng) -> list[int]:
        """The model number of each client that is invited."""
        return self.homes(view.clients, state)

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, rng: ServerRng) -> tuple[list[int], State]:
        """Learn from the round; and the model to which each update is to be added."""
        return list(placed), state

    def homes(self, clients: Sequence[int], state: State) -> list[int]:
        """The model that each client would use now."""
        return [0] * len(clients)


class Project(Option):
    """What is kept of the updates; by default all of them, which clients send whole.

    `encodes` is whether clients encode their updates: true of every class that overrides `encode`.
    """

    encodes: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Note whether the class overrides `encode`."""
        super().__init_subclass__(**kwargs)
        cls.encodes = cls.encode is not Project.encode

    def sends(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """What each client needs to know to answer: the `slots` of its task's extras, as `extras` declares them."""
        return [{} for _ in view.clients]

    def check_received(self, extras: TaskExtras) -> None:
        """At the client: raise a `HushError` if what came, of the declared types and shapes, cannot be used."""

    def answer(self, layout: Layout, extras: TaskExtras) -> Layout:
        """The layout of the answer."""
        return layout

    def answer_bound(self, whole: float, layout: Layout, extras: TaskExtras) -> float:
        """How long an honest answer can be, if an update can be as long as `whole`."""
        return whole if self.answer(layout, extras) == layout else math.inf

    def encode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """At the client: what to send of an update."""
        return vector

    def decode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """At the server: the update, as far as it was sent."""
        return vector

    def deciders(self, view: RoundView) -> Tensor | None:
        """Which clients' updates decide what is kept of the others'; None where nobody's do."""
        return None

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """The updates to aggregate, n x p."""
        return view.updates, state


class Weight(Option, ABC):
    """How much each client counts."""

    @abstractmethod
    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """Weights that sum to one."""

    def foreseen(self, view: RoundView) -> Tensor:
        """The weights to expect from the public facts alone, before any update is seen: by default equal ones."""
        return torch.full_like(view.samples, 1.0 / len(view.clients))


class ServerStep(Option):
    """How the server moves its models; by default it adds the weighted mean of the updates, times `lr`."""

    lr: float = 1.0

    def start(self, models: Tensor) -> State:
        """The state before the first round."""
        return {}

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """The next models, from the weighted mean of the updates."""
        return models + self.lr * move, state

    def released(self, models: Tensor, state: State) -> Tensor:
        """The models to use, where they differ from the ones that are trained on."""
        return models
