"""The roster: the members' declarations at enrolment, their client numbers, and their impact factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hush.config import Config
from hush.data import budgets
from hush.privacy.accounting.cost import Cost
from hush.recipes import Recipe
from hush.recipes.slots.weight import COUNT, Balanced, EstimatedNoise, Impact
from hush.types import HushError, Member, Policy, Relation, Unit

BUDGET, IMPACT = "privacy budget", "impact factor"
MEAN = "mean"
_DEVIATIONS = 6.0


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """What a member declared at enrolment.

    Attributes:
        name: The member's name.
        epsilon: Its budget for a run.
        delta: Its delta.
        relation: Its neighbouring relation.
        unit: Its unit of privacy.
        samples: Its number of rows, or of persons where they are the unit.
        factor: Its impact factor, if the recipe uses one and the member has one.
        group: Its true cluster, if the recipe assumes it is known.
        noised: Noise multiplier and standard deviation of each noisy entry, by its name in the privacy guarantee.
    """

    name: str
    epsilon: float
    delta: float
    relation: Relation
    samples: int
    unit: Unit = "row"
    factor: float | None = None
    group: int | None = None
    noised: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def costs(self) -> tuple[Cost, ...]:
        """What was charged at enrolment."""
        return tuple(
            Cost(what=what, kind="gaussian", noise=float(noise), steps=1) for what, (noise, _) in self.noised.items()
        )

    def extremes(self, least: int) -> tuple[RosterEntry, ...]:
        """The entry at the ends of the 1 - 10^-9 confidence intervals of its noisy numbers."""
        far = math.ceil(_DEVIATIONS * float(self.noised.get(COUNT, (0, 0))[1]))
        budget = self.epsilon - _DEVIATIONS * float(self.noised.get(BUDGET, (0, 0))[1])
        rows = (max(least, self.samples - far), self.samples + far)
        return tuple(replace(self, samples=number, epsilon=max(0.1 * self.epsilon, budget)) for number in rows)


def roster(config: Config, facts: Sequence[RosterEntry]) -> tuple[Member, ...]:
    """Return the members with their numbers and batch sizes."""
    if len(facts) != config.data.clients:
        raise HushError(f"data.clients: {config.data.clients}, but {len(facts)} members are enrolled", "data.clients")
    batches = budgets.batch_sizes(config.local.batch_size, len(facts), config.seed)
    members = tuple(
        Member(
            client=c,
            policy=Policy(fact.epsilon, fact.delta, fact.relation, fact.unit),
            samples=_rows(fact, batches[c]),
            batch=batches[c],
            group=fact.group or 0,
        )
        for c, fact in enumerate(facts)
    )
    for member, fact in zip(members, facts, strict=True):
        if member.batch > member.samples:
            raise HushError(f"local.batch_size: {member.batch} is more than {fact.name} supports", "local.batch_size")
    return members


def _rows(fact: RosterEntry, batch: int) -> int:
    # A noisy number of rows may be smaller than a batch size that fits the true one.
    return max(fact.samples, batch) if COUNT in fact.noised else fact.samples


def weighted(recipe: Recipe, facts: Sequence[RosterEntry]) -> Recipe:
    """Return the recipe with the impact factors that members declared, unless the recipe specifies its own.

    With weights by estimated noise, no estimate counts as far below the planned noise.
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
