"""protect: how a client's privacy is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from hush.config import Config
from hush.privacy import row_budgets
from hush.privacy.batch_size import least_noise_batch
from hush.privacy.plan import UPDATE, PrivacyPlan
from hush.privacy.schedule import (
    Output,
    PrivacySchedule,
    RoundSpec,
    StageTable,
    calibrated,
    drafted,
    first,
    with_noise,
)
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.recipes.context import RoundView, State
from hush.recipes.interfaces import Extra, ModelFacts, Protect, TaskShape
from hush.types import Accountant, HushError, Member, Policy, Release

BELOW = "clip quantile"
CENTRE = "mean of the inputs"


@dataclass(frozen=True)
class ClipQuantile(SideRelease):
    """How many gradients of a batch the clip leaves whole: a half for each of these, minus a half for the others."""

    def bound(self, shape: ReleaseShape) -> float:
        """A half."""
        return 0.5

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """It needs the clip of the round: `hush.engines.side_releases` sums it."""
        raise TypeError(f"{self.what}: is not computed row by row")


@dataclass(frozen=True)
class InputMean(SideRelease):
    """The sum of the inputs, each cut to the norm of an input of unit variance."""

    def width(self, shape: ReleaseShape) -> int:
        """Numbers in a row."""
        return math.prod(shape.inputs)

    def bound(self, shape: ReleaseShape) -> float:
        """The square root of the width."""
        return math.sqrt(self.width(shape))

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """The input."""
        return x.flatten()


@dataclass(frozen=True)
class NoPrivacy(Protect):
    """No protection: the baseline that shows what privacy costs."""

    rule: ClassVar[str] = "none"

    @property
    def private(self) -> bool:
        """Nothing is guaranteed."""
        return False

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Promise nothing."""
        return [replace(member.policy, epsilon=math.inf) for member in members]

    def schedules(
        self, members: Sequence[Member], stage_table: StageTable, orders: Sequence[Sequence[int]], config: Config
    ) -> list[PrivacySchedule]:
        """Train on the same kind of batches, unclipped and without noise."""
        plans = [_draft(member, config, config.privacy.accountant) for member in members]
        plans = [replace(plan, clip=math.inf, whole_update=False) for plan in plans]
        drafts = [_schedule(*each, stage_table) for each in zip(plans, orders, strict=True)]
        return [with_noise(draft, 0.0) for draft in drafts]

    def releases(self) -> tuple[Release, ...]:
        """The raw update."""
        return (Release(UPDATE, False, "no privacy: clients send updates without noise"),)


@dataclass(frozen=True, kw_only=True)
class DpSgd(Protect):
    """Clipped, noised steps on Poisson batches, calibrated to a budget.

    `budget`: `own` keeps each client's own. `minimum` gives all of them the smallest one. `maximum` gives all of them
    the largest, which breaks the guarantee of every other client: a baseline of the literature, named as not covered.

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

    `batches`: with `steps`, `one-pass` has each row in one batch of a round on average. `large` takes larger
    batches, up to all rows, where sampling would cost more than about 10 percent of noise: with few steps in all or a
    large budget (`hush.privacy.batch_size`). A round is then up to `steps` passes.

    `draws`: `own` batches and noise for every client, or `shared`: the same for all of a round, and users and seeds as
    in DP-SCAFFOLD's public code. Then noise does not average out over clients, and protects nobody from who sees two
    updates: named as not covered.

    `level`: `rows` as the config's unit, or `user`: `noise` for all rows of a client at once, which is as many times
    the noise for one (DP-SCAFFOLD, section 3.3: S = 2 C / s in place of 2 C / (s R)). Batches, steps and cards stay
    those of rows; what it means for a user is `hush.privacy.third_party.user_epsilon`, named as not covered.

    `centre`: above 0, every client first tells a noised mean of its inputs, for this part of what all its training
    costs, and rows are counted from the mean of these means: what all rows have in common then takes nothing of the
    clip. With a model that does not begin with a linear layer with a bias, there is no centre: nothing is released or
    charged.
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
    batches: Literal["one-pass", "large"] = "one-pass"
    centre: float = 0.0
    draws: Literal["own", "shared"] = "own"
    level: Literal["rows", "user"] = "rows"

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

    def fitted(self, model: ModelFacts) -> Self:
        """Without a centre, where the model can have none."""
        return self if model.linear_first else replace(self, centre=0.0)

    def left_out(self, model: ModelFacts) -> tuple[str, ...]:
        """The centre, where the model can have none."""
        if model.linear_first or not self.centres_inputs:
            return ()
        return (
            f"recipe.protect.centre: inputs are not centred, because {model.name} does not begin with a linear layer "
            "with a bias; nothing is released or charged for it",
        )

    @property
    def own_budgets(self) -> bool:
        """Unless all train at the smallest or the largest."""
        return self.budget == "own"

    @property
    def spreads_budget(self) -> bool:
        """Unless all have the same noise."""
        return self.spread == "all-rounds"

    @property
    def shared_draws(self) -> bool:
        """As set."""
        return self.draws == "shared"

    @property
    def fixed_batches(self) -> bool:
        """As set."""
        return self.sampler == "fixed"

    @property
    def round_steps(self) -> int | None:
        """As set."""
        return self.steps

    @property
    def centres_inputs(self) -> bool:
        """Where a part of the budget is given to the mean."""
        return self.centre > 0

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """A noisy mean at enrolment, if there is a centre; a noisy count in every round, if the clip adapts."""
        if number == 0:
            return RoundSpec(
                train=False, side_releases=(InputMean(CENTRE, self.centre * rounds),) if self.centre > 0 else ()
            )
        return RoundSpec(
            side_releases=(ClipQuantile(BELOW, self.share, sampled=True),) if self.clip == "adaptive" else ()
        )

    def start(self, clip: float) -> State:
        """The clip as configured, if it is to change."""
        return {"clip": torch.tensor([clip], dtype=torch.float64)} if self.clip == "adaptive" else {}

    def extras(self, shape: TaskShape) -> Mapping[str, Extra]:
        """The clip, if it changes, and the mean, if inputs are centred."""
        clip = {"clip": Extra("F64", (1,))} if self.clip == "adaptive" else {}
        return {**clip, **({"input_mean": Extra("F32", (shape.inputs,))} if self.centre > 0 else {})}

    def round_clip(self, state: State) -> float | None:
        """Where it follows the quantile."""
        return float(state["clip"]) if "clip" in state else None

    def input_mean(self, state: State) -> Tensor | None:
        """The mean of what clients released at enrolment, if they did."""
        return state.get("input_mean")

    def absorb(self, view: RoundView, state: State) -> State:
        """Follow the quantile."""
        if "clip" not in state:
            return state
        fractions = 0.5 + view.answers[BELOW][:, 0] / view.batch
        fraction = fractions.mean().clamp(0.0, 1.0)
        return {**state, "clip": state["clip"] * torch.exp(-self.pace * (fraction - self.quantile))}

    def policies(self, members: Sequence[Member]) -> list[Policy]:
        """Each client's budget under this rule."""
        own = [member.policy for member in members]
        if self.sampler == "fixed":
            own = [replace(policy, relation="replace-one") for policy in own]
        if self.budget == "own":
            return own
        epsilon, delta = (getattr(own[at], name) for at, name in self._followed(own))
        return [replace(policy, epsilon=epsilon, delta=delta) for policy in own]

    def _followed(self, policies: Sequence[Policy]) -> list[tuple[int, str]]:
        """Whose epsilon and whose delta everyone gets."""
        best = min if self.budget == "minimum" else max
        names = ("epsilon", "delta")
        return [(best(range(len(policies)), key=lambda c: getattr(policies[c], name)), name) for name in names]

    def planned_with(self, members: Sequence[Member], client: int) -> Sequence[int]:
        """Besides the client: whose budget it gets, and whose noise."""
        followed = [] if self.budget == "own" else self._followed([member.policy for member in members])
        shared = [] if self.spread == "all-rounds" else [_loosest(self.policies(members))]
        return sorted({client, *(at for at, _ in followed), *shared})

    def schedules(
        self, members: Sequence[Member], stage_table: StageTable, orders: Sequence[Sequence[int]], config: Config
    ) -> list[PrivacySchedule]:
        """How each client keeps its policy."""
        if self.draws == "shared" and config.privacy.noise != "seeded":
            text = '"secure" noise cannot be shared; accepted: "seeded", or recipe.protect.draws = "own"'
            raise HushError(f"privacy.noise: {text}", "privacy.noise")
        if self.level == "user" and self.noise is None:
            text = '"user" multiplies a given noise; accepted: "rows", or with spread = "equal-noise" and noise = ...'
            raise HushError(f"recipe.protect.level: {text}", "recipe.protect.level")
        policies = self.policies(members)
        accountant = config.privacy.accountant if self.accountant == "configured" else self.accountant
        plans = [_draft(member, config, accountant, self.steps) for member in members]
        if self.batches == "large" and self.steps is not None:
            steps = round(config.participation * config.rounds * self.steps)
            plans = [
                _with_large_batches(plan, member, policy, steps)
                for plan, member, policy in zip(plans, members, policies, strict=True)
            ]
        if self.sampler == "fixed":
            plans = [replace(p, sampler="fixed", relation="replace-one", accountant="rdp") for p in plans]
        if self.sampler == "even":
            plans = [replace(p, even=True) for p in plans]
        spare = config.privacy.retries
        drafts = [_schedule(plan, order, stage_table, spare) for plan, order in zip(plans, orders, strict=True)]
        if self.spread == "all-rounds":
            return [
                row_budgets.planned(draft, policy, member.row_groups)
                if member.row_groups
                else calibrated(draft, policy)
                for draft, policy, member in zip(drafts, policies, members, strict=True)
            ]
        loosest = _loosest(policies)
        noise = self.noise or calibrated(drafts[loosest], policies[loosest]).plan.noise_multiplier
        times = [member.samples if self.level == "user" else 1 for member in members]
        return [
            first(with_noise(draft, each * noise), order, policy)
            for draft, order, policy, each in zip(drafts, orders, policies, times, strict=True)
        ]

    def releases(self) -> tuple[Release, ...]:
        """The privatised update, and the broken guarantee if there is one."""
        update = Release(
            UPDATE, True, "clipped and noised in every step; accounted in the client's plan", "sampled-gaussian"
        )
        found = [update]
        if self.clip == "adaptive":
            found.append(Release(BELOW, True, "a noisy count on one batch, charged every round", "sampled-gaussian"))
        if self.centre > 0:
            found.append(
                Release(CENTRE, True, "a noisy mean of norm-bounded rows, charged once at enrolment", "gaussian")
            )
            found.append(
                Release("privacy plan", False, "treated as public at enrolment; determines the weight of the mean")
            )
        if self.draws == "shared":
            broken = "all clients of a round use the same noise, so the difference of two updates contains none"
            found.append(Release("noise", False, broken))
        if self.level == "user":
            reason = (
                "noised for all rows of a client at once; ledgers and cards count single rows, for which it is more"
            )
            found.append(Release("guarantee for a user", False, reason))
        if self.budget == "maximum":
            broken = "every client spends the largest budget, which may exceed its own"
            found.append(Release("privacy beyond the client's own budget", False, broken))
        return tuple(found)


@dataclass(frozen=True)
class OutputPerturbation(NoPrivacy):
    """PADPFL as printed: ordinary training, then weights cut to norm `bound` and noised once a round (equation 8).

    The noise is 2 bound R c / (m eps), c = sqrt(2 ln(1.25 / delta)), m the fewest samples of any client, R the
    `revelations` that the paper allows in the uplink. It is not enough for the epsilon it names: a bounded output moves
    by 2 bound, not 2 bound / m, the formula needs eps below 1, and delta is not composed. So nothing is promised, and
    the run says so. What the models lack of the noise of all rounds, the server adds: `step = "two-sided"`.
    """

    rule: ClassVar[str] = "output-perturbation"
    bound: float = 20.0
    revelations: int = 1

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise ValueError(f"bound: expected a positive number, found {self.bound}")
        if self.revelations < 1:
            raise ValueError(f"revelations: expected 1 or more, found {self.revelations}")

    def output(self, members: Sequence[Member], rounds: int) -> list[Output | None]:
        """The bound and the paper's noise."""
        fewest = min(member.samples for member in members)
        constants = [math.sqrt(2 * math.log(1.25 / member.policy.delta)) for member in members]
        return [
            Output(self.bound, 2 * self.bound * self.revelations * c / (fewest * member.policy.epsilon))
            for member, c in zip(members, constants, strict=True)
        ]

    def releases(self) -> tuple[Release, ...]:
        """An update whose noise gives no guarantee."""
        why = "noised by a formula whose sensitivity is not proved and which holds only for epsilon below 1"
        return (Release(UPDATE, False, why),)


def _loosest(policies: Sequence[Policy]) -> int:
    """The first of the clients with the largest budget."""
    return max(range(len(policies)), key=lambda c: policies[c].epsilon)


def _draft(member: Member, config: Config, accountant: Accountant, steps: int | None = None) -> PrivacyPlan:
    """How a client trains in an ordinary round, before its noise is known: one pass, where `steps` are given."""
    privacy, local = config.privacy, config.local
    batch = member.batch if steps is None else math.ceil(member.samples / steps)
    return PrivacyPlan(
        samples=member.samples,
        batch=batch,
        epochs=local.epochs,
        rounds=1,
        clip=privacy.clip,
        noise_multiplier=1.0,
        relation=member.policy.relation,
        accountant=accountant,
        discrete=privacy.discrete,
        local_steps=local.steps if steps is None else steps,
        sampler=privacy.sampler,
        whole_update=privacy.unit == "client",
    )


def _with_large_batches(plan: PrivacyPlan, member: Member, policy: Policy, steps: int) -> PrivacyPlan:
    """The plan with batches so large that sampling them costs little; rows with budgets have rates of their own."""
    if plan.whole_update or member.row_groups:
        return plan
    return replace(plan, batch=max(plan.batch, least_noise_batch(policy, plan.counted, steps)))


def _schedule(plan: PrivacyPlan, order: Sequence[int], stage_table: StageTable, spare: int = 0) -> PrivacySchedule:
    return drafted(stage_table.specs, [order.count(stage) for stage in range(len(stage_table.specs))], plan, spare)
