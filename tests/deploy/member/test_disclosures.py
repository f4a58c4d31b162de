"""Disclosures at enrolment: the noise in each number is the noise that is charged, whatever the number is."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush import recipes
from hush.deploy.member.disclosures import Disclosures, numbers
from hush.deploy.member.policy import Accept, Budget, Enrol, MemberPolicy
from hush.deploy.shared.roster import MEAN, RosterEntry
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost
from hush.recipes.slots.protect import CENTRE
from hush.training.input_mean import bound, bounded_sum

ROWS, WIDTH = 1000, 6
NOISED = Enrol(
    samples="noised", budget="noised", impact="noised", factor=0.5, noise=7.0, budget_row=0.25, factor_row=0.5
)
POLICY = MemberPolicy(
    budget=Budget(epsilon=2.0, delta=1e-5), accept=Accept(recipes=["any"], code=["any"]), enrol=NOISED
)


class Scripted(noise.Seeded):
    """Standard normal numbers that are known beforehand, and none of them twice."""

    def __init__(self) -> None:
        super().__init__(0, 0, 0)
        self.given: list[float] = []

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        drawn = 0.01 * torch.arange(len(self.given) + 1, len(self.given) + size + 1, dtype=torch.float64)
        self.given += drawn.tolist()
        return drawn.to(dtype)


def rows() -> tuple[Tensor, None]:
    return torch.linspace(-1.0, 1.0, ROWS * WIDTH).view(ROWS, WIDTH), None


def telling(*, count_noise: float = 0.0, centre: float = 3.0, policy: MemberPolicy = POLICY) -> Disclosures:
    _, recipe = recipes.parse({"name": "dp-fedavg", "weight": {"rule": "impact"}}, "sound")
    one = policy.one_run
    fact = RosterEntry(name="a", epsilon=one.epsilon, delta=one.delta, relation=one.relation, samples=1)
    return Disclosures(
        fact=fact, numbers=numbers(policy, ROWS, recipe, count_noise), centre=centre, rows=rows, source=Scripted(),
        mean_source=Scripted(),
    )  # fmt: skip


@pytest.mark.parametrize("count_noise", [0.0, 4.0])
def test_every_number_has_the_noise_that_is_charged_for_it(count_noise: float) -> None:
    """Over every number that a member may tell: a new one is tested without a new test."""
    asked = telling(count_noise=count_noise)
    charged = {cost.what: cost for cost in asked.costs()}
    assert set(charged) == {CENTRE, *(number.what for number in asked.numbers.values())}
    assert set(asked.numbers) == {field.name for field in fields(RosterEntry)} & {"samples", "epsilon", "factor"}
    fact, tensors = asked.drawn()
    assert isinstance(asked.source, Scripted)
    assert len(asked.source.given) == len(asked.numbers), "each has a draw of its own"
    for (name, number), drawn in zip(asked.numbers.items(), asked.source.given, strict=True):
        cost = charged[number.what]
        assert cost == Cost(what=number.what, kind="gaussian", noise=cost.noise, steps=1) and cost.noise > 0
        disclosed = float(getattr(fact, name))
        rounding = 0.5 if name == "samples" else 1e-12
        assert abs(disclosed - number.value - cost.noise * number.row * drawn) <= rounding
        assert fact.noised[number.what] == [cost.noise, cost.noise * number.row]
    # One row moves the sum of the inputs by its bound, which is what the noise of the mean is charged in.
    assert isinstance(asked.mean_source, Scripted)
    added = tensors[MEAN] * fact.samples - bounded_sum(rows()[0], bound(WIDTH))
    expected = charged[CENTRE].noise * bound(WIDTH) * torch.tensor(asked.mean_source.given, dtype=torch.float64)
    torch.testing.assert_close(added, expected, rtol=1e-9, atol=1e-9)


def test_the_row_that_a_number_is_charged_in_is_what_a_row_changes_in_it() -> None:
    """A count changes by one; what a row changes in a budget or a factor is the member's own word."""
    found = telling().numbers
    assert {name: number.row for name, number in found.items()} == {"samples": 1.0, "epsilon": 0.25, "factor": 0.5}
    assert found["samples"].value == ROWS
    usual = POLICY.model_copy(update={"enrol": NOISED.model_copy(update={"budget_row": None})})
    assert telling(policy=usual).numbers["epsilon"].row == POLICY.budget.epsilon, "all of it, unless it is said"


def test_what_is_public_costs_nothing_and_is_disclosed_as_it_is() -> None:
    open_ = MemberPolicy(budget=POLICY.budget, accept=POLICY.accept, enrol=Enrol(factor=0.5))
    asked = telling(centre=0.0, policy=open_)
    assert asked.costs() == ()
    fact, tensors = asked.drawn()
    assert (fact.samples, fact.epsilon, fact.factor, tensors) == (ROWS, 2.0, 0.5, {})
