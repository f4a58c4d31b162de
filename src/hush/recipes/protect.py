"""protect: how a client's privacy is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.config import Config
from hush.privacy.course import Aside, Ask, Course, Outline, Output, calibrated, drafted, first, with_noise
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.recipes.option import Option
from hush.recipes.view import RoundView, State
from hush.types import Accountant, HushError, Member, Policy, Release

BELOW = "clip quantile"
CENTRE = "mean of the inputs"


class _Protect(Option):
    """A clip that stays as configured."""

    def start(self, clip: float) -> State:
        """Nothing to remember."""
        return {}

    def notes(self, state: State) -> Mapping[str, Tensor]:
        """What to tell every client: nothing."""
        return {}

    def absorb(self, view: RoundView, state: State) -> State:
        """Learn from the round: nothing."""
        return state

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """What each client does to its trained model before it is sent: nothing."""
        return [None] * len(members)


@dataclass(frozen=True)
class Nothing(_Protect):
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
class DpSgd(_Protect):
    """Clipped, noised steps on Poisson batches, calibrated to a budget.

    `budget`: `own` keeps each client's own. `minimum` gives all of them the smallest one. `maximum` gives all of them
    the largest, which breaks the promise to every other client: a baseline of the literature, named as not covered.

    `spread`: `all-rounds` makes each budget last for all of a client's rounds, with the noise that this takes.
    `equal-noise` gives every client the same noise multiplier, so that those with small budgets leave early. It is
    `noise`, or else what the client with the largest budget needs to stay to the end.

    `accountant`: the config's, or the one of Robust-HDP's experiments, whose Renyi orders stop at 64.

    `sampler`: the config's, or `fixed` as in DP-SCAFFOLD: batches of a fixed size, under replace-one and by `rdp`,
    whatever the config says, since nothing else accounts for them; or `even` as in Robust-HDP's experiments: Poisson
    batches at a rate of one over the steps of a pass.

    `clip`: `fixed` as configured, or `adaptive`: it follows the `quantile` of the clients' gradient norms (Andrew et
    al. 2021), C <- C exp(-pace (b - quantile)), b the mean of noisy fractions that cost a client `share` of a round.

    `steps`: none as configured; a number lets every client make one pass over its rows in that many steps, whatever
    batch it would take. Clients of the same budget then move as far and are as noisy as each other.

    `draws`: `own` batches and noise for every client, or `shared`: the same for all of a round, and users and seeds as
    in DP-SCAFFOLD's public code. Then noise does not average out over clients, and protects nobody from who sees two
    updates: named as not covered.

    `centre`: above 0, every client first tells a noised mean of its inputs, for this part of what all its training
    costs, and rows are counted from the mean of these means: what all rows have in common then takes nothing of the
    clip. For models that are one linear layer.
    """

    rule: ClassVar[str] = "dp-sgd"
    budget: Literal["own", "minimum", "maximum"] = "own"
    spread: Literal["all-rounds", "equal-noise"] = "all-rounds"
    noise: float | None = None
    accountant: Literal["configured", "rdp-64"] = "configured"
    sampler: Literal["configured", "fixed", "even"] = "configured"
    clip: Literal["fixed", "adaptive"] = "fixed"
    quantile: float = 0.5
    pace: float = 0.2
    share: float = 0.05
    steps: int | None = None
    centre: float = 0.0
    draws: Literal["own", "shared"] = "own"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps: expected 1 or more, found {self.steps}")
        if not 0 <= self.centre <= 1:
            raise ValueError(f"centre: expected a number from 0 to 1, found {self.centre}")
        if not (0 < self.quantile < 1 and self.pace > 0 and self.share > 0):
            raise ValueError("quantile: expected between 0 and 1, and pace and share above 0")
        if self.noise is not None and not self.noise > 0:
            raise ValueError(f"noise: expected a positive number, found {self.noise}")
        if self.noise is not None and self.spread != "equal-noise":
            raise ValueError('noise: can be given only with spread = "equal-noise"')

    def ask(self, number: int, rounds: int) -> Ask:
        """A noisy mean at enrolment, if there is a centre; a noisy count in every round, if the clip adapts."""
        if number == 0:
            return Ask(train=False, asides=(Aside(CENTRE, self.centre * rounds),) if self.centre > 0 else ())
        return Ask(asides=(Aside(BELOW, self.share, sampled=True),) if self.clip == "adaptive" else ())

    def start(self, clip: float) -> State:
        """The clip as configured, if it is to change."""
        return {"clip": torch.tensor([clip], dtype=torch.float64)} if self.clip == "adaptive" else {}

    def notes(self, state: State) -> Mapping[str, Tensor]:
        """The clip of this round, if it changes, and the centre, if there is one."""
        return {name: state[name] for name in ("clip", "centre") if name in state}

    def absorb(self, view: RoundView, state: State) -> State:
        """Follow the quantile."""
        if "clip" not in state:
            return state
        fraction = (view.notes["below"].mean()).clamp(0.0, 1.0)
        return {**state, "clip": state["clip"] * torch.exp(-self.pace * (fraction - self.quantile))}

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Each client's budget under this rule."""
        own = [member.policy for member in members]
        if self.sampler == "fixed":
            own = [replace(policy, relation="replace-one") for policy in own]
        if self.budget == "own":
            return own
        best = min if self.budget == "minimum" else max
        epsilon, delta = best(p.epsilon for p in own), best(p.delta for p in own)
        return [replace(policy, epsilon=epsilon, delta=delta) for policy in own]

    def courses(
        self, members: Sequence[Member], outline: Outline, orders: Sequence[Sequence[int]], config: Config
    ) -> list[Course]:
        """How each client keeps its policy."""
        if self.draws == "shared" and config.privacy.noise == "secure":
            text = '"secure" noise cannot be shared; accepted: "replayable", or recipe.protect.draws = "own"'
            raise HushError(f"privacy.noise: {text}", "privacy.noise")
        policies = self.policies(members)
        accountant = config.privacy.accountant if self.accountant == "configured" else self.accountant
        plans = [_draft(member, config, accountant, self.steps) for member in members]
        if self.sampler == "fixed":
            plans = [replace(p, sampler="fixed", relation="replace-one", accountant="rdp") for p in plans]
        if self.sampler == "even":
            plans = [replace(p, even=True) for p in plans]
        drafts = [_course(plan, order, outline) for plan, order in zip(plans, orders, strict=True)]
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
        told = [update]
        if self.clip == "adaptive":
            told.append(Release(BELOW, True, "a noised count on one batch, charged each round", "sampled-gaussian"))
        if self.centre > 0:
            told.append(Release(CENTRE, True, "a noised mean of bounded rows, charged once, at enrolment", "gaussian"))
            told.append(Release("privacy plan", False, "taken as public at enrolment, and sets the weight of the mean"))
        if self.draws == "shared":
            broken = "all clients of a round draw the same, so that two of them tell their difference without any"
            told.append(Release("noise", False, broken))
        if self.budget == "maximum":
            broken = "every client spends the largest budget of all, which may be more than its own"
            told.append(Release("privacy beyond the client's own budget", False, broken))
        return tuple(told)


@dataclass(frozen=True)
class OutputPerturbation(Nothing):
    """PADPFL as printed: ordinary training, then weights cut to norm `bound` and noised once a round.

    The noise is 2 bound rounds c / (m eps), c = sqrt(2 ln(1.25 / delta)), m the fewest samples of any client. It is not
    enough for the epsilon it names: a bounded output moves by 2 bound, not 2 bound / m, the formula needs eps below 1,
    and delta is not composed. So nothing is promised, and the run says so.
    """

    rule: ClassVar[str] = "output-perturbation"
    bound: float = 20.0

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise ValueError(f"bound: expected a positive number, found {self.bound}")

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """The bound and the paper's noise."""
        fewest = min(member.samples for member in members)
        constants = [math.sqrt(2 * math.log(1.25 / member.policy.delta)) for member in members]
        return [
            Output(self.bound, 2 * self.bound * rounds * c / (fewest * member.policy.epsilon))
            for member, c in zip(members, constants, strict=True)
        ]

    def releases(self) -> tuple[Release, ...]:
        """An update whose noise keeps no promise."""
        why = "noised by a formula whose sensitivity is not proved and which holds for epsilon below 1 alone"
        return (Release(UPDATE, False, why),)


def _draft(member: Member, config: Config, accountant: Accountant, steps: int | None = None) -> PrivacyPlan:
    """How a client trains in an ordinary round, before its noise is known: one pass, where `steps` are given."""
    privacy, local = config.privacy, config.local
    batch = member.batch if steps is None else math.ceil(member.samples / steps)
    return PrivacyPlan(
        member.samples, batch, local.epochs, 1, privacy.clip, 1.0, member.policy.relation, accountant,
        privacy.discrete, local.steps if steps is None else steps, privacy.sampler,
    )  # fmt: skip


def _course(plan: PrivacyPlan, order: Sequence[int], outline: Outline) -> Course:
    return drafted(outline.asks, [order.count(stage) for stage in range(len(outline.asks))], plan)
