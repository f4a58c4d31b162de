"""The empirical audit: train one client as the run would, with planted rows, and bound epsilon from below.

The adversary is the server: it sees every update, and knows the plan and all rows but the planted ones. It sends the
same model every round, which the promise allows it to, so that all rounds and repetitions of an audit are one call of
the training that a run uses. Each repetition draws fresh batches and noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush.config import Config
from hush.engines.audit_target import Target, target
from hush.engines.canary import added, effects, plant
from hush.engines.federation import prepare
from hush.local.train import Job, train
from hush.privacy import audit as statistics
from hush.privacy import noise
from hush.seeds import derive, rng
from hush.types import HushError, Relation, unknown

Kind = Literal["one-run", "two-datasets"]
Array = NDArray[np.float64]

# In steps of a small model, of which a core does some ten thousand a second.
_WORK = 120_000
_MOST_RUNS, _FEWEST_RUNS = 10_000, 1_000
_MOST_CANARIES = 1024
_MOST_NUMBERS = 1 << 25
_MOST_JOBS = 512
_MOST_COLUMNS = 128


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. The claim is refuted, at this confidence, when the lower bound exceeds it.

    Attributes:
        client: Whose training was audited.
        kind: `one-run` (many canaries, each in or out by a coin) or `two-datasets` (one canary in or out, many runs).
        relation: How neighbouring datasets differ.
        epsilon_claimed: What the accountant says.
        delta: Of the claim.
        epsilon_lower: The lower bound, which assumes nothing.
        epsilon_if_gaussian: A closer estimate from below that assumes normal scores; not a proof. It is infinite where
            scores have no spread at all.
        confidence: Of the lower bound.
        canaries: Planted rows.
        runs: Trainings: on each dataset for `two-datasets`, in all for `one-run`.
        rounds: In a training.
        steps: Noisy steps in a training.
        noise: Where noise came from.
        seconds: It took.
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

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return self.epsilon_lower > self.epsilon_claimed


def audit(
    config: Config,
    *,
    root: str | None = None,
    client: int | None = None,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """Audit the training that a config describes, for one client.

    Args:
        config: As a run takes it.
        root: The directory with the public dataset files.
        client: By default the one with the largest budget.
        kind: `one-run`, `two-datasets`, or `auto`: the second where the model is small enough to repeat it.
        canaries: Planted rows of `one-run`.
        runs: Trainings (on each dataset, for `two-datasets`); by default as many as fit into about a minute.
        confidence: Such as 0.95 or 0.999.
        seed: Of the canaries, of who is included and, unless the config says `secure`, of batches and noise.
    """
    found = target(prepare(config, root=root), client)
    return examine(found, kind=kind, canaries=canaries, runs=runs, confidence=confidence, seed=seed)


def examine(
    target: Target,
    *,
    kind: str = "auto",
    canaries: int | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """Audit a target; the arguments are those of `audit`."""
    if kind not in ("auto", *get_args(Kind)):
        raise unknown("kind", "kind of audit", kind, ("auto", *get_args(Kind)))
    for name, value in (("canaries", canaries), ("runs", runs)):
        if value is not None and value < 1:
            raise HushError(f"{name}: found {value}; accepted: a whole number, 1 or more")
    statistics.check(target.delta, confidence)
    began = time.perf_counter()
    plan = target.plan
    repeats = _WORK // (2 * plan.rounds * plan.steps * (1 + plan.batch * target.model.layout.size // 30_000))
    if kind == "auto":
        kind = "two-datasets" if repeats >= _FEWEST_RUNS and canaries is None else "one-run"
    if kind == "two-datasets":
        planted, trained = 1, runs or min(max(repeats, _FEWEST_RUNS), _MOST_RUNS)
        absent, present = _two_datasets(target, trained, seed)
        lower = statistics.two_datasets(absent, present, target.delta, confidence)
    else:
        room = min(plan.samples, _MOST_CANARIES, 2 * _MOST_NUMBERS // target.model.layout.size)
        usual = max(1, min(plan.samples // 2, target.model.layout.size // 4))
        planted = min(canaries or usual, room)
        trained = runs or max(1, min(_MOST_CANARIES // planted, 2 * repeats))
        scores, included = _one_run(target, planted, trained, seed)
        lower = statistics.one_run(scores, included, target.delta, confidence)
        absent, present = scores[~included], scores[included]
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
        rounds=plan.rounds,
        steps=plan.rounds * plan.steps,
        noise=noise.SECURE if target.secure else noise.REPLAYABLE,
        seconds=time.perf_counter() - began,
    )


def _two_datasets(target: Target, runs: int, seed: int) -> tuple[Array, Array]:
    """Scores of the runs without and with a canary in the place of the last row, and raw releases if they are few."""
    plan, (x, y) = target.plan, (target.x, target.y)
    canary = plant(target.model, x[:-1], clip=plan.clip, relation=plan.relation, count=1, seed=seed)
    both_x = torch.cat([x[:-1], canary.instead_x, x[:-1], canary.x])
    both_y = torch.cat([y[:-1], canary.instead_y, y[:-1], canary.y])
    gaps = torch.cat([effects(target.model, start, canary, plan.clip).gaps for start in target.starts])
    gaps = nn.functional.normalize(gaps, dim=1)[torch.arange(plan.rounds) % len(gaps)]
    keep = plan.rounds * gaps.shape[1] <= _MOST_COLUMNS
    along: list[Array] = []
    raw: list[Array] = []
    for world in (0, 1):
        numbers = range(world * runs, (world + 1) * runs)
        seen = [
            ((part * gaps).sum(2).double().cpu().numpy(), part.flatten(1).double().cpu().numpy() if keep else None)
            for part in _releases(target, both_x, both_y, [world * plan.samples] * runs, numbers, seed)
        ]
        along.append(np.concatenate([one for one, _ in seen]))
        raw.append(np.concatenate([one for _, one in seen if one is not None]) if keep else np.empty((runs, 0)))
    if not any(np.isfinite(one).any() for one in along):
        raise HushError("audit: no released update is finite; a row without a finite gradient must add nothing")
    # The rest of the rows adds about the same in every run: it is learnt from the runs that choose the test.
    known = [_means(one[statistics.choosing(runs)]) for one in along]
    rest = 0.5 * (known[0] + known[1]) if plan.relation == "replace-one" else known[0]
    scores = [
        statistics.log_likelihood(one - rest, plan.rate, plan.steps, plan.noise_multiplier, plan.relation).sum(1)
        for one in along
    ]
    tables = [np.column_stack(parts) for parts in zip(scores, [one.sum(1) for one in along], raw, strict=True)]
    return tables[0], tables[1]


def _one_run(target: Target, canaries: int, runs: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Scores of canaries in the place of the last rows, and which of them were included, run after run."""
    plan, start = target.plan, target.starts[0]
    others = plan.samples - canaries
    x, y = target.x[:others], target.y[:others]
    planted = plant(target.model, x, clip=plan.clip, relation=plan.relation, count=canaries, seed=seed)
    effect = effects(target.model, start, planted, plan.clip)
    expected = plan.rounds * plan.steps * plan.rate
    rest = expected * (added(target.model, start, x, y, plan.clip) + effect.middle)
    # The best linear estimate of who is in, given that each is with probability one half.
    spread = plan.noise_multiplier**2 * plan.rounds * plan.steps / (0.5 * expected) ** 2
    gram = (effect.gaps @ effect.gaps.T).double()
    factor = torch.linalg.cholesky(gram + spread * torch.eye(canaries, dtype=gram.dtype, device=gram.device))
    scores, tosses = [], []
    for run in range(runs):
        included = rng(seed, "audit", "included", run).random(canaries) < 0.5
        mask = torch.from_numpy(included).to(x.device)
        chosen = torch.where(mask.reshape(-1, *[1] * (x.ndim - 1)), planted.x, planted.instead_x)
        rows_x = torch.cat([x, chosen])
        rows_y = torch.cat([y, torch.where(mask, planted.y, planted.instead_y)])
        (released,) = _releases(target, rows_x, rows_y, [0], [run], seed)
        along = (effect.gaps @ (released[0].sum(0) - rest)).double()
        scores.append(torch.cholesky_solve(along[:, None], factor)[:, 0].cpu().numpy())
        tosses.append(included)
    if not all(np.isfinite(one).all() for one in scores):
        raise HushError("audit: a released update is not finite; a row without a finite gradient must add nothing")
    return np.concatenate(scores), np.concatenate(tosses)


def _releases(
    target: Target, x: Tensor, y: Tensor, first_rows: Sequence[int], numbers: Sequence[int], seed: int
) -> Iterator[Tensor]:
    """The updates of every run, as sums of steps in units of the clip: runs x rounds x p, some runs at a time."""
    plan = target.plan
    size = target.model.layout.size
    a_job = 4 * size + 2 * plan.batch * math.prod(x.shape[1:])
    width = max(1, min(_MOST_NUMBERS // a_job, _MOST_JOBS) // plan.rounds)
    scale = -plan.batch / (target.lr * plan.clip)
    for start in range(0, len(numbers), width):
        jobs = [
            Job(target.starts[number % len(target.starts)], first, plan, target.lr, _source(target, run, number, seed))
            for first, run in zip(first_rows[start : start + width], numbers[start : start + width], strict=True)
            for number in range(plan.rounds)
        ]
        updates = torch.stack(train(target.model, x, y, jobs, target.physical_batch))
        yield scale * updates.reshape(-1, plan.rounds, size)


def _source(target: Target, run: int, round_number: int, seed: int) -> noise.Source:
    """Fresh batches and noise for each round of each run: an audit that draws them twice shows nothing."""
    if target.secure:
        return noise.secure()
    return noise.replayable(derive(seed, "audit", run), target.client, round_number + 1)


def _means(values: Array) -> Array:
    finite = np.isfinite(values)
    means: Array = np.where(finite, values, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
    return means


def _if_gaussian(absent: Array, present: Array, delta: float, confidence: float) -> float:
    """From the plain sums, which are nearer to normal than likelihoods are."""
    a, b = (one[:, 1] if one.ndim == 2 else one for one in (absent, present))
    return statistics.if_gaussian(a[np.isfinite(a)], b[np.isfinite(b)], delta, confidence)
