"""Disclosures of a member at enrolment: each number is public by the member's choice, or noised and charged.

A noisy number has Gaussian noise relative to the change that one row can cause. It is sampled once per run and charged
to the member's ledger before it is sent; repeated requests get the same value. A recipe can also ask for a mean of the
inputs, which is always noisy.
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
from hush.privacy.persons import Persons
from hush.privacy.schedule import ENROLMENT
from hush.privacy.source import Source
from hush.recipes import Recipe
from hush.recipes.slots.clusters import Oracle
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT, Impact
from hush.types import HushError


@dataclass(frozen=True, kw_only=True)
class DisclosedNumber:
    """A number that weights may depend on.

    Attributes:
        what: Its name in the privacy guarantee.
        value: The true value.
        row: The maximum change that one row can cause.
        noise: The noise multiplier, or 0 if it is public.
        low: The lower bound of the disclosed value.
        high: The upper bound of the disclosed value.
    """

    what: str
    value: float
    row: float = 1.0
    noise: float = 0.0
    low: float = 0.0
    high: float = float("inf")

    def noised(self, normal: Callable[[], float]) -> float:
        """The disclosed value. Clamping depends on the noisy value alone and has no privacy cost."""
        sent = self.value + self.noise * self.row * normal() if self.noise else self.value
        return min(self.high, max(self.low, sent))


def numbers(policy: MemberPolicy, rows: int, recipe: Recipe, count_noise: float) -> dict[str, DisclosedNumber]:
    """Return what a recipe needs, by name; `count_noise` is the noise that the recipe requires for the count, or 0."""
    enrol, budget = policy.enrol, policy.budget.epsilon
    chosen = enrol.noise if enrol.samples == "noised" else 0.0
    found = {"samples": DisclosedNumber(what=COUNT, value=rows, noise=count_noise or chosen, low=1)}
    row = budget if enrol.budget_row is None else enrol.budget_row
    noise = enrol.noise if enrol.budget == "noised" else 0.0
    found["epsilon"] = DisclosedNumber(
        what=BUDGET, value=budget, row=row, noise=noise, low=0.01 * budget if noise else budget
    )
    if isinstance(recipe.weight, Impact) and not recipe.weight.factors and enrol.factor is not None:
        noise = enrol.noise if enrol.impact == "noised" else 0.0
        found["factor"] = DisclosedNumber(
            what=IMPACT, value=enrol.factor, row=enrol.factor_row, noise=noise, low=0.0, high=1.0
        )
    return found


def count_is_noised(policy: MemberPolicy, recipe: Recipe, rounds: int) -> bool:
    """Whether the number of rows is noisy, by the member's choice or by the recipe's."""
    stage_table = recipe.stage_table(rounds)
    stage = stage_table.of[ENROLMENT]
    asked = stage >= 0 and any(side_release.what == COUNT for side_release in stage_table.specs[stage].side_releases)
    return asked or policy.enrol.samples == "noised"


def group(policy: MemberPolicy, recipe: Recipe) -> int | None:
    """Return the member's true cluster, if the recipe needs it and the policy discloses it."""
    if not isinstance(recipe.assign, Oracle):
        return None
    if policy.enrol.group is None:
        raise HushError("assign oracle: requires this member's true cluster; set enrol.group in the policy")
    return policy.enrol.group


@dataclass(frozen=True, kw_only=True)
class Disclosures:
    """What a member discloses for a run, and what that costs.

    Attributes:
        fact: What is public in any case.
        numbers: The numbers that weights may depend on, by name.
        centre: The noise multiplier of the mean of the inputs, or 0 if none is required.
        rows: The inputs, behind the model's fixed features, and whose they are.
        source: The noise source of the numbers.
        mean_source: The noise source of the mean.
    """

    fact: RosterEntry
    numbers: Mapping[str, DisclosedNumber]
    centre: float
    rows: Callable[[], tuple[Tensor, Persons | None]]
    source: Source
    mean_source: Source

    def costs(self) -> tuple[Cost, ...]:
        """What must be charged before anything is sent."""
        found = [
            Cost(what=number.what, kind="gaussian", noise=number.noise, steps=1)
            for number in self.numbers.values()
            if number.noise
        ]
        return (*found, *((Cost(what=CENTRE, kind="gaussian", noise=self.centre, steps=1),) if self.centre else ()))

    def expected(self, samples: int) -> RosterEntry:
        """The declaration with its public numbers, and this number of rows if theirs is noisy; nothing is sampled."""
        noised = {n.what: (n.noise, n.noise * n.row) for n in self.numbers.values() if n.noise}
        if self.centre:
            noised[CENTRE] = (self.centre, self.centre)
        noisy_count = bool(self.numbers["samples"].noise)
        return replace(self.fact, samples=samples if noisy_count else self.fact.samples, noised=noised)

    def drawn(self) -> tuple[RosterEntry, dict[str, Tensor]]:
        """Sample the numbers and the mean. Must be called only once per run."""
        sent = {name: number.noised(self._normal) for name, number in self.numbers.items()}
        noised = {n.what: [n.noise, n.noise * n.row] for n in self.numbers.values() if n.noise}
        samples, tensors = max(1, round(sent["samples"])), dict[str, Tensor]()
        if self.centre:
            # Computed from the disclosed number: if it is noisy, the true one must not be revealed.
            rows, persons = self.rows()
            tensors[MEAN] = noised_mean(rows, self.centre, samples, self.mean_source, persons)
            noised[CENTRE] = [self.centre, deviation(tensors[MEAN].numel(), self.centre, samples)]
        factor = sent.get("factor")
        fact = replace(
            self.fact, epsilon=float(sent["epsilon"]), samples=samples,
            factor=None if factor is None else float(factor), noised=noised,
        )  # fmt: skip
        return fact, tensors

    def _normal(self) -> float:
        return float(self.source.normal(1, torch.float64))
