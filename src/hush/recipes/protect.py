"""protect: how a client's privacy is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hush.config import Config
from hush.privacy.course import Course, Outline, calibrated, drafted, first, with_noise
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.recipes.option import Option
from hush.types import Accountant, Member, Policy, Release


@dataclass(frozen=True)
class Nothing(Option):
    """No protection: the baseline that shows what privacy costs."""

    rule: ClassVar[str] = "none"

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Promise nothing."""
        return [replace(member.policy, epsilon=math.inf) for member in members]

    def courses(
        self, members: Sequence[Member], outline: Outline, orders: Sequence[Sequence[int]], config: Config
    ) -> list[Course]:
        """Train on the same kind of batches, unclipped and without noise."""
        plans = [replace(_draft(m, config, config.privacy.accountant), clip=math.inf) for m in members]
        drafts = [_course(*each, outline) for each in zip(plans, orders, strict=True)]
        return [with_noise(draft, 0.0) for draft in drafts]

    def releases(self) -> tuple[Release, ...]:
        """The raw update."""
        return (Release(UPDATE, False, "no privacy: clients send updates without noise"),)


@dataclass(frozen=True)
class DpSgd(Option):
    """Clipped, noised steps on Poisson batches, calibrated to a budget.

    `budget`: `own` keeps each client's own. `minimum` gives all of them the smallest one. `maximum` gives all of them
    the largest, which breaks the promise to every other client: a baseline of the literature, named as not covered.

    `spread`: `all-rounds` makes each budget last for all of a client's rounds, with the noise that this takes.
    `equal-noise` gives every client the same noise multiplier, so that those with small budgets leave early. It is
    `noise`, or else what the client with the largest budget needs to stay to the end.

    `accountant`: the config's, or the one of Robust-HDP's experiments, whose Renyi orders stop at 64.
    """

    rule: ClassVar[str] = "dp-sgd"
    budget: Literal["own", "minimum", "maximum"] = "own"
    spread: Literal["all-rounds", "equal-noise"] = "all-rounds"
    noise: float | None = None
    accountant: Literal["configured", "rdp-64"] = "configured"

    def __post_init__(self) -> None:
        if self.noise is not None and not self.noise > 0:
            raise ValueError(f"noise: expected a positive number, found {self.noise}")
        if self.noise is not None and self.spread != "equal-noise":
            raise ValueError('noise: can be given only with spread = "equal-noise"')

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Each client's budget under this rule."""
        own = [member.policy for member in members]
        if self.budget == "own":
            return own
        best = min if self.budget == "minimum" else max
        epsilon, delta = best(p.epsilon for p in own), best(p.delta for p in own)
        return [replace(policy, epsilon=epsilon, delta=delta) for policy in own]

    def courses(
        self, members: Sequence[Member], outline: Outline, orders: Sequence[Sequence[int]], config: Config
    ) -> list[Course]:
        """How each client keeps its policy."""
        policies = self.policies(members)
        accountant = config.privacy.accountant if self.accountant == "configured" else self.accountant
        drafts = [
            _course(_draft(member, config, accountant), order, outline)
            for member, order in zip(members, orders, strict=True)
        ]
        if self.spread == "all-rounds":
            return [calibrated(draft, policy) for draft, policy in zip(drafts, policies, strict=True)]
        loosest = max(range(len(members)), key=lambda c: policies[c].epsilon)
        noise = self.noise or calibrated(drafts[loosest], policies[loosest]).plan.noise_multiplier
        return [
            first(with_noise(draft, noise), order, policy)
            for draft, order, policy in zip(drafts, orders, policies, strict=True)
        ]

    def releases(self) -> tuple[Release, ...]:
        """The privatised update, and the broken promise if there is one."""
        update = Release(
            UPDATE, True, "clipped and noised in every step, accounted in the client's plan", "sampled-gaussian"
        )
        if self.budget != "maximum":
            return (update,)
        broken = "every client spends the largest budget of all, which may be more than its own"
        return (update, Release("privacy beyond the client's own budget", False, broken))


def _draft(member: Member, config: Config, accountant: Accountant) -> PrivacyPlan:
    """How a client trains in an ordinary round, before its noise is known."""
    privacy, local = config.privacy, config.local
    return PrivacyPlan(
        member.samples, member.batch, local.epochs, 1, privacy.clip, 1.0, member.policy.relation, accountant,
        privacy.discrete, local.steps, privacy.sampler,
    )  # fmt: skip


def _course(plan: PrivacyPlan, order: Sequence[int], outline: Outline) -> Course:
    return drafted(outline.asks, [order.count(stage) for stage in range(len(outline.asks))], plan)
