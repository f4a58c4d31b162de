"""What members declared at enrolment, and what both sides make of it: the roster, and the weights' factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hush.config import Config
from hush.data import budgets
from hush.privacy.accounting.cost import Cost
from hush.recipes import Recipe
from hush.recipes.slots.weight import COUNT, Balanced, EstimatedNoise, Impact
from hush.types import HushError, Member, Policy, Relation

BUDGET, IMPACT = "privacy budget", "impact factor"
MEAN = "mean"
_DEVIATIONS = 6.0


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """What a member declared at enrolment.

    Attributes:
        name: The member's.
        epsilon: Its budget for a run.
        delta: The same.
        relation: The same.
        samples: How many rows it has.
        factor: Its impact factor, where it was asked for one and has one.
        group: Its true cluster, where the recipe takes that as known.
        noised: What of this is noised, in the words of the promise: noise multiplier and deviation of each.
    """

    name: str
    epsilon: float
    delta: float
    relation: Relation
    samples: int
    factor: float | None = None
    group: int | None = None
    noised: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def costs(self) -> tuple[Cost, ...]:
        """What was charged at enrolment."""
        return tuple(Cost(what, "gaussian", float(noise), 1) for what, (noise, _) in self.noised.items())

    def extremes(self, least: int) -> tuple[RosterEntry, ...]:
        """The same with numbers as far off as noise hides but for one time in 10^9: less budget, fewer or more rows."""
        far = math.ceil(_DEVIATIONS * float(self.noised.get(COUNT, (0, 0))[1]))
        budget = self.epsilon - _DEVIATIONS * float(self.noised.get(BUDGET, (0, 0))[1])
        rows = (max(least, self.samples - far), self.samples + far)
        return tuple(replace(self, samples=number, epsilon=max(0.1 * self.epsilon, budget)) for number in rows)


def roster(config: Config, facts: Sequence[RosterEntry]) -> tuple[Member, ...]:
    """The members with their numbers and batch sizes."""
    if len(facts) != config.data.clients:
        raise HushError(f"data.clients: {config.data.clients}, but {len(facts)} members are enrolled", "data.clients")
    batches = budgets.batch_sizes(config.local.batch_size, len(facts), config.seed)
    members = tuple(
        Member(c, Policy(fact.epsilon, fact.delta, fact.relation), _rows(fact, batches[c]), batches[c], fact.group or 0)
        for c, fact in enumerate(facts)
    )
    for member, fact in zip(members, facts, strict=True):
        if member.batch > member.samples:
            raise HushError(f"local.batch_size: {member.batch} is more than {fact.name} supports", "local.batch_size")
    return members


def _rows(fact: RosterEntry, batch: int) -> int:
    # A noised number may say fewer rows than a batch that the true one allows.
    return max(fact.samples, batch) if COUNT in fact.noised else fact.samples


def weighted(recipe: Recipe, facts: Sequence[RosterEntry]) -> Recipe:
    """The recipe as a federation runs it: with the impact factors that members declared, unless it brings its own.

    Where weights follow from estimated noise, nobody's counts as far below what its plan makes.
    """
    weight = recipe.weight
    if isinstance(weight, EstimatedNoise | Balanced):
        return replace(recipe, weight=replace(weight, floor="plan"))
    declared = [fact.factor for fact in facts]
    if not isinstance(weight, Impact) or weight.factors or all(factor is None for factor in declared):
        return recipe
    silent = ", ".join(fact.name for fact in facts if fact.factor is None)
    if silent:
        raise HushError(
            f"recipe.weight: no impact factor (enrol.factor) from {silent}; accepted: from all members, or from none"
        )
    factors = [factor or 0.0 for factor in declared]
    total = sum(factors)
    if not total > 0:
        raise HushError("recipe.weight: all members declare impact factor 0; accepted: one above 0")
    return replace(recipe, weight=replace(weight, factors=[factor / total for factor in factors]))
