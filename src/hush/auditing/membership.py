"""Membership inference by LiRA: how well somebody who sees the final model tells training rows from others.

The likelihood ratio attack (Carlini et al. 2022) with shadow runs: each run trains, as the config says, on a random
half of every client's training rows, all runs in lockstep. For each run in turn the others are the adversary's shadows.
For a row, they give how confident models are that trained on it, and that did not; the score is the log ratio of the
two normal densities at the confidence of the attacked model. Rows are judged by the model that is released to their
client.

It is a demonstration, and a weaker attack than an audit: the adversary sees one model instead of every update, and rows
are ordinary ones. A guarantee limits it all the same (`allowed`), since the final model is computed from the updates.

Guarantees:
    - Shadow runs train with the engine, the plans and the noise of a run: budgets hold for the halves they train on.

Edge cases:
    - Where persons are protected, persons are left out and judged as a whole, by the mean score of their rows.
    - Scores of which there are equal ones count half in the area under the curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hush.config import Config, unit_of
from hush.data import ClientData
from hush.engines.driver import CompletedRun
from hush.engines.setup import Federation, build, prepare
from hush.engines.simulator import execution, lockstep
from hush.models import Model
from hush.recipes.slots.protect import NoPrivacy
from hush.seeds import derive, rng
from hush.types import HushError

Array = NDArray[np.float64]
_FEWEST = 8
_RATES = tuple(float(rate) for rate in np.round(np.geomspace(1e-3, 1.0, 61), 6))


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What the attack finds at one budget.

    Attributes:
        epsilon: The budget of every client; infinite without privacy.
        delta: The delta of the first client.
        shadows: The number of runs; each is attacked with the others as its shadows.
        units: The number of rows, or persons, that are judged in each run.
        auc: The area under the ROC curve: 0.5 is guessing.
        auc_error: Its standard error over the attacked runs.
        tpr: The fraction of members that are found at each false-positive rate.
        allowed: The most that the guarantee allows at that rate, for the largest budget.
        accuracy: The mean test accuracy, or other score, of the runs.
        curve: The ROC curve: pairs of false- and true-positive rates.
    """

    epsilon: float
    delta: float
    shadows: int
    units: int
    auc: float
    auc_error: float
    tpr: dict[str, float]
    allowed: dict[str, float]
    accuracy: float
    curve: tuple[tuple[float, float], ...]


def membership(
    config: Config,
    epsilons: Sequence[float],
    *,
    root: str | None = None,
    dataset: ClientData | None = None,
    module: nn.Module | None = None,
    shadows: int = 32,
    seed: int = 0,
) -> list[Membership]:
    """Attack the runs that a config describes, at each of these budgets for all clients.

    Args:
        config: The config of a run.
        epsilons: Budgets that every client gets in turn; `math.inf` trains without privacy.
        root: The directory with the public dataset files.
        dataset: The data in place of what the config names.
        module: The module in place of the model that the config names.
        shadows: The number of runs at each budget.
        seed: Of the halves, and of the runs.
    """
    if not _FEWEST <= shadows <= 4096:
        raise HushError(f"shadows: found {shadows}; accepted: {_FEWEST} to 4096 runs")
    if not epsilons or not all(epsilon > 0 for epsilon in epsilons):
        raise HushError(f"epsilons: found {list(epsilons)}; accepted: positive numbers, or inf")
    return [_attacked(config, epsilon, root, dataset, module, shadows, seed) for epsilon in epsilons]


def _attacked(
    config: Config, epsilon: float, root: str | None, dataset: ClientData | None, module: nn.Module | None,
    shadows: int, seed: int,
) -> Membership:  # fmt: skip
    privacy = {} if math.isinf(epsilon) else {"budgets": float(epsilon)}
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update=privacy)})
    base = prepare(config, root=root, dataset=dataset, module=module)
    if not base.data.static:
        raise HushError("attack: data that change between rounds have no members; accepted: data.partition without it")
    units = _units(base)
    included = [_half(units, derive(seed, "shadow", number)) for number in range(shadows)]
    made = [_shadow(base, units, own, epsilon, seed + number) for number, own in enumerate(included)]
    runs = lockstep([execution(federation, arrays={}) for federation in made])
    x, y = (torch.cat(parts) for parts in zip(*(_rows(base, own) for own in units), strict=True))
    clients = np.repeat(np.arange(len(units)), [sum(map(len, own)) for own in units])
    whose = np.repeat(np.arange(sum(map(len, units))), [len(rows) for own in units for rows in own])
    confidence = np.stack([_confidence(run, x, y, clients, whose) for run in runs])
    member = np.stack([np.concatenate(own) for own in included])
    scores = np.stack([_ratios(confidence, member, run) for run in range(shadows)])
    aucs = [area(score[own], score[~own]) for score, own in zip(scores, member, strict=True)]
    curve = roc(scores[member], scores[~member])
    largest = max(policy.epsilon for policy in made[0].policies)
    delta = base.policies[0].delta
    named = ("0.001", "0.01", "0.1")
    return Membership(
        epsilon=epsilon,
        delta=delta,
        shadows=shadows,
        units=member.shape[1],
        auc=float(np.mean(aucs)),
        auc_error=float(np.std(aucs, ddof=1) / math.sqrt(len(aucs))),
        tpr={rate: at_rate(scores[member], scores[~member], float(rate)) for rate in named},
        allowed={rate: most_found(float(rate), largest, delta) for rate in named},
        accuracy=float(np.mean([run.result.score["mean"] for run in runs])),
        curve=curve,
    )


def _units(base: Federation) -> list[list[NDArray[np.int64]]]:
    """The training rows of each client, by unit: single rows, or the rows of each person."""
    if unit_of(base.config) == "person":
        ends = [np.cumsum(sizes)[:-1] for sizes in base.data.persons]
        return [np.split(rows, cut) for rows, cut in zip(base.data.train, ends, strict=True)]
    return [[rows[at : at + 1] for at in range(len(rows))] for rows in base.data.train]


def _half(units: Sequence[Sequence[NDArray[np.int64]]], seed: int) -> list[NDArray[np.bool_]]:
    """Which units of each client are included: a random half, of the same size in every run."""
    drawn = rng(seed, "halves")
    halves = []
    for own in units:
        chosen = np.zeros(len(own), bool)
        chosen[drawn.permutation(len(own))[: max(1, len(own) // 2)]] = True
        halves.append(chosen)
    return halves


def _shadow(
    base: Federation, units: Sequence[Sequence[NDArray[np.int64]]], included: Sequence[NDArray[np.bool_]],
    epsilon: float, seed: int,
) -> Federation:  # fmt: skip
    """The federation on the included units, planned for as many, with batches and noise of its own."""
    kept = [
        [rows for rows, here in zip(own, mask, strict=True) if here] for own, mask in zip(units, included, strict=True)
    ]
    persons = tuple(np.array([len(rows) for rows in own], np.int64) for own in kept) if base.data.persons else ()
    data = replace(base.data, train=tuple(np.concatenate(own) for own in kept), persons=persons)
    members = tuple(replace(m, samples=len(own)) for m, own in zip(base.members, kept, strict=True))
    for member in members:
        if member.batch > member.samples:
            raise HushError(
                f"local.batch_size: {member.batch} is more than half of the training samples of client "
                f"{member.name or member.client}, which shadow runs train on; accepted: 1 to {member.samples}",
                "local.batch_size",
            )
    recipe = replace(base.recipe, protect=NoPrivacy()) if math.isinf(epsilon) else base.recipe
    config = base.config.model_copy(update={"seed": seed})
    return build(
        config, base.recipe_name, recipe, members, base.model, data, device=base.device, own_module=base.own_module,
        uncovered=base.uncovered, left_out=base.left_out,
    )  # fmt: skip


def _rows(base: Federation, own: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
    """Inputs (behind the model's fixed features) and targets of a client's units, as the dataset has them."""
    rows = np.concatenate(own)
    x = torch.from_numpy(np.ascontiguousarray(base.data.dataset.x[rows])).to(base.device)
    y = base.model.objective.scaled(torch.from_numpy(base.data.dataset.y[rows])).to(base.device)
    return (x if base.model.features is None else base.model.features(x)), y


def _confidence(run: CompletedRun, x: Tensor, y: Tensor, clients: NDArray[np.int64], whose: NDArray[np.int64]) -> Array:
    """How confident the model of its client is in each unit's targets: the mean over its rows."""
    found = np.empty(len(x))
    assignments = np.array(run.assignments)[clients]
    for home in np.unique(assignments):
        rows = torch.from_numpy(np.flatnonzero(assignments == home))
        found[rows.numpy()] = confidences(run.federation.model, run.models[home].to(x.device), x[rows], y[rows])
    counts = np.bincount(whose)
    mean: Array = np.bincount(whose, found) / counts
    return mean


def confidences(model: Model, vector: Tensor, x: Tensor, y: Tensor) -> Array:
    """log p - log(1 - p) of the true class, which is about normal over models; for other targets minus the loss."""
    outputs = torch.cat([model.logits(vector, part) for part in x.split(4096)]).double().cpu()
    targets, loss = y.cpu(), model.objective.loss
    if not loss.softmax or outputs.ndim != 2 or outputs.shape[1] < 2:
        missed: Array = -loss(outputs, targets, reduction="none").numpy()
        return missed
    own = outputs.gather(1, targets[:, None])
    hidden = functional.one_hot(targets, outputs.shape[1]).bool()
    others = outputs.masked_fill(hidden, -math.inf)
    found: Array = (own[:, 0] - torch.logsumexp(others, 1)).numpy()
    return found


def _ratios(confidence: Array, member: NDArray[np.bool_], attacked: int) -> Array:
    """The log likelihood ratio of each unit, with against without it, at the confidence of one run."""
    others = np.arange(len(confidence)) != attacked
    seen, inside = confidence[others], member[others]
    means, squares = [], []
    for kind in (inside, ~inside):
        count = np.maximum(kind.sum(0), 1)
        mean = np.where(kind, seen, 0.0).sum(0) / count
        means.append(mean)
        squares.append(float(np.where(kind, (seen - mean) ** 2, 0.0).sum() / kind.sum()))
    # One variance for all units, since a few dozen runs do not show those of each.
    spread = [max(square, 1e-12) for square in squares]
    z = [(confidence[attacked] - mean) ** 2 / square for mean, square in zip(means, spread, strict=True)]
    ratios: Array = 0.5 * (z[1] - z[0]) + 0.5 * math.log(spread[1] / spread[0])
    return ratios


def area(inside: Array, outside: Array) -> float:
    """The area under the ROC curve: how often a member's score is above that of another, equal ones half."""
    ordered = np.sort(outside)
    below, upto = (np.searchsorted(ordered, inside, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2.0 * len(inside) * len(outside)))


def at_rate(inside: Array, outside: Array, rate: float) -> float:
    """The true-positive rate at a threshold that at most this fraction of the others exceeds."""
    allowed = math.floor(rate * len(outside))
    threshold = np.sort(outside)[len(outside) - 1 - allowed] if allowed < len(outside) else -math.inf
    return float((inside > threshold).mean())


def roc(inside: Array, outside: Array) -> tuple[tuple[float, float], ...]:
    """The ROC curve at false-positive rates from a thousandth on."""
    return tuple((rate, at_rate(inside, outside, rate)) for rate in _RATES)


def most_found(rate: float, epsilon: float, delta: float) -> float:
    """The highest true-positive rate that (epsilon, delta) allows at a false-positive rate (Kairouz et al. 2015)."""
    if epsilon > 700:
        return 1.0
    return min(1.0, math.exp(epsilon) * rate + delta, 1.0 - math.exp(-epsilon) * (1.0 - delta - rate))
