"""protect: how a client's privacy is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hush.config import Config
from hush.privacy.plan import PrivacyPlan, calibrated, open_plan, with_noise
from hush.types import Member, Policy, Release


@dataclass(frozen=True)
class Nothing:
    """No protection: the baseline that shows what privacy costs."""

    rule: ClassVar[str] = "none"

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Promise nothing."""
        return [replace(member.policy, epsilon=math.inf) for member in members]

    def plans(self, members: Sequence[Member], rounds: Sequence[int], config: Config) -> list[PrivacyPlan]:
        """Train on the same kind of batches, unclipped and without noise."""
        return [self._plan(*each, config) for each in zip(self.policies(members), members, rounds, strict=True)]

    def _plan(self, policy: Policy, member: Member, rounds: int, config: Config) -> PrivacyPlan:
        return open_plan(
            policy, samples=member.samples, batch=member.batch, epochs=config.local.epochs, rounds=rounds,
            accountant=config.privacy.accountant,
        )  # fmt: skip

    def releases(self) -> tuple[Release, ...]:
        """The raw update."""
        return (Release("model update", False, "no privacy: clients send updates without noise"),)


@dataclass(frozen=True)
class DpSgd:
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

    def plans(self, members: Sequence[Member], rounds: Sequence[int], config: Config) -> list[PrivacyPlan]:
        """How each client keeps its policy."""
        policies = self.policies(members)
        accountant = config.privacy.accountant if self.accountant == "configured" else self.accountant
        spread = [
            calibrated(
                policy, samples=member.samples, batch=member.batch, epochs=config.local.epochs, rounds=number,
                clip=config.privacy.clip, accountant=accountant, discrete=config.privacy.discrete,
            )
            for policy, member, number in zip(policies, members, rounds, strict=True)
        ]  # fmt: skip
        if self.spread == "all-rounds":
            return spread
        loosest = max(range(len(members)), key=lambda c: policies[c].epsilon)
        noise = self.noise or spread[loosest].noise_multiplier
        return [with_noise(plan, noise, policy) for plan, policy in zip(spread, policies, strict=True)]

    def releases(self) -> tuple[Release, ...]:
        """The privatised update, and the broken promise if there is one."""
        update = Release("model update", True, "clipped and noised in every step, accounted in the client's plan")
        if self.budget != "maximum":
            return (update,)
        broken = "every client spends the largest budget of all, which may be more than its own"
        return (update, Release("privacy beyond the client's own budget", False, broken))
