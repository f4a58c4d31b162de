"""Row budgets in a run: which recipes keep them, what cards list, and what is public about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hush.config import Config, unit_of
from hush.privacy import row_budgets
from hush.privacy.schedule import PrivacySchedule, StageTable
from hush.recipes import Recipe
from hush.recipes.slots.protect import DpSgd
from hush.types import HushError, Member, Policy

KEY = "privacy.row_budgets"


def check_row_budgets(config: Config, recipe: Recipe, table: StageTable) -> None:
    """Raise a `HushError` unless all that rows contribute to are sampled steps, at rates that can be theirs."""
    protect = recipe.protect
    if not protect.private:
        return
    own = isinstance(protect, DpSgd) and (protect.budget, protect.spread, protect.sampler) == (
        "own", "all-rounds", "configured"
    )  # fmt: skip
    if not own or config.privacy.sampler != "poisson" or unit_of(config) == "client":
        raise HushError(
            f"{KEY}: rates of their own need Poisson batches and noise for each client's own budget over all rounds; "
            'accepted: protect = "dp-sgd" as it is, sampler = "poisson", unit "row" or "person"',
            KEY,
        )
    beside = dict.fromkeys(release.what for spec in table.specs for release in spec.side_releases)
    if beside or any(spec.full_batch for spec in table.specs):
        named = ", ".join(beside) or "steps on all rows"
        raise HushError(
            f"{KEY}: the recipe uses all rows alike ({named}), which costs each row the same; accepted: one without "
            "(recipe.protect.centre = 0, clip = fixed, public counts, no cluster choice)",
            KEY,
        )


def row_groups(schedule: PrivacySchedule, policy: Policy) -> tuple[Mapping[str, float], ...]:
    """The groups of a client's rows for its card: budget, number, sampling rate, and epsilon over the whole run."""
    plan = schedule.plan
    spent = row_budgets.epsilons(
        plan.groups, plan.noise_multiplier, schedule.steps, policy.delta, policy.relation, plan.accountant
    )
    return tuple(
        {"budget": group.budget, "units": group.units, "rate": group.rate, "epsilon": epsilon}
        for group, epsilon in zip(plan.groups, spent, strict=True)
    )


def uncovered_budgets(members: Sequence[Member]) -> tuple[str, ...]:
    """What no accountant covers about row budgets, in words."""
    if not any(member.row_groups for member in members):
        return ()
    return (
        "row budgets: which budgets a client's rows have, and how many rows have each, are taken as public; sampling "
        "rates and noise follow from them",
    )
