"""Bugs to plant in the real pipeline, each with the checks that must catch it; the first one named is its keeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from hush import tuning
from hush.engines import enrolment, side_releases
from hush.engines.side_releases import Evidence
from hush.models import Model
from hush.privacy import noise
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import Stage
from hush.privacy.source import Source
from hush.recipes.evaluation import EVALUATION
from hush.recipes.slots.closed_form import STATISTICS
from hush.recipes.slots.protect import BELOW, ClipQuantile
from hush.recipes.slots.weight import COUNT
from hush.training.eager import EagerGroup, EagerSum, padded_rows
from hush.training.input_mean import bound
from hush.training.job import Job

Plant = Callable[[], AbstractContextManager[Any]]
Sums = Callable[[Model, Tensor, Tensor, Tensor], Tensor]
_privatise, _sample, _cost = PrivacyPlan.privatise, PrivacyPlan.sample, PrivacyPlan.cost
_replayable, _calibrate, _epsilon = noise.Seeded, api.noise_multiplier, api.epsilon
_scale, _epsilon_of = api.noise_scale, api.epsilon_of
_aside_noise, _noised_mean, _threshold = Stage.noise_of, enrolment.noised_mean, noise.threshold
_bounded_sum = enrolment.bounded_sum  # type: ignore[attr-defined]
_drawn, _answered, _quantile = Persons.drawn, enrolment.enrolment_answer, side_releases.SUMS[ClipQuantile]


@dataclass(frozen=True)
class Bug:
    """What is wrong, how to plant it, and the names of the checks that see it."""

    name: str
    what: str
    plant: Plant
    caught_by: tuple[str, ...]


def with_sums(wrong: Sums) -> AbstractContextManager[Any]:
    """Training in which `wrong(model, gradients, mask, clips)` makes the sums: gradients are clients x rows x p."""

    def start(path: EagerSum, jobs: Sequence[Job], *_: Any) -> EagerGroup:
        def sums(vectors: Tensor, drawn: Sequence[Tensor], clips: Tensor, _: Any = None) -> Tensor:
            rows, mask = padded_rows(drawn, vectors.device)
            gradients = _gradients(path.model, vectors, path.x[rows], path.y[rows])
            return wrong(path.model, gradients, mask, clips[:, None].to(gradients.dtype))

        return EagerGroup(jobs, sums)

    return patch.object(EagerSum, "start", start)


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
    return lambda: patch.object(PrivacyPlan, "privatise", lambda plan, total, source, *_: wrong(plan, total, source))


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

    def privatise(plan: PrivacyPlan, total: Tensor, source: Source, *_: Any) -> Tensor:
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
        patch.object(api, "noise_multiplier", calibrate),
        patch.object(api, "noise_scale", scale),
        patch.object(api, "epsilon", spent),
        patch.object(api, "epsilon_of", spent_of),
    ):
        yield


def _noise_of_aside(name: str, factor: float) -> Plant:
    """Another scale of noise beside the update, where the ledger is charged for the first."""

    def wrong(stage: Stage, what: str) -> float:
        return _aside_noise(stage, what) * (factor if what == name else 1.0)

    return lambda: patch.object(Stage, "noise_of", wrong)


def _mean_noise(factor: Callable[[Tensor], float]) -> Plant:
    def wrong(x: Tensor, spread: float, samples: int, source: Source, persons: Persons | None) -> Tensor:
        return _noised_mean(x, factor(x) * spread, samples, source, persons)

    return lambda: patch.object(enrolment, "noised_mean", wrong)


def _rounded_up(rate: float) -> int:
    """The threshold above which no row is, to 16 of its 53 bits."""
    return ((_threshold(rate) >> 37) + 1) << 37


def _batches_of_a_seed() -> AbstractContextManager[Any]:
    class Alike(noise.Secure):
        def chosen(self, size: int, rate: float) -> Tensor:
            return _replayable(0, 0, 0).chosen(size, rate)

    return patch.object(noise, "Secure", Alike)


def _clamped() -> AbstractContextManager[Any]:
    class Clamped(noise.Secure):
        def normal(self, size: int, dtype: torch.dtype) -> Tensor:
            return super().normal(size, dtype).clamp(-3.0, 3.0)

    return patch.object(noise, "Secure", Clamped)


def _at_batch_rate(plan: PrivacyPlan, source: Source) -> Tensor:
    return source.chosen(plan.samples, plan.batch / plan.samples)


def all_rows(persons: Persons, chosen: Tensor, source: Source) -> Tensor:
    every = [torch.arange(int(persons.starts[who]), int(persons.starts[who] + persons.sizes[who])) for who in chosen]
    return torch.cat([torch.empty(0, dtype=torch.int64), *every])


def _rows_at_the_rate(plan: PrivacyPlan, source: Source, persons: Persons | None) -> Tensor:
    return plan.sample(source) if persons is None else source.chosen(persons.rows, plan.rate)


def flattened(persons: Persons, chosen: Tensor, source: Source) -> Tensor:
    return _drawn(persons, chosen, source).flatten()


def _rows_counted(stage: Stage, samples: int, rows: Any, client: int, source: Source) -> enrolment.EnrolmentAnswer:
    _, persons = rows(client)
    return _answered(stage, samples if persons is None else persons.rows, rows, client, source)


def _quantile_of_rows(release: Any, given: Evidence) -> Tensor:
    return _quantile(release, replace(given, persons=None))


_score_bound = tuning.bound


def _half_bound(candidates: int) -> float:
    return 0.5 * _score_bound(candidates)


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
        "a NaN gradient is not clipped, because NaN > clip is false",
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
        "the last two parameters, the bias of a two-class model, have no noise",
        _privatising(_bare_end),
        ("noise_scale", "audit"),
    ),
    Bug(
        "empty-batch-without-noise",
        "a step with an empty batch is released without noise",
        lambda: _seeing_batches(_bare_if_empty),
        ("empty_batches",),
    ),
    Bug(
        "actual-batch-size",
        "the sum is divided by the number of sampled rows",
        lambda: _seeing_batches(_by_drawn),
        ("divisor",),
    ),
    Bug(
        "shuffled-batches",
        "batches are consecutive parts of a shuffle, accounted as Poisson sampling",
        _shuffled,
        ("inclusion",),
    ),
    Bug(
        "wrong-rate",
        "rows are sampled at twice the accounted rate",
        lambda: patch.object(PrivacyPlan, "sample", _twice_the_rate),
        ("inclusion",),
    ),
    Bug(
        "noise-again-each-round",
        "every round uses the same seed, so that differences of updates contain no noise",
        lambda: patch.object(noise, "Seeded", lambda seed, client, number, *_: _replayable(seed, client, 0)),
        ("streams", "audit_alternating"),
    ),
    Bug(
        "noise-shared-by-clients",
        "all clients use the same noise",
        lambda: patch.object(noise, "Seeded", lambda seed, client, number, *_: _replayable(seed, 0, number)),
        ("streams",),
    ),
    Bug(
        "secure-noise-from-a-seed",
        "noise labelled secure is reproducible",
        lambda: patch.object(noise, "Secure", lambda: _replayable(0, 0, 0)),
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
        "a replace-one budget is accounted as add-remove",
        _relation_ignored,
        ("relation", "audit_replaced"),
    ),
    Bug(
        "true-cluster-choice",
        "a client releases the model with the smallest true loss",
        lambda: patch.object(Stage, "noise_of", lambda stage, what: 0.0),
        ("audit_choice",),
    ),
    Bug(
        "secure-batches-alike",
        "every secure source samples the same batches",
        _batches_of_a_seed,
        ("source_streams",),
    ),
    Bug("secure-noise-clamped", "secure noise is truncated at 3 standard deviations", _clamped, ("source_tails",)),
    Bug(
        "rate-of-16-bits",
        "rates are rounded up to 16 bits: 1.5 times as many rows at a rate of 1e-5",
        lambda: patch.object(noise, "threshold", _rounded_up),
        ("sampling_rates",),
    ),
    Bug(
        "batch-rate-for-even",
        "rows are sampled at rate B/N, but 1/ceil(N/B) is charged",
        lambda: patch.object(PrivacyPlan, "sample", _at_batch_rate),
        ("rate of model update: protect = dp-sgd, sampler = even",),
    ),
    Bug(
        "mean-cut-late",
        "rows are clipped at three times the accounted bound before averaging",
        lambda: patch.object(enrolment, "bounded_sum", lambda x, limit, weights: _bounded_sum(x, 3 * limit, weights)),
        ("bound of mean of the inputs: protect = dp-sgd, centre = 0.1",),
    ),
    Bug(
        "mean-noise-without-bound",
        "the noise of the mean is not scaled by the bound of a row",
        _mean_noise(lambda x: 1.0 / bound(x[:1].numel())),
        (
            "draws of mean of the inputs: protect = dp-sgd, centre = 0.1",
            "noise of mean of the inputs: protect = dp-sgd, centre = 0.1",
        ),
    ),
    Bug(
        "mean-without-noise",
        "the mean of the inputs is released without noise",
        _mean_noise(lambda x: 0.0),
        ("draws of mean of the inputs: protect = dp-sgd, centre = 0.1", "audit_mean"),
    ),
    Bug(
        "count-noise-tenth",
        "the noisy count has one tenth of its noise",
        _noise_of_aside(COUNT, 0.1),
        (
            "draws of number of training samples: weight = samples, counts = noisy",
            "noise of number of training samples: weight = samples, counts = noisy",
        ),
    ),
    Bug(
        "count-without-noise",
        "the count is released without noise",
        _noise_of_aside(COUNT, 0.0),
        ("draws of number of training samples: weight = samples, counts = noisy", "audit_count"),
    ),
    Bug(
        "quantile-without-noise",
        "the clip quantile is released without noise",
        _noise_of_aside(BELOW, 0.0),
        ("draws of clip quantile: protect = dp-sgd, clip = adaptive", "audit_quantile"),
    ),
    Bug(
        "statistics-without-noise",
        "sufficient statistics are released without noise",
        _noise_of_aside(STATISTICS, 0.0),
        ("audit_statistics",),
    ),
    Bug(
        "evaluation-without-noise",
        "counts of held-out rows are released without noise",
        _noise_of_aside(EVALUATION, 0.0),
        ("audit_evaluation",),
    ),
    Bug(
        "candidates-noise-halved",
        "the scores of a sweep's candidates have half of their noise",
        lambda: patch.object(tuning, "bound", _half_bound),
        ("audit_candidates",),
    ),
    Bug(
        "person-clipped-row-by-row",
        "all rows of a sampled person are clipped one by one and added up",
        lambda: patch.object(Persons, "drawn", all_rows),
        ("bound of model update: protect = dp-sgd, persons", "rate of model update: protect = dp-sgd, persons"),
    ),
    Bug(
        "person-rows-not-averaged",
        "two rows of a person in one batch are clipped one by one",
        lambda: patch.object(Persons, "drawn", flattened),
        ("bound of model update: protect = dp-sgd, persons, two rows each",),
    ),
    Bug(
        "person-rate-of-rows",
        "rows are sampled at the rate that is accounted for persons",
        lambda: patch.object(PrivacyPlan, "batch_rows", _rows_at_the_rate),
        ("rate of model update: protect = dp-sgd, persons", "bound of model update: protect = dp-sgd, persons"),
    ),
    Bug(
        "person-mean-of-rows",
        "each row of a person counts fully in the mean of the inputs",
        lambda: patch.object(enrolment, "sum_weights", lambda persons: None),
        ("bound of mean of the inputs: protect = dp-sgd, centre = 0.1, persons",),
    ),
    Bug(
        "person-count-of-rows",
        "rows are counted where the noise of the count is for persons",
        lambda: patch.object(enrolment, "enrolment_answer", _rows_counted),
        ("bound of number of training samples: weight = samples, counts = noisy, persons",),
    ),
    Bug(
        "person-losses-of-rows",
        "each row of a person counts fully in the losses behind a cluster choice",
        lambda: patch.object(side_releases, "sum_weights", lambda persons: None),
        ("bound of cluster choice: assign = gmm-then-loss, every = 1, persons",),
    ),
    Bug(
        "person-quantile-of-rows",
        "each of a person's two rows counts fully in the clip quantile",
        lambda: patch.dict(side_releases.SUMS, {ClipQuantile: _quantile_of_rows}),
        ("bound of clip quantile: protect = dp-sgd, clip = adaptive, persons, two rows each",),
    ),
)
