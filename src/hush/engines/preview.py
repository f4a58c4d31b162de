"""Preview of a run: the planned noise and the expected weight of every client."""

from __future__ import annotations

from dataclasses import dataclass

from hush.engines.setup import Federation
from hush.privacy.schedule import epsilon
from hush.server.loop import enrolled


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The preview of one client, from public facts alone."""

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
    name: str = ""


def preview(federation: Federation) -> list[Preview]:
    """Return one record per client. `noise_variance` is the expected squared norm of the noise in one update."""
    weights = federation.recipe.weight.foreseen(enrolled(federation.terms)).tolist()
    made = []
    for member, policy, schedule in zip(federation.members, federation.policies, federation.schedules, strict=True):
        plan = schedule.plan
        main = [stage.plan for stage in schedule.stages].index(plan)
        made.append(
            Preview(
                client=member.client,
                epsilon_budget=member.policy.epsilon,
                epsilon_planned=epsilon(schedule, policy) if plan.private else None,
                delta=policy.delta,
                samples=member.samples,
                batch_size=plan.batch,
                sample_rate=plan.rate,
                rounds=schedule.rounds,
                steps=schedule.steps,
                noise_multiplier=plan.noise_multiplier,
                noise_variance=float(federation.terms.planned_noise[main, member.client]),
                weight=weights[member.client],
                name=member.name,
            )
        )
    return made
