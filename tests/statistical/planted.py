"""Bugs to plant in the real pipeline, each with the checks that must catch it; the first one named is its keeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from hush.local import train as training
from hush.models import Model
from hush.privacy import accounting, noise
from hush.privacy.cost import Cost
from hush.privacy.course import Stage
from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan

Plant = Callable[[], AbstractContextManager[Any]]
Sums = Callable[[Model, Tensor, Tensor, Tensor], Tensor]
_privatise, _sample, _cost = PrivacyPlan.privatise, PrivacyPlan.sample, PrivacyPlan.cost
_replayable, _calibrate, _epsilon = noise.replayable, accounting.noise_multiplier, accounting.epsilon
_scale, _epsilon_of = accounting.noise_scale, accounting.epsilon_of


@dataclass(frozen=True)
class Bug:
    """What is wrong, how to plant it, and the names of the checks that see it."""

    name: str
    what: str
    plant: Plant
    caught_by: tuple[str, ...]


def with_sums(wrong: Sums) -> AbstractContextManager[Any]:
    """Training in which `wrong(model, gradients, mask, clips)` makes the sums: gradients are clients x rows x p."""

    def sums(batch: Any, vectors: Tensor, drawn: list[Tensor], clips: Tensor, *_: Any) -> Tensor:
        rows = torch.nn.utils.rnn.pad_sequence(list(drawn), batch_first=True)
        mask = torch.arange(rows.shape[1])[None] < torch.tensor([len(r) for r in drawn])[:, None]
        gradients = _gradients(batch.model, vectors, batch.x[rows], batch.y[rows])
        return wrong(batch.model, gradients, mask, clips[:, None].to(gradients.dtype))

    return patch.object(training._Batch, "sums", sums)


def _gradients(model: Model, vectors: Tensor, x: Tensor, y: Tensor) -> Tensor:
    def loss(vector: Tensor, one_x: Tensor, one_y: Tensor) -> Tensor:
        return functional.cross_entropy(model.logits(vector, one_x[None]), one_y[None])

    found: Tensor = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(vectors, x, y)
    return found


def per_example(model: Model, gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    """No bug at all: the twin that shows that `with_sums` itself breaks nothing."""
    return _weighted(_finite(gradients), mask, clips)


def _finite(gradients: Tensor) -> Tensor:
    return torch.where(gradients.isfinite().all(-1, keepdim=True), gradients, 0.0)


def _weighted(gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    norms = gradients.double().norm(dim=-1)
    factors = torch.where(norms > clips, clips / norms, 1.0).to(gradients.dtype)
    return torch.where(mask[..., None], factors[..., None] * gradients, 0.0).sum(1)


def _unclipped(model: Model, gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    return (_finite(gradients) * mask[..., None]).sum(1)


def _per_batch(model: Model, gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    total = _unclipped(model, gradients, mask, clips)
    bound = mask.sum(1, keepdim=True) * clips
    return total * (bound / total.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)


def _per_layer(model: Model, gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    parts = _finite(gradients).split(model.layout.sizes, dim=-1)
    return torch.cat([_weighted(part, mask, clips) for part in parts], dim=1)


def _not_finite(model: Model, gradients: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    return _weighted(gradients, mask, clips)


def _privatising(wrong: Callable[[PrivacyPlan, Tensor, Source], Tensor]) -> Plant:
    return lambda: patch.object(PrivacyPlan, "privatise", wrong)


def _noise_of(factor: Callable[[PrivacyPlan], float]) -> Plant:
    """Noise of another scale, in a plan that still claims the first."""

    def wrong(plan: PrivacyPlan, total: Tensor, source: Source) -> Tensor:
        return _privatise(replace(plan, noise_multiplier=factor(plan) * plan.noise_multiplier), total, source)

    return _privatising(wrong)


def _bare_end(plan: PrivacyPlan, total: Tensor, source: Source) -> Tensor:
    noised = _privatise(plan, total, source)
    noised[-2:] = total[-2:] / plan.batch
    return noised


@contextmanager
def _seeing_batches(wrong: Callable[[PrivacyPlan, Tensor, Source, int], Tensor]) -> Iterator[None]:
    """A step that knows how many rows were drawn, which it must not."""
    drawn: WeakKeyDictionary[Source, int] = WeakKeyDictionary()

    def sample(plan: PrivacyPlan, source: Source) -> Tensor:
        rows = _sample(plan, source)
        drawn[source] = len(rows)
        return rows

    def privatise(plan: PrivacyPlan, total: Tensor, source: Source) -> Tensor:
        return wrong(plan, total, source, drawn[source])

    with patch.object(PrivacyPlan, "sample", sample), patch.object(PrivacyPlan, "privatise", privatise):
        yield


def _by_drawn(plan: PrivacyPlan, total: Tensor, source: Source, rows: int) -> Tensor:
    return _privatise(plan, total, source) * (plan.batch / max(1, rows))


def _bare_if_empty(plan: PrivacyPlan, total: Tensor, source: Source, rows: int) -> Tensor:
    return _privatise(plan, total, source) if rows else total / plan.batch


def _shuffled() -> AbstractContextManager[Any]:
    left: WeakKeyDictionary[Source, list[Tensor]] = WeakKeyDictionary()

    def sample(plan: PrivacyPlan, source: Source) -> Tensor:
        if not left.get(source):
            left[source] = list(source.uniform(plan.samples).argsort().split(plan.batch))
        return left[source].pop()

    return patch.object(PrivacyPlan, "sample", sample)


def _twice_the_rate(plan: PrivacyPlan, source: Source) -> Tensor:
    return (source.uniform(plan.samples) < 2 * plan.rate).nonzero().flatten()


def _one_step_a_round(plan: PrivacyPlan, rounds: int = 1) -> Cost:
    return replace(_cost(plan, rounds), steps=rounds)


@contextmanager
def _relation_ignored() -> Iterator[None]:
    def calibrate(epsilon: float, delta: float, rate: float, steps: int, *rest: Any) -> float:
        return _calibrate(epsilon, delta, rate, steps, "add-remove", *rest[1:])

    def scale(costs: Any, epsilon: float, delta: float, *rest: Any) -> float:
        return _scale(costs, epsilon, delta, "add-remove", *rest[1:])

    def spent(event: Any, delta: float, *rest: Any) -> float:
        return _epsilon(event, delta, "add-remove", *rest[1:])

    def spent_of(costs: Any, delta: float, *rest: Any) -> float:
        return _epsilon_of(costs, delta, "add-remove", *rest[1:])

    with (
        patch.object(accounting, "noise_multiplier", calibrate),
        patch.object(accounting, "noise_scale", scale),
        patch.object(accounting, "epsilon", spent),
        patch.object(accounting, "epsilon_of", spent_of),
    ):
        yield


BUGS = (
    Bug("no-clip", "gradients are not clipped", lambda: with_sums(_unclipped), ("clip_bound", "audit")),
    Bug(
        "clip-per-batch",
        "the mean gradient of a batch is clipped, not each row's",
        lambda: with_sums(_per_batch),
        ("clip_bound", "audit"),
    ),
    Bug(
        "clip-per-layer",
        "each layer is clipped to the whole clip",
        lambda: with_sums(_per_layer),
        ("clip_bound",),
    ),
    Bug(
        "nan-bypass",
        "a gradient that is not a number passes the clip, since NaN > clip is false",
        lambda: with_sums(_not_finite),
        ("clip_bound", "audit"),
    ),
    Bug("noise-halved", "half the noise", _noise_of(lambda plan: 0.5), ("noise_scale", "audit")),
    Bug(
        "noise-divided-twice",
        "noise is divided by the batch before it is added, and again after",
        _noise_of(lambda plan: 1.0 / plan.batch),
        ("noise_scale", "audit"),
    ),
    Bug(
        "noise-without-clip",
        "noise is not scaled by the clip",
        _noise_of(lambda plan: 1.0 / plan.clip),
        ("noise_scale",),
    ),
    Bug(
        "bias-without-noise",
        "the last two numbers, the bias of a two-class model, get no noise",
        _privatising(_bare_end),
        ("noise_scale", "audit"),
    ),
    Bug(
        "empty-batch-without-noise",
        "a step without rows is released without noise",
        lambda: _seeing_batches(_bare_if_empty),
        ("empty_batches",),
    ),
    Bug(
        "actual-batch-size",
        "the sum is divided by the number of rows drawn",
        lambda: _seeing_batches(_by_drawn),
        ("divisor",),
    ),
    Bug("shuffled-batches", "batches are a shuffle cut into pieces, accounted as Poisson", _shuffled, ("inclusion",)),
    Bug(
        "wrong-rate",
        "rows enter at twice the accounted rate",
        lambda: patch.object(PrivacyPlan, "sample", _twice_the_rate),
        ("inclusion",),
    ),
    Bug(
        "noise-again-each-round",
        "every round starts from the same seed, so that differences of updates are free of noise",
        lambda: patch.object(noise, "replayable", lambda seed, client, number, *_: _replayable(seed, client, 0)),
        ("streams", "audit_alternating"),
    ),
    Bug(
        "noise-shared-by-clients",
        "all clients draw the same noise",
        lambda: patch.object(noise, "replayable", lambda seed, client, number, *_: _replayable(seed, 0, number)),
        ("streams",),
    ),
    Bug(
        "secure-noise-from-a-seed",
        "noise labelled secure can be drawn again",
        lambda: patch.object(noise, "secure", lambda: _replayable(0, 0, 0)),
        ("streams",),
    ),
    Bug(
        "steps-not-counted",
        "a round is accounted as one step",
        lambda: patch.object(PrivacyPlan, "cost", _one_step_a_round),
        ("accounted",),
    ),
    Bug(
        "replaced-as-added",
        "a budget for replaced rows is accounted as if a row were added or removed",
        _relation_ignored,
        ("relation", "audit_replaced"),
    ),
    Bug(
        "true-cluster-choice",
        "a client tells which model has the least of its true losses",
        lambda: patch.object(Stage, "noise_of", lambda stage, what: 0.0),
        ("audit_choice",),
    ),
)
