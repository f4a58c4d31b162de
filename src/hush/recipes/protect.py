"""protect: how a client's privacy is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hush.config import Config
from hush.privacy.plan import PrivacyPlan, calibrated, open_plan
from hush.types import Member, Policy, Release


@dataclass(frozen=True)
class Nothing:
    """No protection: the baseline that shows what privacy costs."""

    rule: ClassVar[str] = "none"

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Promise nothing."""
        return [replace(member.policy, epsilon=math.inf) for member in members]

    def plan(self, policy: Policy, member: Member, rounds: int, config: Config) -> PrivacyPlan:
        """Train on the same kind of batches, unclipped and without noise."""
        return open_plan(
            policy, samples=member.samples, batch=member.batch, epochs=config.local.epochs, rounds=rounds,
            accountant=config.privacy.accountant,
        )  # fmt: skip

    def releases(self) -> tuple[Release, ...]:
        """The raw update."""
        return (Release("model update", False, "no privacy: clients send updates without noise"),)


@dataclass(frozen=True)
class DpSgd:
    """Clipped, noised steps on Poisson batches, calibrated over all rounds to a budget.

    `own` keeps each client's own budget. `minimum` gives all of them the smallest one. `maximum` gives all of them the
    largest, which breaks the promise to every other client: a baseline of the literature, named as not covered.
    """

    rule: ClassVar[str] = "dp-sgd"
    budget: Literal["own", "minimum", "maximum"] = "own"

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Each client's budget under this rule."""
        own = [member.policy for member in members]
        if self.budget == "own":
            return own
        best = min if self.budget == "minimum" else max
        epsilon, delta = best(p.epsilon for p in own), best(p.delta for p in own)
        return [replace(policy, epsilon=epsilon, delta=delta) for policy in own]

    def plan(self, policy: Policy, member: Member, rounds: int, config: Config) -> PrivacyPlan:
        """The least noise that keeps the policy."""
        return calibrated(
            policy, samples=member.samples, batch=member.batch, epochs=config.local.epochs, rounds=rounds,
            clip=config.privacy.clip, accountant=config.privacy.accountant,
        )  # fmt: skip

    def releases(self) -> tuple[Release, ...]:
        """The privatised update, and the broken promise if there is one."""
        update = Release("model update", True, "clipped and noised in every step, accounted in the client's plan")
        if self.budget != "maximum":
            return (update,)
        broken = "every client spends the largest budget of all, which may be more than its own"
        return (update, Release("privacy beyond the client's own budget", False, broken))
