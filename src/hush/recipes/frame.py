"""A recipe is six small choices. This file says what each choice must be able to do, and nothing about any of them.

State goes in and comes out: an option keeps nothing. What it needs to remember is a flat mapping of named tensors,
which the server loop stores in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Protocol

from torch import Tensor

from hush.config import Config
from hush.privacy.course import Ask, Course, Outline, Output, outlined
from hush.recipes.assign import One
from hush.recipes.local import Plain
from hush.recipes.project import Identity
from hush.recipes.protect import DpSgd
from hush.recipes.step import Add
from hush.recipes.view import Chance, RoundView, State, Weighing
from hush.recipes.weigh import Samples
from hush.types import Layout, Member, Policy, Release

SlotStates = Mapping[str, State]


class Declared(Protocol):
    """What every choice declares."""

    def releases(self) -> tuple[Release, ...]:
        """What it reveals beyond the privatised update."""
        ...

    def ask(self, number: int, rounds: int) -> Ask:
        """What a round asks of a client; number 0 is enrolment."""
        ...


class Protect(Declared, Protocol):
    """How a client's privacy is kept."""

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """The policy each client trains under; epsilon is infinite where nothing is promised."""
        ...

    def courses(
        self, members: Sequence[Member], outline: Outline, orders: Sequence[Sequence[int]], config: Config
    ) -> list[Course]:
        """What each client does to keep its policy; `orders` has the stages of its rounds, one after the other."""
        ...

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """What each client does to its trained model before it is sent, if anything."""
        ...

    def start(self, clip: float) -> State:
        """The state before the first round."""
        ...

    def notes(self, state: State) -> Mapping[str, Tensor]:
        """What to tell every client."""
        ...

    def absorb(self, view: RoundView, state: State) -> State:
        """Learn from the round."""
        ...


class Local(Declared, Protocol):
    """What a client does in its steps besides following its noised gradient."""

    def pull(self) -> float:
        """How strongly steps are drawn back to the model that was sent."""
        ...

    def start(self, clients: int, size: int) -> State:
        """The state before the first round."""
        ...

    def drifts(self, clients: Sequence[int], homes: Sequence[int], models: int, state: State) -> Tensor | None:
        """What to add to every gradient of each client on each model, clients x models x p, if anything."""
        ...

    def absorb(self, view: RoundView, placed: Sequence[int], homes: Sequence[int], state: State) -> State:
        """Learn from the round."""
        ...


class Assign(Declared, Protocol):
    """Which of the models a client works on."""

    @property
    def models(self) -> int:
        """How many models there are."""
        ...

    @property
    def alike(self) -> bool:
        """Whether all models start from the same parameters."""
        ...

    def start(self, clients: int) -> State:
        """The state before the first round."""
        ...

    def offers(self, number: int, state: State) -> bool:
        """Whether a client that is asked to choose is shown all models, or only its own."""
        ...

    def place(self, view: RoundView, state: State, chance: Chance) -> list[int]:
        """The model number of each client that is invited."""
        ...

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, chance: Chance) -> tuple[list[int], State]:
        """Learn from the round; and the model to which each update is to be added."""
        ...

    def homes(self, clients: Sequence[int], state: State) -> list[int]:
        """The model that each client would use now."""
        ...


class Project(Declared, Protocol):
    """What is kept of the updates."""

    def notes(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """What each client needs to know to answer."""
        ...

    def answer(self, layout: Layout, notes: Mapping[str, Tensor]) -> Layout:
        """The layout of the answer."""
        ...

    def encode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """At the client: what to send of an update."""
        ...

    def decode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """At the server: the update, as far as it was sent."""
        ...

    def project(self, view: RoundView, state: State, chance: Chance) -> tuple[Tensor, State]:
        """The updates to aggregate, n x p."""
        ...


class Weigh(Declared, Protocol):
    """How much each client counts."""

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """Weights that sum to one."""
        ...

    def foreseen(self, view: RoundView) -> Tensor:
        """The weights to expect from the public facts alone, before any update is seen."""
        ...


class Step(Declared, Protocol):
    """How the server moves."""

    def start(self, models: Tensor) -> State:
        """The state before the first round."""
        ...

    def step(self, models: Tensor, move: Tensor, state: State, chance: Chance) -> tuple[Tensor, State]:
        """The next models, from the weighted mean of the updates."""
        ...

    def released(self, models: Tensor, state: State) -> Tensor:
        """The models to use, where they differ from the ones that are trained on."""
        ...


@dataclass(frozen=True)
class Recipe:
    """One algorithm."""

    protect: Protect = field(default_factory=DpSgd)
    local: Local = field(default_factory=Plain)
    assign: Assign = field(default_factory=One)
    project: Project = field(default_factory=Identity)
    weigh: Weigh = field(default_factory=Samples)
    step: Step = field(default_factory=Add)

    @property
    def options(self) -> tuple[Declared, ...]:
        """The six choices."""
        return (self.protect, self.local, self.assign, self.project, self.weigh, self.step)

    @property
    def shared(self) -> bool:
        """Whether all clients of a round draw the same, as DP-SCAFFOLD's public code does."""
        return getattr(self.protect, "draws", "own") == "shared"

    def releases(self) -> tuple[Release, ...]:
        """Everything the six choices reveal, each thing once."""
        return tuple(dict.fromkeys(release for option in self.options for release in option.releases()))

    def outline(self, rounds: int) -> Outline:
        """What enrolment and each round ask of a client, all choices together."""
        return outlined(
            [reduce(or_, (option.ask(number, rounds) for option in self.options)) for number in range(rounds + 1)]
        )
