"""A recipe: one algorithm, as an option for each of the six slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any

from hush.privacy.plan import UPDATE
from hush.privacy.schedule import StageTable
from hush.recipes.context import State
from hush.recipes.evaluation import Evaluation
from hush.recipes.interfaces import (
    Assign,
    Extra,
    LocalRule,
    ModelFacts,
    Option,
    Project,
    Protect,
    ServerStep,
    TaskShape,
    Weight,
)
from hush.recipes.slots.assign import SingleModel
from hush.recipes.slots.local import PlainSgd
from hush.recipes.slots.project import Identity
from hush.recipes.slots.protect import DpSgd
from hush.recipes.slots.step import Add
from hush.recipes.slots.weight import Samples
from hush.types import Release

SlotStates = Mapping[str, State]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One algorithm, and how it is evaluated. A slot that is not given has the option of `dp-fedavg`."""

    protect: Protect = field(default_factory=DpSgd)
    local: LocalRule = field(default_factory=PlainSgd)
    assign: Assign = field(default_factory=SingleModel)
    project: Project = field(default_factory=Identity)
    weight: Weight = field(default_factory=Samples)
    step: ServerStep = field(default_factory=Add)
    evaluation: Evaluation | None = None

    @property
    def options(self) -> dict[str, Option]:
        """The six options, by slot."""
        return {
            "protect": self.protect,
            "local": self.local,
            "assign": self.assign,
            "project": self.project,
            "weight": self.weight,
            "step": self.step,
        }

    def fitted(self, model: ModelFacts) -> Recipe:
        """The recipe as it is used with this model."""
        changed: dict[str, Any] = {slot: option.fitted(model) for slot, option in self.options.items()}
        return replace(self, **changed)

    def participating(self, share: float) -> Recipe:
        """The recipe as it is used where this share of the clients takes part in each round."""
        changed: dict[str, Any] = {slot: option.participating(share) for slot, option in self.options.items()}
        return replace(self, **changed)

    def left_out(self, model: ModelFacts) -> tuple[str, ...]:
        """What of the recipe does not apply to this model, in words."""
        return tuple(text for option in self.options.values() for text in option.left_out(model))

    def releases(self) -> tuple[Release, ...]:
        """Everything that the six options and evaluation release, without duplicates."""
        found = dict.fromkeys(release for option in self._asking for release in option.releases())
        # Where clients do not train, their updates are zero.
        idle = any(option.round_spec(1, 1).idle for option in self._asking)
        return tuple(release for release in found if not (idle and release.what == UPDATE))

    def extras(self, shape: TaskShape) -> dict[str, Extra]:
        """Everything that a task of this recipe carries in addition to its models."""
        return {name: extra for option in self.options.values() for name, extra in option.extras(shape).items()}

    @property
    def _asking(self) -> tuple[Option, ...]:
        """All that ask something of a client: the options, and evaluation if there is any."""
        return (*self.options.values(), *(() if self.evaluation is None else (self.evaluation,)))

    def stage_table(self, rounds: int) -> StageTable:
        """What enrolment and each round ask of a client, combined over all options."""
        return StageTable.from_rounds(
            [
                reduce(or_, (option.round_spec(number, rounds) for option in self._asking))
                for number in range(rounds + 1)
            ]
        )
