"""Disclosures of a member at enrolment: each number public by its own choice, or noised and charged.

A noised number has Gaussian noise in units of what one row can change in it, is drawn once a run, charged to the
member's ledger before it is told, and the same whenever it is asked again. A recipe may ask for a mean of the inputs
besides, which is always noised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.deploy.member.policy import MemberPolicy
from hush.deploy.shared.roster import BUDGET, IMPACT, MEAN, RosterEntry
from hush.engines.enrolment import deviation, noised_mean
from hush.privacy.accounting.cost import Cost
from hush.privacy.schedule import ENROLMENT
from hush.privacy.source import Source
from hush.recipes import Recipe
from hush.recipes.slots.clusters import Oracle
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT, Impact
from hush.types import HushError


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number that a weight may come from.

    Attributes:
        what: In the words of the promise.
        value: The true one.
        row: What one row can change in it.
        noise: Its noise multiplier, or 0 where it is public.
        low: The least that is told.
        high: The most.
    """

    what: str
    value: float
    row: float = 1.0
    noise: float = 0.0
    low: float = 0.0
    high: float = float("inf")

    def noised(self, normal: Callable[[], float]) -> float:
        """What is told. Cutting it to its range looks at the noised number alone, and so costs nothing."""
        told = self.value + self.noise * self.row * normal() if self.noise else self.value
        return min(self.high, max(self.low, told))


def numbers(policy: MemberPolicy, rows: int, recipe: Recipe, count_noise: float) -> dict[str, Number]:
    """What is to be told for a recipe, by name; `count_noise` is what the recipe itself asks for, or 0."""
    enrol, budget = policy.enrol, policy.budget.epsilon
    chosen = enrol.noise if enrol.samples == "noised" else 0.0
    found = {"samples": Number(what=COUNT, value=rows, noise=count_noise or chosen, low=1)}
    row = budget if enrol.budget_row is None else enrol.budget_row
    noise = enrol.noise if enrol.budget == "noised" else 0.0
    found["epsilon"] = Number(what=BUDGET, value=budget, row=row, noise=noise, low=0.01 * budget if noise else budget)
    if isinstance(recipe.weight, Impact) and not recipe.weight.factors and enrol.factor is not None:
        noise = enrol.noise if enrol.impact == "noised" else 0.0
        found["factor"] = Number(what=IMPACT, value=enrol.factor, row=enrol.factor_row, noise=noise, low=0.0, high=1.0)
    return found


def count_is_noised(policy: MemberPolicy, recipe: Recipe, rounds: int) -> bool:
    """Whether the number of rows is told with noise, by the member's choice or by the recipe's."""
    stage_table = recipe.stage_table(rounds)
    stage = stage_table.of[ENROLMENT]
    asked = stage >= 0 and any(side_release.what == COUNT for side_release in stage_table.specs[stage].side_releases)
    return asked or policy.enrol.samples == "noised"


def group(policy: MemberPolicy, recipe: Recipe) -> int | None:
    """The member's true cluster, if the recipe needs it and the policy tells it."""
    if not isinstance(recipe.assign, Oracle):
        return None
    if policy.enrol.group is None:
        raise HushError("assign oracle: requires this member's true cluster; set enrol.group in the policy")
    return policy.enrol.group


@dataclass(frozen=True, kw_only=True)
class Telling:
    """What a member will say of itself for a run, and what that costs.

    Attributes:
        fact: What is public in any case.
        numbers: What a weight may come from, by name.
        centre: The noise multiplier of a mean of the inputs, or 0 where none is asked for.
        rows: The inputs, behind the model's fixed features.
        source: Draws the noise of the numbers.
        mean_source: Draws that of the mean.
    """

    fact: RosterEntry
    numbers: Mapping[str, Number]
    centre: float
    rows: Callable[[], Tensor]
    source: Source
    mean_source: Source

    def costs(self) -> tuple[Cost, ...]:
        """What is to be charged before any of it is told."""
        found = [Cost(number.what, "gaussian", number.noise, 1) for number in self.numbers.values() if number.noise]
        return (*found, *((Cost(CENTRE, "gaussian", self.centre, 1),) if self.centre else ()))

    def drawn(self) -> tuple[RosterEntry, dict[str, Tensor]]:
        """The numbers that are told, and the mean: drawn now, so to be called once a run."""
        told = {name: number.noised(self._normal) for name, number in self.numbers.items()}
        noised = {n.what: [n.noise, n.noise * n.row] for n in self.numbers.values() if n.noise}
        samples, tensors = max(1, round(told["samples"])), dict[str, Tensor]()
        if self.centre:
            # By the number that is told: the true one, where it is noised, is nobody's business.
            tensors[MEAN] = noised_mean(self.rows(), self.centre, samples, self.mean_source)
            noised[CENTRE] = [self.centre, deviation(tensors[MEAN].numel(), self.centre, samples)]
        factor = told.get("factor")
        fact = replace(
            self.fact, epsilon=float(told["epsilon"]), samples=samples,
            factor=None if factor is None else float(factor), noised=noised,
        )  # fmt: skip
        return fact, tensors

    def _normal(self) -> float:
        return float(self.source.normal(1, torch.float64))
