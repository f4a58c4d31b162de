"""The view of a third party, who sees only the models: what is guaranteed against it, and what a paper claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hush.privacy import third_party
from hush.privacy.accounting import api
from hush.privacy.schedule import PrivacySchedule
from hush.recipes import Recipe
from hush.recipes.context import RoundView
from hush.recipes.slots.assign import SingleModel
from hush.recipes.slots.local import PlainSgd, Proximal
from hush.recipes.slots.project import Identity
from hush.recipes.slots.step import Add, Noisy, TwoSided
from hush.recipes.slots.weight import Epsilon, Impact, Samples, Uniform
from hush.types import Policy

PROMISED = "no smaller epsilon is guaranteed than against the server: models are computed from the updates it sees"


UNPROVED = (
    "the server adds noise to the models, for which no smaller epsilon is proved here: that needs one local step a "
    "round, Poisson batches, public weights that nothing limits or changes, one model, and all clients in every round"
)


def third_party_view(
    recipe: Recipe, schedules: Sequence[PrivacySchedule], policies: Sequence[Policy],
    view: RoundView | None, participation: float, rounds: int,
) -> str:  # fmt: skip
    """Return what can be said about a third party, in words.

    `view` has the public facts of all clients; None where the server limits norms or weights by what it receives, or
    where a client was missing in a round, so that the others had larger weights.

    If the server adds noise of its own, what this is worth is computed where it can be (`with_server_noise`).

    DP-SCAFFOLD's claim is for one model, equal weights, and identical clients: fixed batches, the same noise, the same
    number of rows. For a run of this kind the claim is reported as claimed, with the unproved assumption.
    """
    if isinstance(recipe.step, TwoSided) or (isinstance(recipe.step, Noisy) and recipe.step.deviation > 0):
        found = None if view is None else with_server_noise(recipe, schedules, policies, view, participation)
        if found is None:
            return f"{PROMISED}; {UNPROVED}"
        return (
            f"after all rounds, epsilon {min(found):.3g} to {max(found):.3g}, by client, against someone who sees the "
            "models alone, by the noise that the server adds to them, if all clients answer in every round; as against "
            "the server, if server and third party work together"
        )
    plan = schedules[0].plan
    alike = len({_kind(schedule) for schedule in schedules}) == 1
    one = isinstance(recipe.assign, SingleModel) and isinstance(recipe.weight, Uniform)
    fits = one and plan.sampler == "fixed" and plan.private
    if not (alike and fits):
        return PROMISED
    # The paper's noise is relative to the change by one replaced row, which is twice the clipping norm.
    claim = third_party.claimed_epsilon(
        plan.noise_multiplier / 2, plan.rate, participation, plan.steps, rounds, len(schedules), plan.samples
    )
    delta = 1 / (len(schedules) * plan.samples)
    return f"{PROMISED}; DP-SCAFFOLD would claim epsilon {claim:.3g} at delta {delta:.2g}. {third_party.ASSUMPTION}"


def _kind(schedule: PrivacySchedule) -> tuple[int, int, int, float]:
    plan = schedule.plan
    return plan.samples, plan.batch, plan.steps, plan.noise_multiplier


def with_server_noise(
    recipe: Recipe, schedules: Sequence[PrivacySchedule], policies: Sequence[Policy], view: RoundView,
    participation: float,
) -> list[float] | None:  # fmt: skip
    """Return each client's epsilon against someone who sees only the models, after all rounds; None if not proved.

    With one local step a round, a model shows client i's clipped sum times w_i lr / b with noise of its own and of the
    server, of variances (w_i sigma_i)^2 and s^2: a Gaussian mechanism whose multiplier is z_i sqrt(1 + (s / (w_i
    sigma_i))^2) on a Poisson sample, composed over the rounds. With several steps, what a row changes in the first
    moves all later ones, and no such bound holds.
    """
    step = recipe.step
    plain = (
        isinstance(step, Noisy)
        and isinstance(step.inner, Add)
        and isinstance(recipe.weight, Samples | Uniform | Epsilon | Impact)
        and not (isinstance(recipe.weight, Impact) and recipe.weight.changes)
        and isinstance(recipe.project, Identity)
        and isinstance(recipe.local, PlainSgd | Proximal)
        and isinstance(recipe.assign, SingleModel)
        and participation == 1.0
        and len({each.rounds for each in schedules}) == 1
        and all(len(each.costs()) == 1 and each.costs()[0].kind == "poisson-gaussian" for each in schedules)
        and all(each.plan.steps == 1 and not each.plan.whole_update for each in schedules)
    )
    if not plain:
        return None
    assert isinstance(step, Noisy) and isinstance(step.inner, Add)
    found = []
    deviations = (view.planned_noise / view.layout.size).sqrt().tolist()
    for schedule, policy, weight, own in zip(
        schedules, policies, recipe.weight.foreseen(view).tolist(), deviations, strict=True
    ):
        cost, moved = schedule.costs()[0], abs(step.inner.lr) * weight * own
        if moved == 0:
            found.append(0.0)
            continue
        noise = cost.noise * math.sqrt(1.0 + (step.deviation / moved) ** 2)
        accountant = schedule.plan.accountant
        found.append(api.epsilon_of([replace(cost, noise=noise)], policy.delta, policy.relation, accountant))
    return found
