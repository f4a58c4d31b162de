"""Before a run: every client of a federation with its noise, and the weight it would get."""

from __future__ import annotations

from dataclasses import dataclass

from hush.engines.federation import Federation
from hush.privacy.course import epsilon
from hush.server.loop import enrolled


@dataclass(frozen=True)
class Outlook:
    """What one client may expect, from public facts alone."""

    client: int
    epsilon_budget: float
    epsilon_planned: float | None
    delta: float
    samples: int
    batch_size: int
    sample_rate: float
    rounds: int
    steps: int
    noise_multiplier: float
    noise_variance: float
    weight: float


def outlook(federation: Federation) -> list[Outlook]:
    """One record a client. `noise_variance` is the expected squared norm of the noise in one update."""
    weights = federation.recipe.weigh.foreseen(enrolled(federation.terms)).tolist()
    made = []
    for member, policy, course in zip(federation.members, federation.policies, federation.courses, strict=True):
        plan = course.plan
        main = [stage.plan for stage in course.stages].index(plan)
        made.append(
            Outlook(
                client=member.client,
                epsilon_budget=member.policy.epsilon,
                epsilon_planned=epsilon(course, policy) if plan.private else None,
                delta=policy.delta,
                samples=member.samples,
                batch_size=plan.batch,
                sample_rate=plan.rate,
                rounds=course.rounds,
                steps=course.steps,
                noise_multiplier=plan.noise_multiplier,
                noise_variance=federation.terms.planned_noise[main][member.client],
                weight=weights[member.client],
            )
        )
    return made
