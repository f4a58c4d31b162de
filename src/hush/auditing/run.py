"""Run an empirical audit: one client's part of a run is repeated with canaries, which gives a lower bound on epsilon.

The adversary is the server: it sees everything that the client releases (enrolment, updates, and side releases), and
knows the plan and all rows except the canaries. It sends the same model in every round, which the threat model allows,
so that all rounds and repetitions of an audit are one call of the training code that a run uses. Each repetition draws
new batches and noise.

`two-datasets` combines all releases of a run into one score. `one-run` examines the updates, and separately some
thousand repetitions of the side releases, of as many rounds as time permits; the confidence is divided between the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.auditing import statistics as statistics
from hush.auditing.canaries import added, effects, plant
from hush.auditing.side_releases import Observation, SideReleases, scored, side_releases_of
from hush.auditing.target import Target, target
from hush.config import Config
from hush.data import ClientData
from hush.engines.setup import prepare
from hush.privacy import noise
from hush.privacy.persons import sum_weights
from hush.privacy.plan import UPDATE
from hush.privacy.schedule import ENROLMENT
from hush.privacy.source import Source
from hush.seeds import derive, rng
from hush.training.train import Job, train
from hush.types import HushError, Relation, unknown

Kind = Literal["one-run", "two-datasets"]
Array = NDArray[np.float64]

# In steps of a small model; a core computes about ten thousand per second.
_WORK = 120_000
_MOST_RUNS, _FEWEST_RUNS = 10_000, 1_000
_MOST_CANARIES = 1024
_MOST_NUMBERS = 1 << 25
_MOST_JOBS = 512
_MOST_COLUMNS = 128
# Side releases are computed run by run, each taking about as long as this number of steps.
_SIDE_RELEASE = 30
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AuditedRelease:
    """A covered release: how often it occurs in the run, and how many of these were audited."""

    what: str
    times: int
    audited: int


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The result of an audit. The claim is refuted at this confidence if the lower bound exceeds it.

    Attributes:
        client: The client whose training was audited.
        kind: `one-run` (many canaries, each included with probability 1/2) or `two-datasets` (one canary, many runs).
        relation: The neighbouring relation.
        epsilon_claimed: The epsilon computed by the accountant.
        delta: The delta of the claim.
        epsilon_lower: The lower bound, which needs no assumptions.
        epsilon_if_gaussian: An estimate that assumes normal scores; not a bound. It is infinite if scores have no
            variance.
        confidence: The confidence of the lower bound.
        canaries: The number of canaries.
        runs: The number of training runs: on each dataset for `two-datasets`, in total for `one-run`.
        rounds: Rounds per training run.
        steps: Noisy steps per training run.
        noise: The source of the noise.
        seconds: The duration of the audit.
        releases: What the claim covers, and how many of these releases were audited.
        not_audited: What the client releases that was not audited: releases that no claim covers, and releases listed
            as such in `releases`.
    """

    client: int
    kind: Kind
    relation: Relation
    epsilon_claimed: float
    delta: float
    epsilon_lower: float
    epsilon_if_gaussian: float
    confidence: float
    canaries: int
    runs: int
    rounds: int
    steps: int
    noise: str
    seconds: float
    releases: tuple[AuditedRelease, ...]
    not_audited: tuple[str, ...]

    @property
    def refuted(self) -> bool:
        """Whether the lower bound exceeds the claimed epsilon."""
        return self.epsilon_lower > self.epsilon_claimed


def audit(
    config: Config,
    *,
    root: str | None = None,
    dataset: ClientData | None = None,
    module: nn.Module | None = None,
    client: int | str | None = None,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit the training that a config describes, for one client.

    Args:
        config: The config of a run.
        root: The directory with the public dataset files.
        dataset: The data in place of what the config names.
        module: The module in place of the model that the config names.
        client: The client to audit, by number or name; default: the one with the largest budget.
        kind: `one-run`, `two-datasets`, or `auto`: the latter if the model is small enough to repeat the training.
        canaries: The number of canaries of `one-run`.
        runs: Training runs (on each dataset, for `two-datasets`); default: as many as fit into about a minute.
        confidence: Confidence level, such as 0.95 or 0.999.
        seed: Seed of the canaries, of their inclusion and, unless the config says `secure`, of batches and noise.
        progress: Called with the number of training runs done, and of all that are planned.
    """
    found = target(prepare(config, root=root, dataset=dataset, module=module), client)
    return examine(found, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed, progress=progress)


def examine(
    target: Target,
    *,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit a target; the arguments are those of `audit`."""
    if kind not in ("auto", *get_args(Kind)):
        raise unknown("kind", "kind of audit", kind, ("auto", *get_args(Kind)))
    for name, value in (("canaries", canaries), ("runs", runs)):
        if value is not None and value < 1:
            raise HushError(f"{name}: found {value}; accepted: an integer, 1 or more")
    statistics.check(target.delta, confidence)
    began = time.perf_counter()
    plan, beside = target.plan, side_releases_of(target)
    largest = max(stage.plan.batch for stage in target.rounds)
    heavy = 1 + largest * target.model.layout.size // 30_000
    repeats = _WORK // (2 * (target.steps * heavy + _SIDE_RELEASE * len(beside)))
    if kind == "auto":
        kind = "two-datasets" if repeats >= _FEWEST_RUNS and canaries is None else "one-run"
    seen = target.rounds
    if kind == "two-datasets":
        planted, trained = 1, runs or min(max(repeats, _FEWEST_RUNS), _MOST_RUNS)
        absent, present = _two_datasets(_counted(target, 2 * trained, progress), trained, seed)
        lower = statistics.two_datasets(absent, present, target.delta, confidence)
    else:
        room = min(plan.samples, _MOST_CANARIES, 2 * _MOST_NUMBERS // target.model.layout.size)
        usual = max(1, min(plan.samples // 2, target.model.layout.size // 4))
        planted = min(canaries or usual, room)
        trained = runs or max(1, min(_MOST_CANARIES // planted, 2 * repeats))
        shared = confidence if not beside else 1.0 - 0.5 * (1.0 - confidence)
        scores, included = _one_run(_counted(target, trained, progress), planted, trained, seed)
        lower = statistics.one_run(scores, included, target.delta, shared)
        absent, present = scores[~included], scores[included]
        if beside:
            telling = [stage for stage in target.rounds if stage.spec.side_releases]
            seen = tuple(telling[: max(1, _WORK // (2 * _SIDE_RELEASE * _FEWEST_RUNS))])
            tables = _scored_alone(replace(target, rounds=seen), _FEWEST_RUNS, seed)
            lower = max(lower, statistics.two_datasets(*tables, target.delta, shared))
    releases = _audited(target, replace(target, rounds=seen))
    return AuditResult(
        client=target.client,
        kind="two-datasets" if kind == "two-datasets" else "one-run",
        relation=plan.relation,
        epsilon_claimed=target.claimed,
        delta=target.delta,
        epsilon_lower=lower,
        epsilon_if_gaussian=_if_gaussian(absent, present, target.delta, confidence),
        confidence=confidence,
        canaries=planted,
        runs=trained,
        rounds=len(target.rounds),
        steps=target.steps,
        noise=noise.SECURE if target.secure else noise.SEEDED,
        seconds=time.perf_counter() - began,
        releases=releases,
        not_audited=(*(each.what for each in releases if not each.audited), *target.not_covered),
    )


def _counted(target: Target, runs: int, progress: Progress | None) -> Target:
    """Return the target with a count of its training runs that `progress` is told."""
    if progress is None:
        return target
    done = [0]

    def trained(more: int) -> None:
        done[0] += more
        progress(done[0], runs)

    return replace(target, trained=trained)


def _audited(target: Target, seen: Target) -> tuple[AuditedRelease, ...]:
    """Count the audited releases: all updates, and the side releases in `seen`."""
    all_of, some = ([side_release.what for _, side_release in side_releases_of(one)] for one in (target, seen))
    beside = [AuditedRelease(what, all_of.count(what), some.count(what)) for what in dict.fromkeys(all_of)]
    return (AuditedRelease(UPDATE, len(target.rounds), len(target.rounds)), *beside)


def _two_datasets(target: Target, runs: int, seed: int) -> tuple[Array, Array]:
    """Scores of the runs without and with a canary in place of the last row (or of all rows of the last person), and
    raw releases if there are few.
    """
    plan, others = target.plan, target.rows_before(1)
    x, y = target.x[:others], target.y[:others]
    canary = plant(target.model, x, clip=plan.clip, relation=plan.relation, count=1, seed=seed)
    both_x = torch.cat([x, target.repeated(canary.instead_x), x, target.repeated(canary.x)])
    both_y = torch.cat([y, target.repeated(canary.instead_y), y, target.repeated(canary.y)])
    gaps = torch.cat([effects(target.model, start, canary, plan.clip).gaps for start in target.starts])
    gaps = nn.functional.normalize(gaps, dim=1)[torch.arange(len(target.rounds)) % len(gaps)]
    keep = gaps.numel() <= _MOST_COLUMNS
    side_releases = SideReleases(target, canary) if side_releases_of(target) else None
    along: list[Array] = []
    raw: list[Array] = []
    observations: list[list[list[Observation]]] = []
    for world in (0, 1):
        numbers = range(world * runs, (world + 1) * runs)
        observed: list[list[Observation]] = []
        sources = _sources(target, side_releases, world, numbers, seed, observed)
        seen = [
            ((part * gaps).sum(2).double().cpu().numpy(), part.flatten(1).double().cpu().numpy() if keep else None)
            for part in _releases(target, both_x, both_y, [world * len(target.x)] * runs, sources)
        ]
        along.append(np.concatenate([one for one, _ in seen]))
        raw.append(np.concatenate([one for _, one in seen if one is not None]) if keep else np.empty((runs, 0)))
        observations.append(observed)
    if not any(np.isfinite(one).any() for one in along):
        raise HushError(
            "audit: no released update is finite; a row whose gradient is not finite must contribute nothing"
        )
    # The contribution of the other rows is about the same in every run: it is estimated from the runs that choose the
    # test.
    known = [_means(one[statistics.choosing(runs)]) for one in along]
    rest = 0.5 * (known[0] + known[1]) if plan.relation == "replace-one" else known[0]
    scores = [_likelihoods(target, one - rest).sum(1) for one in along]
    if side_releases is not None:
        beside = scored(observations, plan.relation)
        scores = [one + more for one, (more, _) in zip(scores, beside, strict=True)]
        raw = [np.column_stack(pair) for pair in zip((values for _, values in beside), raw, strict=True)]
    tables = [np.column_stack(parts) for parts in zip(scores, [one.sum(1) for one in along], raw, strict=True)]
    return tables[0], tables[1]


def _likelihoods(target: Target, along: Array) -> Array:
    """The log likelihood ratio of each round's update, with against without the canary: runs x rounds."""
    plans = [stage.plan for stage in target.rounds]
    found = np.empty_like(along)
    for plan in set(plans):
        at = [number for number, own in enumerate(plans) if own == plan]
        found[:, at] = statistics.log_likelihood(
            along[:, at], plan.rate, plan.steps, plan.noise_multiplier, plan.relation
        )
    return found


def _scored_alone(target: Target, runs: int, seed: int) -> tuple[Array, Array]:
    """The same for side releases alone: scores, and the released numbers."""
    plan = target.plan
    others = target.x[: target.rows_before(1)]
    canary = plant(target.model, others, clip=plan.clip, relation=plan.relation, count=1, seed=seed)
    side_releases, observations = SideReleases(target, canary), []
    for world in (0, 1):
        observed: list[list[Observation]] = []
        for _ in _sources(target, side_releases, world, range(world * runs, (world + 1) * runs), seed, observed):
            pass
        observations.append(observed)
    tables = [np.column_stack(pair) for pair in scored(observations, plan.relation)]
    return tables[0], tables[1]


def _sources(
    target: Target,
    side_releases: SideReleases | None,
    world: int,
    runs: Sequence[int],
    seed: int,
    observed: list[list[Observation]],
) -> Iterator[list[Source]]:
    """For each run the noise sources of its rounds, after the side releases were drawn from them."""
    for run in runs:
        numbers: list[Observation] = []
        if side_releases is not None and target.enrolment is not None:
            numbers += side_releases.enrolment(target.enrolment, world, _source(target, run, ENROLMENT - 1, seed))
        sources = [_source(target, run, number, seed) for number in range(len(target.rounds))]
        if side_releases is not None:
            for stage, source in zip(target.rounds, sources, strict=True):
                numbers += side_releases.round(stage, world, source)
        observed.append(numbers)
        yield sources


def _one_run(target: Target, canaries: int, runs: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Scores of canaries in place of the last rows, and which of them were included, run after run."""
    plan, start = target.plan, target.starts[0]
    others = target.rows_before(canaries)
    x, y = target.x[:others], target.y[:others]
    planted = plant(target.model, x, clip=plan.clip, relation=plan.relation, count=canaries, seed=seed)
    effect = effects(target.model, start, planted, plan.clip)
    plans = [stage.plan for stage in target.rounds]
    expected = math.fsum(own.steps * own.rate for own in plans)
    rest = expected * (added(target.model, start, x, y, plan.clip, sum_weights(target.persons)) + effect.middle)
    # The best linear estimate of inclusion, given that each canary is included with probability 1/2.
    spread = math.fsum(own.noise_multiplier**2 * own.steps for own in plans) / (0.5 * expected) ** 2
    gram = (effect.gaps @ effect.gaps.T).double()
    factor = torch.linalg.cholesky(gram + spread * torch.eye(canaries, dtype=gram.dtype, device=gram.device))
    scores, tosses = [], []
    for run in range(runs):
        included = rng(seed, "audit", "included", run).random(canaries) < 0.5
        mask = torch.from_numpy(included).to(x.device)
        chosen = torch.where(mask.reshape(-1, *[1] * (x.ndim - 1)), planted.x, planted.instead_x)
        rows_x = torch.cat([x, target.repeated(chosen)])
        rows_y = torch.cat([y, target.repeated(torch.where(mask, planted.y, planted.instead_y))])
        (released,) = _releases(target, rows_x, rows_y, [0], _sources(target, None, 0, [run], seed, []))
        along = (effect.gaps @ (released[0].sum(0) - rest)).double()
        scores.append(torch.cholesky_solve(along[:, None], factor)[:, 0].cpu().numpy())
        tosses.append(included)
    if not all(np.isfinite(one).all() for one in scores):
        raise HushError(
            "audit: a released update is not finite; a row whose gradient is not finite must contribute nothing"
        )
    return np.concatenate(scores), np.concatenate(tosses)


def _releases(
    target: Target, x: Tensor, y: Tensor, first_rows: Sequence[int], sources: Iterator[list[Source]]
) -> Iterator[Tensor]:
    """The updates of every run, as sums of steps in clipping norms: runs x rounds x p, in chunks of runs."""
    size, rounds = target.model.layout.size, target.rounds
    largest = max(stage.plan.batch for stage in rounds)
    a_job = 4 * size + 2 * largest * math.prod(x.shape[1:])
    width = max(1, min(_MOST_NUMBERS // a_job, _MOST_JOBS) // len(rounds))
    scale = torch.tensor([-stage.plan.batch / (target.lr * stage.plan.clip) for stage in rounds], device=x.device)
    for start in range(0, len(first_rows), width):
        jobs = [
            Job(
                vector=target.starts[number % len(target.starts)],
                first_row=first,
                plan=stage.plan,
                lr=target.lr,
                source=source,
                at_start=stage.spec.still,
                persons=target.persons,
            )
            for first, run in zip(first_rows[start : start + width], sources, strict=False)
            for number, (stage, source) in enumerate(zip(rounds, run, strict=True))
        ]
        updates = torch.stack(train(target.model, x, y, jobs, target.physical_batch))
        yield scale[:, None].to(updates) * updates.reshape(-1, len(rounds), size)
        target.trained(len(first_rows[start : start + width]))


def _source(target: Target, run: int, round_number: int, seed: int) -> Source:
    """A new noise source for each round of each run; drawing twice from one would invalidate the audit."""
    if target.secure:
        return noise.Secure()
    return noise.Seeded(derive(seed, "audit", run), target.client, round_number + 1)


def _means(values: Array) -> Array:
    finite = np.isfinite(values)
    means: Array = np.where(finite, values, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
    return means


def _if_gaussian(absent: Array, present: Array, delta: float, confidence: float) -> float:
    """Computed from plain sums, which are closer to normal than likelihoods."""
    a, b = (one[:, 1] if one.ndim == 2 else one for one in (absent, present))
    return statistics.if_gaussian(a[np.isfinite(a)], b[np.isfinite(b)], delta, confidence)
