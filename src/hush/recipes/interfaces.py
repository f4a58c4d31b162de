"""The interfaces of the six slots: base classes of all options, with a default for every method that has a sensible
one.

An option overrides what it changes and nothing else. This file imports no option.

Options are stateless: the state is passed in and returned. It is a flat mapping of names to tensors, which the server
stores in every checkpoint.
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
from hush.recipes.context import RoundView, Rows, ServerRng, State, Weights
from hush.recipes.stored_rows import ProjectedRows
from hush.types import Layout, Member, Policy, Release, TaskExtras

# The updates to aggregate: n x p, or rows that are stored elsewhere.
Projected = Tensor | Rows | ProjectedRows


@dataclass(frozen=True)
class TaskShape:
    """What the shapes of a task's tensors depend on.

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
    """A tensor that a task carries in addition to its models: type, shape, and whether every task must have it."""

    dtype: Literal["F32", "F64"]
    shape: tuple[int, ...]
    always: bool = True


@dataclass(frozen=True)
class ModelFacts:
    """What an option may need to know of the model before it can be used.

    Attributes:
        name: The model's, for messages.
        linear_first: Whether its inputs enter a linear layer with a bias, and nothing else.
        linear_classifier: Whether that layer is all of it, with an output for each class.
    """

    name: str
    linear_first: bool
    linear_classifier: bool = False


class Option:
    """Base of all options. By default an option releases nothing, asks for ordinary training, and sends no extras."""

    @property
    def blockwise(self) -> bool:
        """Whether it reads updates through `RoundView.matrix` alone; for others they are gathered in `updates`.

        True for the options of this package. An option of your own sets it in its own class: it is not inherited, since
        a subclass may read what its base does not.
        """
        return bool(vars(type(self)).get("reads_blocks", type(self).__module__.startswith("hush.recipes.")))

    def fitted(self, model: ModelFacts) -> Self:
        """The option as it is used with this model: without what does not apply to it."""
        return self

    def left_out(self, model: ModelFacts) -> tuple[str, ...]:
        """What `fitted` leaves out, in words."""
        return ()

    def participating(self, share: float) -> Self:
        """The option as it is used where this share of the clients takes part in each round."""
        return self

    def releases(self) -> tuple[Release, ...]:
        """What this option releases or uses beyond the privatised update."""
        return ()

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """What round `number` of `rounds` asks of a client; number 0 is enrolment."""
        return RoundSpec(train=number > 0)

    def extras(self, shape: TaskShape) -> Mapping[str, Extra]:
        """Declare what a task carries in addition to its models, by name: fields of `TaskExtras`, and what `slots`
        contains.

        Clients refuse everything that is not declared here.
        """
        return {}


class Protect(Option, ABC):
    """How a client's privacy is protected."""

    @property
    def private(self) -> bool:
        """Whether clients have a privacy guarantee. Without one, nothing can be noised and charged."""
        return True

    @property
    def own_budgets(self) -> bool:
        """Whether every client trains at its own budget, independently of the budgets of others."""
        return True

    @property
    def spreads_budget(self) -> bool:
        """Whether the noise is calibrated so that each budget lasts for all rounds of its client."""
        return True

    @property
    def shared_draws(self) -> bool:
        """Whether all clients of a round use the same batches and noise."""
        return False

    @property
    def fixed_batches(self) -> bool:
        """Whether batches have a fixed size, which requires the true number of rows."""
        return False

    @property
    def round_steps(self) -> int | None:
        """The number of steps per round, if it differs from the config."""
        return None

    @property
    def centres_inputs(self) -> bool:
        """Whether inputs are centred by a privately estimated mean."""
        return False

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """The policy that each client trains under; epsilon is infinite where there is no guarantee."""
        return [member.policy for member in members]

    def planned_with(self, members: Sequence[Member], client: int) -> Sequence[int]:
        """The clients that one client's schedule follows from, in order and itself among them.

        `schedules` of these alone gives it the same schedule, so a client need not plan a whole federation.
        """
        return [client]

    @abstractmethod
    def schedules(
        self, members: Sequence[Member], stage_table: StageTable, orders: Sequence[Sequence[int]], config: Config
    ) -> list[PrivacySchedule]:
        """The privacy schedule of each client. `orders` lists the stages of its rounds in order."""

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """What each client does to its trained model before sending it, if anything."""
        return [None] * len(members)

    def start(self, clip: float) -> State:
        """Return the state before the first round."""
        return {}

    def round_clip(self, state: State) -> float | None:
        """The clipping norm of the round, if it changes between rounds."""
        return None

    def input_mean(self, state: State) -> Tensor | None:
        """The mean that clients subtract from their inputs, if any."""
        return None

    def absorb(self, view: RoundView, state: State) -> State:
        """Return the state after the round."""
        return state


class LocalRule(Option):
    """What the local steps do in addition to following the noisy gradient."""

    @property
    def remembers(self) -> bool:
        """Whether the server keeps a vector for every client, as large as a model."""
        return False

    def pull(self) -> float:
        """The strength of the proximal term towards the model that was sent."""
        return 0.0

    def start(self, clients: int, size: int) -> State:
        """Return the state before the first round."""
        return {}

    def drifts(self, clients: Sequence[int], assignments: Sequence[int], models: int, state: State) -> Tensor | None:
        """What to add to every gradient of each client on each model, clients x models x p, if anything."""
        return None

    def absorb(self, view: RoundView, placed: Sequence[int], assignments: Sequence[int], state: State) -> State:
        """Return the state after the round."""
        return state


class Assign(Option):
    """Which model each client trains. By default there is one model."""

    @property
    def models(self) -> int:
        """The number of models."""
        return 1

    @property
    def number_given(self) -> bool:
        """Whether `models` is the exact number of models, rather than the maximum."""
        return True

    @property
    def alike(self) -> bool:
        """Whether all models start from the same parameters."""
        return True

    def start(self, clients: int) -> State:
        """Return the state before the first round."""
        return {}

    def clustered(self, means: Tensor, variances: Tensor) -> list[int]:
        """Return the model of each client, by the noisy means of the inputs that clients released at enrolment.

        Called where `protect` centres inputs. By default the means say nothing about who trains which model.

        Args:
            means: The means, n x d.
            variances: The variance of the noise in each of their numbers, (n,).
        """
        return [0] * len(means)

    def enrolled(self, placed: Sequence[int], state: State) -> State:
        """Return the state before the first round, given the model of each client by `clustered`."""
        return state

    def offers(self, number: int, state: State) -> bool:
        """Whether a client that is asked to choose receives all models, rather than its own."""
        return self.models > 1

    def place(self, view: RoundView, state: State, rng: ServerRng) -> list[int]:
        """Return the model index of each invited client."""
        return self.assignments(view.clients, state)

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, rng: ServerRng) -> tuple[list[int], State]:
        """Return the model index to which each update is added, and the next state."""
        return list(placed), state

    def assignments(self, clients: Sequence[int], state: State) -> list[int]:
        """Return the current model index of each client."""
        return [0] * len(clients)


class Project(Option):
    """Which part of the updates is kept before aggregation. By default clients send complete updates and all of it is
    kept.

    `encodes` is whether clients encode their updates: true for every class that overrides `encode`.
    """

    encodes: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Record whether the class overrides `encode`."""
        super().__init_subclass__(**kwargs)
        cls.encodes = cls.encode is not Project.encode

    def start(self, clients: int, size: int) -> State:
        """Return the state before the first round; `size` is the number of parameters of a model."""
        return {}

    def sends(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """Return what each client needs in order to encode: `slots` of its task's extras, as `extras` declares them."""
        return [{} for _ in view.clients]

    def check_received(self, extras: TaskExtras) -> None:
        """At the client: raise a `HushError` if received tensors of the declared types and shapes cannot be used."""

    def answer(self, layout: Layout, extras: TaskExtras) -> Layout:
        """Return the layout of the encoded update."""
        return layout

    def answer_bound(self, whole: float, layout: Layout, extras: TaskExtras) -> float:
        """The maximum norm of an honest encoded update, if the norm of an update is at most `whole`."""
        return whole if self.answer(layout, extras) == layout else math.inf

    def encode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """At the client: encode an update."""
        return vector

    def decode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """At the server: decode an update."""
        return vector

    def deciders(self, view: RoundView) -> Tensor | None:
        """The clients whose updates determine how the others are projected, or None."""
        return None

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Projected, State]:
        """Return the updates to aggregate, n x p."""
        return view.matrix, state


class Weight(Option, ABC):
    """How much each client's update counts in the aggregate."""

    @property
    def public(self) -> bool:
        """Whether `weight` follows from public facts alone, with no state: updates can then be summed unseen."""
        return False

    def start(self, clients: int) -> State:
        """Return the state before the first round."""
        return {}

    @abstractmethod
    def weight(self, view: RoundView, state: State) -> tuple[Weights, State]:
        """Return weights that sum to one, and the next state."""

    def foreseen(self, view: RoundView) -> Tensor:
        """The expected weights given public facts alone, before any update is known. By default they are equal."""
        return torch.full_like(view.samples, 1.0 / len(view.clients))


class ServerStep(Option):
    """How the server updates its models. By default it adds the weighted mean of the updates times `lr`."""

    lr: float = 1.0

    def start(self, models: Tensor) -> State:
        """Return the state before the first round."""
        return {}

    def observe(self, view: RoundView, weights: Tensor, state: State) -> State:
        """Return the state before `step`, given the clients of the round and the weight of each.

        With secure aggregation the view has the public facts of the clients and no updates.
        """
        return state

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """Return the next models, given the weighted mean of the updates for each, and the next state."""
        return models + self.lr * move, state

    def released(self, models: Tensor, state: State) -> Tensor:
        """The models to release, if they differ from the models in training."""
        return models
