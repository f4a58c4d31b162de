"""The view of a third party, who sees only the models: what is guaranteed against it, and what a paper claims."""

from __future__ import annotations

from collections.abc import Sequence

from hush.privacy import third_party
from hush.privacy.schedule import PrivacySchedule
from hush.recipes import Recipe
from hush.recipes.slots.weight import Uniform

PROMISED = "no smaller epsilon is guaranteed than against the server: models are computed from the updates it sees"


def third_party_view(recipe: Recipe, schedules: Sequence[PrivacySchedule], participation: float, rounds: int) -> str:
    """Return what can be said about a third party, in words.

    DP-SCAFFOLD's claim is for one model, equal weights, and identical clients: fixed batches, the same noise, the same
    number of rows. For a run of this kind the claim is reported as claimed, with the unproved assumption.
    """
    plan = schedules[0].plan
    alike = len({_kind(schedule) for schedule in schedules}) == 1
    fits = recipe.assign.models == 1 and isinstance(recipe.weight, Uniform) and plan.sampler == "fixed" and plan.private
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
