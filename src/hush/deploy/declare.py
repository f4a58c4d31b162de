"""What a member says of itself at enrolment: each number public by its own choice, or noised and charged.

A noised number has Gaussian noise in units of what one row can change in it, is drawn once a run, charged to the
member's ledger before it is told, and the same whenever it is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hush.deploy.facts import BUDGET, IMPACT, Fact
from hush.deploy.policy import MemberPolicy
from hush.privacy.cost import Cost
from hush.privacy.course import ENROLMENT
from hush.privacy.ledger import Ledger
from hush.recipes import Recipe
from hush.recipes.clusters import Oracle
from hush.recipes.weigh import COUNT, Impact
from hush.types import HushError


@dataclass(frozen=True)
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
    found = {"samples": Number(COUNT, rows, noise=count_noise or chosen, low=1)}
    row = budget if enrol.budget_row is None else enrol.budget_row
    noise = enrol.noise if enrol.budget == "noised" else 0.0
    found["epsilon"] = Number(BUDGET, budget, row, noise, low=0.01 * budget if noise else budget)
    if isinstance(recipe.weigh, Impact) and not recipe.weigh.factors and enrol.factor is not None:
        noise = enrol.noise if enrol.impact == "noised" else 0.0
        found["factor"] = Number(IMPACT, enrol.factor, enrol.factor_row, noise, 0.0, 1.0)
    return found


def group(policy: MemberPolicy, recipe: Recipe) -> int | None:
    """The member's true cluster, if the recipe needs it and the policy tells it."""
    if not isinstance(recipe.assign, Oracle):
        return None
    if policy.enrol.group is None:
        raise HushError("assign oracle: needs this member's true cluster; enrol.group in its policy tells it")
    return policy.enrol.group


def declare(
    fact: Fact, wanted: Mapping[str, Number], ledger: Ledger, run: str, normal: Callable[[], float],
    affordable: Callable[[tuple[Cost, ...]], None],
) -> Fact:  # fmt: skip
    """The fact with its numbers, after what is noised was charged; raises `BudgetSpentError` if it cannot be."""
    costs = tuple(Cost(number.what, "gaussian", number.noise, 1) for number in wanted.values() if number.noise)
    if not costs:
        return _with(fact, {name: number.value for name, number in wanted.items()}, wanted)
    if (kept := ledger.sealed(run, ENROLMENT)) is not None:
        return _with(fact, json.loads(kept[1]), wanted)
    attempt = ledger.next_attempt(run, ENROLMENT)
    if attempt == 0:
        raise HushError("enrolment: what was told of this run is noised, was sent before, and is not kept any more")
    affordable(costs)
    receipt = ledger.reserve_costs(costs, run, ENROLMENT, attempt)
    told = {name: number.noised(normal) for name, number in wanted.items()}
    ledger.seal(receipt, json.dumps(told).encode())
    ledger.sent(receipt)
    return _with(fact, told, wanted)


def _with(fact: Fact, told: Mapping[str, float], wanted: Mapping[str, Number]) -> Fact:
    noised = {
        number.what: [number.noise, number.noise * number.row] for number in wanted.values() if number.noise
    }  # fmt: skip
    factor = told.get("factor")
    return Fact(
        fact.name, float(told["epsilon"]), fact.delta, fact.relation, max(1, round(told["samples"])),
        None if factor is None else float(factor), fact.group, noised,
    )  # fmt: skip
