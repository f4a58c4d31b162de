"""Run an empirical audit: one client's part of a run is repeated with canaries, which gives a lower bound on epsilon.

The adversary is the server: it sees everything that the client releases (enrolment, updates, and side releases), and
knows the plan and all rows except the canaries. It sends the same model in every round, which the threat model allows,
so that all rounds and repetitions of an audit are one call of the training code that a run uses. Each repetition draws
new batches and noise.

`two-datasets` combines all releases of a run into one score, and examines each of them alone as well. `one-run`
examines the updates, and separately some thousand repetitions of the side releases, of as many rounds as time permits.
The confidence is divided between all of these.

What was seen is compared with the accountant's own curve (`hush.auditing.trade_off`), which gives the lower bound, and
with the epsilon alone, which gives a lower bound that assumes nothing (`epsilon_lower_any`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.auditing import statistics as statistics
from hush.auditing.canaries import Canaries, added, effects, plant
from hush.auditing.meaning import in_words
from hush.auditing.side_releases import Observation, SideReleases, scored, side_releases_of
from hush.auditing.target import Target, target
from hush.auditing.trade_off import Planned
from hush.config import Config
from hush.data import ClientData
from hush.engines.setup import prepare
from hush.privacy import noise
from hush.privacy.persons import sum_weights
from hush.privacy.plan import UPDATE
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.source import Source
from hush.seeds import derive, rng
from hush.training.train import Job, train
from hush.types import HushError, Relation, unknown

Kind = Literal["one-run", "two-datasets"]
Array = NDArray[np.float64]

# In steps of a tiny model; a core computes about thirty thousand per second, and fewer of larger models and batches.
_WORK = 1_500_000
_TINY = 3_000
_MOST_RUNS, _FEWEST_RUNS = 50_000, 1_000
_MOST_CANARIES = 1024  # in a run
_MOST_GUESSES = 8192  # in all runs
_MOST_NUMBERS = 1 << 25
_MOST_JOBS = 512
_MOST_COLUMNS = 128
# Side releases are computed run by run, each taking about as long as this number of steps.
_SIDE_RELEASE = 30
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class AuditedRelease:
    """A covered release.

    Attributes:
        what: Its name.
        times: How often it occurs in the run.
        audited: How many of these were audited.
        epsilon_claimed: The epsilon of the audited ones alone, by the accountant; 0 if there are none.
        epsilon_lower: The lower bound on it, like that of the whole run.
    """

    what: str
    times: int
    audited: int
    epsilon_claimed: float
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The result of an audit. The claim is refuted at this confidence if a lower bound exceeds it.

    Attributes:
        client: The client whose training was audited.
        kind: `one-run` (many canaries, each included with probability 1/2) or `two-datasets` (one canary, many runs).
        relation: The neighbouring relation.
        unit: What is protected: a row, a person, or a client.
        epsilon_claimed: The epsilon computed by the accountant.
        delta: The delta of the claim.
        epsilon_lower: The lower bound. It compares the attack with the accountant's whole curve. A bound above the
            claim refutes the accountant's curve without assumptions; as an epsilon, it assumes that the releases are
            the planned ones with another amount of noise.
        epsilon_lower_any: The lower bound that needs no assumptions about the mechanism.
        noise_at_most: By `epsilon_lower`, the releases have at most so many times the planned noise; below 1 the claim
            is refuted. None if nothing was found.
        accuracy_lower: A guess whether the canary is there is right at least so often; None for `one-run`.
        accuracy_allowed: How often the accountant's curve allows such a guess to be right.
        guesses: How many canaries were guessed; 0 for `two-datasets`.
        right: How many of these guesses were right.
        epsilon_if_gaussian: An estimate that assumes normal scores; not a bound. It is infinite if scores have no
            variance.
        confidence: The confidence of all bounds together.
        canaries: The number of canaries.
        runs: The number of training runs: on each dataset for `two-datasets`, in total for `one-run`.
        rounds: Rounds per training run.
        steps: Noisy steps per training run.
        noise: The source of the noise.
        seconds: The duration of the audit.
        releases: What the claim covers, how many of these releases were audited, and what was found in each alone.
        not_audited: What the client releases that was not audited: releases that no claim covers, and releases listed
            as such in `releases`.
        refuted: Whether a lower bound exceeds what was claimed.
        meaning: The result in plain words.
    """

    client: int
    kind: Kind
    relation: Relation
    unit: str
    epsilon_claimed: float
    delta: float
    epsilon_lower: float
    epsilon_lower_any: float
    noise_at_most: float | None
    accuracy_lower: float | None
    accuracy_allowed: float
    guesses: int
    right: int
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
    refuted: bool
    meaning: tuple[str, ...] = ()


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
    scores = observe(target, kind=kind, canaries=canaries, runs=runs, seed=seed, progress=progress)
    return replace(judged(target, scores, confidence), seconds=time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What an attack computed from its runs, which can be judged at any confidence.

    Attributes:
        kind: The kind of audit.
        canaries: The number of canaries.
        runs: The number of training runs: on each dataset for `two-datasets`, in total for `one-run`.
        updates: For `one-run`, a row for each run: a score of each canary, and whether it was included.
        tables: For each release the scores and raw numbers of the runs on two data sets, a row for each run.
        seen: The rounds of which side releases were audited.
    """

    kind: Kind
    canaries: int
    runs: int
    updates: tuple[Array, NDArray[np.bool_]] | None
    tables: Mapping[str, tuple[Array, Array]]
    seen: tuple[Stage, ...]


def observe(
    target: Target,
    *,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Scores:
    """Attack a target; the arguments are those of `audit`."""
    plan, beside = target.plan, side_releases_of(target)
    largest = max(stage.plan.batch for stage in target.rounds)
    heavy = 1 + largest * target.model.layout.size // _TINY
    repeats = _WORK // (2 * (target.steps * heavy + _SIDE_RELEASE * len(beside)))
    if kind == "auto":
        repeated = target.unit == "client" or target.idle or (repeats >= _FEWEST_RUNS and canaries is None)
        kind = "two-datasets" if repeated else "one-run"
    if kind == "one-run" and target.unit == "client":
        raise HushError('kind: a client is one canary where privacy.unit = "client"; accepted: two-datasets')
    if kind == "one-run" and target.idle:
        raise HushError("kind: no round of this recipe trains, so there are no updates; accepted: two-datasets")
    if kind == "two-datasets":
        trained = runs or min(max(repeats, _FEWEST_RUNS), _MOST_RUNS)
        tables = _two_datasets(_counted(target, 2 * trained, progress), trained, seed)
        return Scores(kind="two-datasets", canaries=1, runs=trained, updates=None, tables=tables, seen=target.rounds)
    room = min(plan.samples, _MOST_CANARIES, 2 * _MOST_NUMBERS // target.model.layout.size)
    usual = max(1, min(plan.samples // 2, target.model.layout.size // 4))
    planted = min(canaries or usual, room)
    trained = runs or max(1, min(_MOST_GUESSES // planted, 2 * repeats))
    counted = _counted(target, trained + 2 * _FEWEST_RUNS * bool(beside), progress)
    updates = _one_run(counted, planted, trained, seed)
    telling = [stage for stage in target.rounds if stage.spec.side_releases]
    seen = tuple(telling[: max(1, _WORK // (2 * _SIDE_RELEASE * _FEWEST_RUNS))])
    alone = _scored_alone(replace(counted, rounds=seen), _FEWEST_RUNS, seed) if beside else {}
    return Scores(kind="one-run", canaries=planted, runs=trained, updates=updates, tables=alone, seen=seen)


def judged(target: Target, found: Scores, confidence: float) -> AuditResult:
    """Return what follows from the scores of an attack at a confidence level."""
    plan, planned = target.plan, target.planned
    limits = planned.curve()
    # Half of the failure probability is for everything together (of one run: for the updates), unless that is all.
    apart = found.tables if found.updates is not None or len(found.tables) > 1 else {}
    main = 1.0 - (1.0 - confidence) * (0.5 if apart else 1.0)
    each = 1.0 - (1.0 - confidence) * 0.5 / max(1, len(apart))
    audited = replace(target, rounds=found.seen).planned
    single: dict[str, tuple[_Bound, Planned]] = {}
    accuracy, guesses, right = None, 0, 0
    if found.updates is None:
        together = _combined(found.tables)
        separation = statistics.two_datasets(*together, target.delta, main)
        whole, accuracy = _bound(separation, planned), separation.accuracy
        absent, present = together
        if not apart:
            single[next(iter(found.tables))] = whole, planned
    else:
        scores, included = found.updates
        own = planned.only(UPDATE)
        size = _fewest_noise(scores.size, own, main)
        counts = statistics.one_run(scores, included, main, size)
        whole = _bound(counts, own)
        guesses, right = next(((n, hits) for n, hits, _ in counts.counts if n == size), (0, 0))
        single[UPDATE] = whole, own
        absent, present = scores[~included], scores[included]
    for what, table in apart.items():
        own = audited.only(what)
        single[what] = _bound(statistics.two_datasets(*table, target.delta, each), own), own
    best = max((whole, *(bound for bound, _ in single.values())), key=lambda bound: bound.epsilon)
    any_mechanism = max(whole.any_mechanism, *(bound.any_mechanism for bound, _ in single.values()))
    releases = tuple(
        AuditedRelease(
            what=what,
            times=times,
            audited=done,
            epsilon_claimed=single[what][1].epsilon() if what in single else 0.0,
            epsilon_lower=single[what][0].epsilon if what in single else 0.0,
        )
        for what, times, done in _audited(target, replace(target, rounds=found.seen))
    )
    result = AuditResult(
        client=target.client,
        kind=found.kind,
        relation=plan.relation,
        unit=target.unit,
        epsilon_claimed=target.claimed,
        delta=target.delta,
        epsilon_lower=best.epsilon,
        epsilon_lower_any=any_mechanism,
        noise_at_most=best.noise if math.isfinite(best.noise) else None,
        accuracy_lower=accuracy,
        accuracy_allowed=limits.accuracy,
        guesses=guesses,
        right=right,
        epsilon_if_gaussian=_if_gaussian(absent, present, target.delta, confidence),
        confidence=confidence,
        canaries=found.canaries,
        runs=found.runs,
        rounds=len(target.rounds),
        steps=target.steps,
        noise=noise.SECURE if target.secure else noise.SEEDED,
        seconds=0.0,
        releases=releases,
        not_audited=(*(one.what for one in releases if not one.audited), *target.not_covered),
        refuted=max(best.epsilon, any_mechanism) > target.claimed * (1.0 + 1e-9)
        or any(bound.noise < 1.0 for bound in (whole, *(bound for bound, _ in single.values()))),
    )
    return replace(result, meaning=in_words(result))


@dataclass(frozen=True)
class _Bound:
    """What an attack implies: an epsilon, at most so many times the planned noise, and an epsilon of any mechanism."""

    epsilon: float
    noise: float
    any_mechanism: float


def _bound(found: statistics.Separation | statistics.Guesses, planned: Planned) -> _Bound:
    noise_at_most = planned.least_refuted(found.refutes)
    epsilon = 0.0 if math.isinf(noise_at_most) else planned.epsilon(noise_at_most)
    if noise_at_most >= 1.0:
        # More noise cannot cost more; the accountant's grid could say so in the last digits.
        epsilon = min(epsilon, planned.epsilon())
    return _Bound(epsilon, noise_at_most, found.epsilon(planned.delta))


@lru_cache(maxsize=64)
def _fewest_noise(canaries: int, planned: Planned, confidence: float) -> int | None:
    """The number of guesses with the highest bound in expectation, for normal scores distinguished as planned."""
    if planned.curve().accuracy > 0.999:
        return max(statistics.guess_sizes(canaries), default=None)

    def expected(size: int) -> float:
        hits = statistics.expected_correct(canaries, size, planned.curve().accuracy)
        return planned.least_refuted(statistics.Guesses(canaries, ((size, hits, 1.0 - confidence),)).refutes)

    return min(statistics.guess_sizes(canaries), key=expected, default=None)


def _combined(tables: Mapping[str, tuple[Array, Array]]) -> tuple[Array, Array]:
    """All releases as one: the sum of their log likelihood ratios, and all raw numbers."""
    absent, present = (
        np.column_stack(
            [sum(own[world][:, 0] for own in tables.values()), *(own[world][:, 1:] for own in tables.values())]
        )
        for world in (0, 1)
    )
    return absent, present


def _counted(target: Target, runs: int, progress: Progress | None) -> Target:
    """Return the target with a count of its training runs that `progress` receives."""
    if progress is None:
        return target
    done = [0]

    def trained(more: int) -> None:
        done[0] += more
        progress(done[0], runs)

    return replace(target, trained=trained)


def _audited(target: Target, seen: Target) -> Iterator[tuple[str, int, int]]:
    """Each release, how often it occurs, and how often it was audited: all updates, and the side releases in `seen`."""
    all_of, some = ([side_release.what for _, side_release in side_releases_of(one)] for one in (target, seen))
    if not target.idle:
        yield UPDATE, len(target.rounds), len(target.rounds)
    for what in dict.fromkeys(all_of):
        yield what, all_of.count(what), some.count(what)


def _two_datasets(target: Target, runs: int, seed: int) -> dict[str, tuple[Array, Array]]:
    """For each release, scores of the runs without and with a canary in place of the last row (or of all rows of the
    last person), and raw numbers if there are few.
    """
    plan = target.plan
    canary, (both_x, both_y) = _client_worlds(target, seed) if plan.whole_update else _row_worlds(target, seed)
    if plan.whole_update:
        gaps = _client_effects(target, both_x, both_y)
    else:
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
    tables = [np.column_stack(parts) for parts in zip(scores, [one.sum(1) for one in along], raw, strict=True)]
    beside = {} if side_releases is None else scored(observations, plan.relation)
    # Where no round trains, no update is released: what the runs computed instead is not looked at.
    return beside if target.idle else {UPDATE: (tables[0], tables[1]), **beside}


def _row_worlds(target: Target, seed: int) -> tuple[Canaries, tuple[Tensor, Tensor]]:
    """A canary, and the rows of both data sets one after the other: without it, and with it."""
    plan, others = target.plan, target.rows_before(1)
    x, y = target.x[:others], target.y[:others]
    canary = plant(target.model, x, clip=plan.clip, relation=plan.relation, count=1, seed=seed)
    both_x = torch.cat([x, target.repeated(canary.instead_x), x, target.repeated(canary.x)])
    both_y = torch.cat([y, target.repeated(canary.instead_y), y, target.repeated(canary.y)])
    return canary, (both_x, both_y)


def _client_worlds(target: Target, seed: int) -> tuple[Canaries, tuple[Tensor, Tensor]]:
    """The same where a client is protected: all of its rows are the canary. Its first step is longer than the clip."""
    plan, rows = target.plan, len(target.x)
    length = plan.clip * plan.batch / (target.lr * max(1.0, plan.rate * rows))
    canary = plant(target.model, target.x[:0], clip=length, relation=plan.relation, count=1, seed=seed)
    both_x = torch.cat([canary.instead_x.expand_as(target.x), canary.x.expand_as(target.x)])
    both_y = torch.cat([canary.instead_y.expand_as(target.y), canary.y.expand_as(target.y)])
    return canary, (both_x, both_y)


def _client_effects(target: Target, both_x: Tensor, both_y: Tensor) -> Tensor:
    """The difference between the updates of two clients without clipping and noise, for each model that is sent."""
    plan = target.plan.training
    found = []
    for start in target.starts:
        jobs = [
            Job(vector=start, first_row=first, plan=plan, lr=target.lr, source=noise.Seeded(0, target.client, 1))
            for first in (0, len(target.x))
        ]
        absent, present = (
            nn.functional.normalize(one.nan_to_num(0.0, 0.0, 0.0), dim=0)
            for one in train(target.model, both_x, both_y, jobs)
        )
        found.append(present - absent)
    return torch.stack(found)


def _likelihoods(target: Target, along: Array) -> Array:
    """The log likelihood ratio of each round's update, with against without the canary: runs x rounds."""
    plans = [stage.plan for stage in target.rounds]
    found = np.empty_like(along)
    for plan in set(plans):
        at = [number for number, own in enumerate(plans) if own == plan]
        rate, steps = (1.0, 1) if plan.whole_update else (plan.rate, plan.steps)
        found[:, at] = statistics.log_likelihood(along[:, at], rate, steps, plan.noise_multiplier, plan.relation)
    return found


def _scored_alone(target: Target, runs: int, seed: int) -> dict[str, tuple[Array, Array]]:
    """The same for side releases alone."""
    plan = target.plan
    others = target.x[: target.rows_before(1)]
    canary = plant(target.model, others, clip=plan.clip, relation=plan.relation, count=1, seed=seed)
    side_releases, observations = SideReleases(target, canary), []
    for world in (0, 1):
        observed: list[list[Observation]] = []
        for _ in _sources(target, side_releases, world, range(world * runs, (world + 1) * runs), seed, observed):
            target.trained(1)
        observations.append(observed)
    return scored(observations, plan.relation)


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
    return np.stack(scores), np.stack(tosses)


def _releases(
    target: Target, x: Tensor, y: Tensor, first_rows: Sequence[int], sources: Iterator[list[Source]]
) -> Iterator[Tensor]:
    """The updates of every run in clipping norms (as sums of steps, or whole): runs x rounds x p, in chunks of runs."""
    size, rounds = target.model.layout.size, target.rounds
    largest = max(stage.plan.batch for stage in rounds)
    a_job = 4 * size + 2 * largest * math.prod(x.shape[1:])
    width = max(1, min(_MOST_NUMBERS // a_job, _MOST_JOBS) // len(rounds))
    plans = [stage.plan for stage in rounds]
    scale = torch.tensor(
        [1.0 / own.clip if own.whole_update else -own.batch / (target.lr * own.clip) for own in plans], device=x.device
    )
    for start in range(0, len(first_rows), width):
        jobs = [
            Job(
                vector=target.starts[number % len(target.starts)],
                first_row=first,
                plan=stage.plan.training if stage.plan.whole_update else stage.plan,
                lr=target.lr,
                source=source,
                at_start=stage.spec.still,
                persons=target.persons,
            )
            for first, run in zip(first_rows[start : start + width], sources, strict=False)
            for number, (stage, source) in enumerate(zip(rounds, run, strict=True))
        ]
        updates = torch.stack(
            [
                own.release(update, job.source) if own.whole_update else update
                for own, job, update in zip(cycle(plans), jobs, train(target.model, x, y, jobs, target.physical_batch))
            ]
        )
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
    """Computed from the plain sums of updates, which are closer to normal than likelihoods."""
    a, b = (one[:, 1] if one.ndim == 2 else one for one in (absent, present))
    return statistics.if_gaussian(a[np.isfinite(a)], b[np.isfinite(b)], delta, confidence)
