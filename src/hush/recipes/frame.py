"""A recipe is six small choices. This file says what each choice must be able to do, and nothing about any of them.

State goes in and comes out: an option keeps nothing. What it needs to remember is a flat mapping of named tensors,
which the server loop stores in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from hush.config import Config
from hush.privacy.plan import PrivacyPlan
from hush.recipes.assign import One
from hush.recipes.local import Plain
from hush.recipes.project import Identity
from hush.recipes.protect import DpSgd
from hush.recipes.step import Add
from hush.recipes.view import RoundView, State, Weighing
from hush.recipes.weigh import Samples
from hush.types import Member, Policy, Release


class Option(Protocol):
    """What every choice declares."""

    def releases(self) -> tuple[Release, ...]:
        """What it reveals beyond the privatised update."""
        ...


class Protect(Option, Protocol):
    """How a client's privacy is kept."""

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """The policy each client trains under; epsilon is infinite where nothing is promised."""
        ...

    def plans(self, members: Sequence[Member], rounds: Sequence[int], config: Config) -> list[PrivacyPlan]:
        """The plan that keeps each client's policy over the rounds it is invited to."""
        ...


class Assign(Option, Protocol):
    """Which of the models a client works on."""

    @property
    def models(self) -> int:
        """How many models there are."""
        ...

    def place(self, clients: Sequence[int], state: State) -> list[int]:
        """The model number of each client."""
        ...


class Project(Option, Protocol):
    """What is kept of the updates."""

    def project(self, view: RoundView, state: State) -> tuple[Tensor, State]:
        """The updates to aggregate, n x p."""
        ...


class Weigh(Option, Protocol):
    """How much each client counts."""

    def weigh(self, view: RoundView, state: State) -> tuple[Weighing, State]:
        """Weights that sum to one."""
        ...

    def foreseen(self, view: RoundView) -> Tensor:
        """The weights to expect from the public facts alone, before any update is seen."""
        ...


class Step(Option, Protocol):
    """How the server moves."""

    def start(self, models: Tensor) -> State:
        """The state before the first round."""
        ...

    def step(self, models: Tensor, move: Tensor, state: State) -> tuple[Tensor, State]:
        """The next models, from the weighted mean of the updates."""
        ...

    def released(self, models: Tensor, state: State) -> Tensor:
        """The models to use, where they differ from the ones that are trained on."""
        ...


@dataclass(frozen=True)
class Recipe:
    """One algorithm."""

    protect: Protect = field(default_factory=DpSgd)
    local: Plain = field(default_factory=Plain)
    assign: Assign = field(default_factory=One)
    project: Project = field(default_factory=Identity)
    weigh: Weigh = field(default_factory=Samples)
    step: Step = field(default_factory=Add)

    def releases(self) -> tuple[Release, ...]:
        """Everything the six choices reveal, each thing once."""
        options: tuple[Option, ...] = (self.protect, self.local, self.assign, self.project, self.weigh, self.step)
        return tuple(dict.fromkeys(release for option in options for release in option.releases()))


SlotStates = Mapping[str, State]
