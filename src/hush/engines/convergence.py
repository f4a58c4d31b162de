"""Convergence bounds for a finished run: the constants of a paper's theorem, measured on the run's data.

Bounds are there for logistic regression alone, whose constants are known: for rows x with a one for the bias, a softmax
loss has gradients of at most sqrt(2) |x|, and the largest curvature of a mean is at most half the largest eigenvalue of
the mean of x x'. All of it looks at data without noise: for simulations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hush.bounds import Bound, Condition, dp_scaffold, padpfl, pfa, robust_hdp
from hush.engines.metrics import gradient_of, loss_of, optimum, rows_of
from hush.engines.setup import Federation
from hush.recipes.slots.local import ControlVariates, Proximal
from hush.recipes.slots.project import PublicSubspace
from hush.types import HushError, RoundRecord

CONVEX = "logreg"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the theorems need of data and model.

    Attributes:
        smoothness: The largest curvature of any client's loss.
        lipschitz: The largest gradient of any client's loss.
        row: The largest gradient of one row.
        variance: The variance of one row's gradient, at most its mean square.
        distance: From the first model to a minimiser of the mean of the clients' losses.
        gap: The loss at the start above its minimum.
        gradient: The squared norm of the gradient at the end.
        left: The loss at the end above its minimum.
    """

    smoothness: float
    lipschitz: float
    row: float
    variance: float
    distance: float
    gap: float
    gradient: float
    left: float


def bound_of(federation: Federation, released: Tensor, records: Sequence[RoundRecord]) -> tuple[Bound, Constants]:
    """Return the bound of the recipe's paper for a run, after each tenth of its rounds, and what was measured.

    Raises a `HushError` for models other than logistic regression, recipes with several models, and without noise
    planned in the steps of the clients.
    """
    if federation.model.name != CONVEX or len(released) > 1:
        raise HushError(
            f"--bound: {federation.model.name} with {len(released)} models; accepted: {CONVEX} with one model, "
            "whose constants are known"
        )
    rounds = len(records)
    counts = sorted({max(1, round(rounds * tenth / 10)) for tenth in range(1, 11)})
    known = _constants(federation, released[0].double())
    local = federation.recipe.local
    if isinstance(local, ControlVariates):
        found = _dp_scaffold(federation, known, counts)
    elif isinstance(local, Proximal) and local.mu > 0:
        found = _padpfl(federation, known, counts, records)
    elif isinstance(federation.recipe.project, PublicSubspace):
        found = _pfa(federation, known, counts)
    else:
        found = _robust_hdp(federation, known, counts, records)
    return found, known


def described(federation: Federation, released: Tensor, records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return a run's bound beside what was measured: the recorded loss on held-out rows, and the end of training."""
    bound, known = bound_of(federation, released, records)
    recorded = {record.round: record.loss for record in records}
    return {
        "theorem": bound.theorem,
        "quantity": bound.quantity,
        "applies": bound.applies,
        "conditions": [
            {"what": each.what, "value": each.value, "limit": each.limit, "met": each.met} for each in bound.conditions
        ],
        "caveat": bound.caveat,
        "rounds": list(bound.rounds),
        "bound": list(bound.values),
        "held_out_loss": [recorded.get(count, math.nan) for count in bound.rounds],
        "train_loss_gap_at_the_start": known.gap,
        "train_loss_gap_at_the_end": known.left,
        "squared_gradient_at_the_end": known.gradient,
    }


def _constants(federation: Federation, end: Tensor) -> Constants:
    model, decay = federation.model, federation.config.local.weight_decay
    rows = rows_of(federation, federation.config.rounds)
    start, best = model.start.double(), optimum(model, rows, decay)

    def mean(vector: Tensor) -> float:
        return math.fsum(loss_of(model, vector, each, decay) for each in rows) / len(rows)

    inputs = [torch.cat([each.x.flatten(1), torch.ones(len(each.x), 1, dtype=each.x.dtype)], 1) for each in rows]
    norms = [each.square().sum(1) for each in inputs]
    gradient = torch.stack([gradient_of(model, end, each, decay) for each in rows]).mean(0)
    least = mean(best)
    return Constants(
        smoothness=max(0.5 * float(torch.linalg.matrix_norm(x.T @ x / len(x), 2)) for x in inputs) + decay,
        lipschitz=max(math.sqrt(2) * float(each.sqrt().mean()) for each in norms) + decay * float(end.norm()),
        row=math.sqrt(2 * max(float(each.max()) for each in norms)),
        variance=max(2 * float(each.mean()) for each in norms),
        distance=float((start - best).norm()),
        gap=mean(start) - least,
        gradient=float(gradient.square().sum()),
        left=mean(end) - least,
    )


def _clipped(federation: Federation, known: Constants) -> Condition:
    """The assumption that no gradient is clipped."""
    return Condition("gradient of a row, against the clip", known.row, federation.schedules[0].plan.clip)


def _step_noise(federation: Federation) -> list[float]:
    """The variance of the noise of one step of each client, over all parameters."""
    size = federation.model.layout.size
    plans = [schedule.plan for schedule in federation.schedules]
    return [size * (p.clip * p.noise_multiplier / p.batch) ** 2 if p.private else 0.0 for p in plans]


def _rate(federation: Federation) -> float:
    return float(federation.config.local.lr)


def _with(bound: Bound, *more: Condition) -> Bound:
    return replace(bound, conditions=(*bound.conditions, *more))


def _dp_scaffold(federation: Federation, known: Constants, counts: Sequence[int]) -> Bound:
    plan, local = federation.schedules[0].plan, federation.recipe.local
    warm = isinstance(local, ControlVariates) and (local.warm > 0 or local.visits > 0)
    setting = dp_scaffold.Setting(
        steps=plan.steps,
        share=federation.config.participation,
        users=len(federation.members),
        smoothness=known.smoothness,
        variance=known.variance / plan.batch,
        noise=max(_step_noise(federation)),
        lr=_rate(federation),
        distance=known.distance,
    )
    start = Condition("rounds without a warm start", 0.0 if warm else 1.0, 0.0)
    # In the first rounds of a warm start no model moves: the theorem counts from there.
    moved = [max(1, count - (local.warm_rounds if isinstance(local, ControlVariates) else 0)) for count in counts]
    found = replace(dp_scaffold.mean_gap(setting, moved), rounds=tuple(counts))
    return _with(found, start, _clipped(federation, known))


def _robust_hdp(
    federation: Federation, known: Constants, counts: Sequence[int], records: Sequence[RoundRecord]
) -> Bound:
    plans = [schedule.plan for schedule in federation.schedules]
    everyone = range(len(plans))
    weights = [[record.weights.get(client, 0.0) for client in everyone] for record in records]
    setting = robust_hdp.Setting(
        steps=[plan.steps for plan in plans],
        shares=[1 / len(plans)] * len(plans),
        weights=weights,
        smoothness=known.smoothness,
        lipschitz=known.lipschitz,
        dissimilarity=2 * known.lipschitz,
        variances=[known.variance / p.batch + own for p, own in zip(plans, _step_noise(federation), strict=True)],
        lr=_rate(federation),
        gap=known.gap,
    )
    return _with(robust_hdp.least_gradient(setting, counts), _clipped(federation, known))


def _pfa(federation: Federation, known: Constants, counts: Sequence[int]) -> Bound:
    plans = [schedule.plan for schedule in federation.schedules]
    noises = _step_noise(federation)
    setting = pfa.Setting(
        steps=max(plan.steps for plan in plans),
        clients=max(1, round(federation.config.participation * len(plans))),
        smoothness=known.smoothness,
        variance=known.variance,
        batch=min(plan.batch for plan in plans),
        noise=sum(noises) / len(noises),
        lr=_rate(federation),
        gap=known.gap,
    )
    return _with(pfa.mean_gradient(setting, counts, printed=False), _clipped(federation, known))


def _padpfl(federation: Federation, known: Constants, counts: Sequence[int], records: Sequence[RoundRecord]) -> Bound:
    """Theorem 2 as printed, with local problems that are not solved at all (gamma 1) and gradients that differ most."""
    local, output = federation.recipe.local, federation.outputs[0]
    if not isinstance(local, Proximal) or output is None:
        raise HushError('--bound: the theorem is about weights cut to a norm; accepted: padpfl with mode = "faithful"')
    setting = padpfl.Setting(
        mu=local.mu,
        inexactness=1.0,
        smoothness=known.smoothness,
        dissimilarity=max(1.0, known.lipschitz / math.sqrt(known.gradient)),
        gap=known.gap,
    )
    policy = min((member.policy for member in federation.members), key=lambda each: each.epsilon)
    return padpfl.printed(
        setting, counts, gradient=known.lipschitz, bound=output.bound,
        largest=max(max(record.weights.values(), default=0.0) for record in records),
        rows=max(member.samples for member in federation.members), clients=len(federation.members),
        epsilon=policy.epsilon, delta=policy.delta,
    )  # fmt: skip
