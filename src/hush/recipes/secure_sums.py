"""Secure sums: how updates are weighted, quantised and summed where the server may see nothing but sums of them.

The plan of a sum follows from public facts alone, so that server and clients compute the same one: each client
multiplies its update by a public weight and rounds it to multiples of a public step, and integers are summed modulo
2^32. A simulation computes the very same integers, so that its numbers are those of a federation.

Guarantees:
    - The sum of all clients of a plan is below 2^31 in absolute value, so nothing wraps: numbers beyond the range
      that an honest update keeps (`hush.privacy.update_bounds`) are cut to it, which is post-processing.
    - A weighted mean is the exact one up to half a step for each client, relative to the weights that are present.

Weights that are public beforehand need one sum. Weights by noise that the server estimates need several: clients with
the same budget form a group, of at least `LEAST_GROUP` clients, and the estimates are those of the groups' means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.recipes.context import RoundView, Rows, ServerRng, State
from hush.recipes.limits import Ceiling, capped
from hush.recipes.recipe import Recipe, SlotStates
from hush.recipes.round import Aggregate
from hush.recipes.slots.assign import SingleModel
from hush.recipes.slots.closed_form import ClosedForm
from hush.recipes.slots.clusters import ByInputMean
from hush.recipes.slots.project import Identity
from hush.recipes.slots.protect import DpSgd
from hush.recipes.slots.weight import Balanced, EstimatedNoise
from hush.types import HushError, Member

KEY = "secure_aggregation"
LEAST = 3  # clients of a sum
MOST = 200  # each exchanges keys with each
LEAST_GROUP, LEAST_GROUPS = 3, 3
_LARGEST = (1 << 31) - (1 << 16)  # of a sum, in steps; the rest is for rounding
_ROUNDED = 1e-5  # relative error of a norm of float32 numbers
_BLOCK = 1 << 20  # numbers that are in float64 at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class SumTerms:
    """What the sums of a run depend on beside the facts of its rounds.

    Attributes:
        ranges: The largest absolute value of a number of an honest update, stages x clients, float64.
        groups: The clients of each sum.
        quorum: The fewest clients of a sum, beside a majority of those that are asked.
    """

    ranges: Tensor
    groups: tuple[tuple[int, ...], ...]
    quorum: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class SumPlan:
    """One sum of a round: its clients, their weights, and their ranges (float64, in this order).

    `group` is the number of its group, `threshold` how many of its clients have to be present to the end. Weighted
    numbers are rounded to multiples of `step`.
    """

    group: int
    clients: tuple[int, ...]
    weights: Tensor
    ranges: Tensor
    step: float
    threshold: int

    def quantised(self, client: int, vector: Tensor) -> Tensor:
        """Return a client's weighted update in steps, int32; what is not a number becomes zero."""
        at = self.clients.index(client)
        most, factor = float(self.ranges[at]), float(self.weights[at]) / self.step
        found = torch.empty(vector.numel(), dtype=torch.int32)
        for start in range(0, vector.numel(), _BLOCK):
            part = vector[start : start + _BLOCK].double().nan_to_num_(0.0, most, -most).clamp_(-most, most)
            found[start : start + _BLOCK] = part.mul_(factor).round_()
        return found

    def mean(self, total: Tensor, present: Sequence[int]) -> Tensor:
        """Return the weighted mean of the updates of those present, float32, from the sum of them in steps."""
        mass = self.mass(present)
        if mass <= 0:
            return torch.zeros(total.numel())
        return total.double().mul_(self.step / mass).float()

    def mass(self, present: Sequence[int]) -> float:
        """Return the sum of the weights of these clients."""
        return float(sum(self.weights[self.clients.index(client)] for client in present))

    def shares(self, present: Sequence[int]) -> Tensor:
        """Return the weights of these clients among each other, float64."""
        own = self.weights[[self.clients.index(client) for client in present]]
        return own / own.sum() if bool(own.sum() > 0) else own


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of a plan in steps, of the clients that were present."""

    plan: SumPlan
    present: tuple[int, ...]
    total: Tensor


def majority(clients: int) -> int:
    """Return the fewest of so many that are more than half."""
    return clients // 2 + 1


def check_recipe(recipe: Recipe) -> None:
    """Raise a `HushError` for the first reason why the updates of this recipe cannot be summed unseen."""
    for key, text in _unsuitable(recipe):
        raise HushError(f"{KEY}: recipe.{key} {text}", KEY)


def check(recipe: Recipe, members: Sequence[Member], participation: float) -> None:
    """Raise a `HushError` if these updates cannot be summed unseen, by the recipe or by who takes part."""
    check_recipe(recipe)
    asked = max(1, round(participation * len(members)))
    if not LEAST <= asked <= MOST:
        raise HushError(
            f"{KEY}: a sum of {asked} clients; accepted: {LEAST} to {MOST} in each round, so that no sum is that of "
            "one and each can exchange keys with each",
            KEY,
        )
    if not recipe.weight.public:
        _check_groups(members, asked)


def _unsuitable(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield slot and reason for each option that needs more than sums."""
    protect, weight = recipe.protect, recipe.weight
    if not protect.private or not isinstance(protect, DpSgd):
        yield "protect", 'has no noise that bounds an update, from which its range follows; accepted: "dp-sgd"'
    elif protect.clip == "adaptive":
        yield "protect.clip", 'needs each member\'s noisy count of short gradients; accepted: "fixed"'
    # Where updates are summed unseen, no clusters are looked for (`hush.engines.enrolment.combined`).
    if not isinstance(recipe.assign, SingleModel | ByInputMean):
        yield "assign", "needs each member's update or choice, to find its cluster; accepted: one model"
    if not isinstance(recipe.project, Identity):
        yield "project", "needs each member's update, to find a subspace; accepted: none"
    if isinstance(recipe.step, ClosedForm):
        yield "step", "needs each member's statistics, which are no updates; accepted: steps that move models"
    if recipe.local.remembers:
        yield "local", "needs each member's update, for its control variate; accepted: rules without memory"
    if not weight.public and not (isinstance(weight, Balanced) or _by_groups(weight)):
        yield (
            "weight",
            "needs each member's update, to find its weight; accepted: public weights (samples, epsilon, uniform, "
            'impact), or rule = "estimated-noise" with estimator = "declared"',
        )


def _by_groups(weight: object) -> bool:
    return isinstance(weight, EstimatedNoise) and weight.estimator != "declared" and weight.when == "each-round"


def _check_groups(members: Sequence[Member], asked: int) -> None:
    """Raise a `HushError` unless noise can be estimated from sums of members with the same budget."""
    found = budget_groups(members)
    if asked == len(members) and len(found) >= LEAST_GROUPS and all(len(group) >= LEAST_GROUP for group in found):
        return
    sizes = ", ".join(str(len(group)) for group in found)
    raise HushError(
        f"{KEY}: recipe.weight estimates noise, from sums over members of the same budget: it needs {LEAST_GROUPS} "
        f"budgets with {LEAST_GROUP} members each, and participation = 1.0; found groups of {sizes} with {asked} of "
        f'{len(members)} taking part; accepted: public weights, or rule = "estimated-noise", estimator = "declared"',
        KEY,
    )


def budget_groups(members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """Return the members of each declared budget, smallest budget first."""
    found: dict[float, list[int]] = {}
    for member in members:
        found.setdefault(member.policy.epsilon, []).append(member.client)
    return tuple(tuple(found[epsilon]) for epsilon in sorted(found))


def sum_groups(recipe: Recipe, members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """Return the clients of each sum: all of them, or those of each budget where noise is estimated."""
    return (tuple(member.client for member in members),) if recipe.weight.public else budget_groups(members)


def sum_plans(recipe: Recipe, invited: RoundView, terms: SumTerms, ranges: Tensor, ceiling: Ceiling) -> list[SumPlan]:
    """Return the sums of a round.

    Args:
        recipe: The algorithm.
        invited: The public facts of all clients that the run invites to this round, also of those that have left it.
        terms: What is the same in all rounds.
        ranges: The ranges of all clients in this round.
        ceiling: The largest share of one client.
    """
    plans = []
    for number, group in enumerate(terms.groups):
        rows = torch.tensor([at for at, client in enumerate(invited.clients) if client in group], dtype=torch.int64)
        view = invited.rows(rows)
        if not view.clients:
            continue
        if recipe.weight.public:
            weights, share = recipe.weight.weight(view, {})[0].weights, ceiling(len(view.clients))
            weights = weights if share >= 1 else capped(weights, view.reach, share)
        else:
            inverse = view.planned_noise.double().reciprocal()
            weights = inverse / inverse.sum()
        least = majority(len(view.clients))
        plans.append(
            SumPlan(
                group=number,
                clients=view.clients,
                weights=weights.double(),
                ranges=ranges[list(view.clients)].double(),
                step=max(float(weights.double() @ ranges[list(view.clients)].double()) / _LARGEST, 1e-300),
                threshold=max(least, min(terms.quorum, len(view.clients))) if len(terms.groups) == 1 else least,
            )
        )
    return plans


def summed(plans: Sequence[SumPlan], clients: Sequence[int], rows: Rows) -> list[Sum]:
    """Return the sums of updates that are known, those of clients that are enough: as a simulation computes them."""
    found, totals = list[Sum](), dict[int, Tensor]()
    present = [tuple(client for client in plan.clients if client in clients) for plan in plans]
    of = {client: at for at, plan in enumerate(plans) for client in plan.clients}
    for place, block in rows.blocks():
        for client, vector in zip(clients[place], block, strict=True):
            at = of[client]
            total = totals.setdefault(at, torch.zeros(rows.shape[1], dtype=torch.int32))
            total += plans[at].quantised(client, vector.cpu())
    for at, plan in enumerate(plans):
        if len(present[at]) >= plan.threshold:
            found.append(Sum(plan, present[at], totals[at]))
    return found


def aggregate_sums(
    recipe: Recipe, facts: RoundView, sums: Sequence[Sum], models: Tensor, slots: SlotStates, rng: ServerRng, *,
    groups: int, ceiling: Ceiling, step: bool,
) -> Aggregate:  # fmt: skip
    """Return the next model and states from sums; `facts` are those of the clients in them.

    `groups` is the number of sums that a run has, also if not all of them were formed in this round.
    """
    new: dict[str, State] = dict(slots)
    move, weights, noise = torch.zeros_like(models), dict[int, float](), dict[int, float]()
    if sums:
        rows = {client: row for row, client in enumerate(facts.clients)}
        parts = [facts.rows(torch.tensor([rows[client] for client in each.present])) for each in sums]
        within = [each.plan.shares(each.present) for each in sums]
        means = torch.stack([each.plan.mean(each.total, each.present) for each in sums])
        if recipe.weight.public:
            weights = dict(zip(parts[0].clients, within[0].tolist(), strict=True))
            move[0] = means[0].to(move.dtype)
            if isinstance(recipe.weight, EstimatedNoise):
                noise = dict(zip(parts[0].clients, parts[0].planned_noise.tolist(), strict=True))
        else:
            view = _of_groups([each.plan.group for each in sums], groups, parts, within, means)
            weighting, new["weight-0"] = recipe.weight.weight(view, slots.get("weight-0", {}))
            each = torch.cat([float(w) * own for w, own in zip(weighting.weights, within, strict=True)])
            share = ceiling(len(facts.clients))
            limited = each if share >= 1 else capped(each, torch.cat([part.reach for part in parts]), share)
            pulls = torch.stack([own.sum() for own in limited.split([len(part.clients) for part in parts])])
            move[0] = (pulls.to(means.dtype) @ means).to(move.dtype)
            clients = [client for part in parts for client in part.clients]
            weights = dict(zip(clients, limited.tolist(), strict=True))
            if weighting.noise is not None:
                ratio = weighting.noise.double() / view.planned_noise
                for part, factor in zip(parts, ratio.tolist(), strict=True):
                    noise.update(zip(part.clients, (factor * part.planned_noise).tolist(), strict=True))
        counted = torch.tensor([weights.get(client, 0.0) for client in facts.clients], dtype=torch.float64)
        new["step"] = recipe.step.observe(facts, counted, slots["step"])
    if step:
        models, new["step"] = recipe.step.step(models, move, new["step"], rng)
    return Aggregate(
        models=models,
        released=recipe.step.released(models, new["step"]),
        slots=new,
        weights=weights,
        noise=noise,
        joined=dict.fromkeys(weights, 0),
        warnings={},
    )


def _of_groups(
    numbers: Sequence[int], groups: int, parts: Sequence[RoundView], within: Sequence[Tensor], means: Tensor
) -> RoundView:
    """Return the groups as if each were one client, whose update is the mean of its members'."""

    def mean(values: Mapping[int, Tensor]) -> Tensor:
        return torch.stack([own @ values[at].double() for at, own in enumerate(within)])

    return replace(
        parts[0],
        clients=tuple(numbers),
        updates=means,
        samples=torch.stack([part.samples.sum() for part in parts]),
        epsilon=mean({at: part.epsilon for at, part in enumerate(parts)}),
        planned_noise=torch.stack(
            [own.square() @ part.planned_noise.double() for own, part in zip(within, parts, strict=True)]
        ),
        reach=mean({at: part.reach for at, part in enumerate(parts)}),
        batch=torch.ones(0),
        answers={},
        budgets=torch.ones(groups),
        groups=torch.zeros(groups, dtype=torch.int64),
    )


def excess(sums: Sequence[Sum], bounds: Mapping[int, float]) -> str | None:
    """Return why these sums cannot be those of honest updates, given the longest norm of each; else None."""
    for each in sums:
        shares = each.plan.shares(each.present).tolist()
        most = sum(share * bounds.get(client, math.inf) for client, share in zip(each.present, shares, strict=True))
        norm = float(torch.linalg.vector_norm(each.plan.mean(each.total, each.present), dtype=torch.float64))
        rounding = each.plan.step * len(each.present) * math.sqrt(each.total.numel())
        if norm > (1 + _ROUNDED) * most + rounding / max(each.plan.mass(each.present), 1e-300):
            return f"the sum of the updates has norm {norm:.4g}, above the {most:.4g} that the plans allow"
    return None
