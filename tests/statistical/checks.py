"""Checks of the live pipeline: each looks at what training really does and says whether that keeps the promise.

They go through public seams only (`train`, `PrivacyPlan`, `noise`, the engine, the accountant), so that a bug planted
anywhere below shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from hush.auditing import statistics as statistics
from hush.auditing.canaries import effects, plant
from hush.auditing.run import examine
from hush.auditing.target import Target, target
from hush.auditing.trade_off import Planned
from hush.config import ModelConfig, parse
from hush.data import from_arrays
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import prepare
from hush.engines.simulator import Simulator
from hush.models import build_model
from hush.privacy import noise
from hush.privacy.accounting import gaussian
from hush.privacy.accounting.cost import Cost
from hush.privacy.plan import PrivacyPlan, calibrated
from hush.privacy.source import Source
from hush.training.train import Job, train
from hush.types import Policy, Relation, Task, Update
from tests.statistical.release_harness import RARE, Finding, releases
from tests.statistical.source_checks import SOURCE_CHECKS
from tests.support.candidates import planned, scores_of_candidates
from tests.support.worst_case import worst_case

CONFIDENCE = 0.999
CLAIM = 2.0
# Enough to see halved noise for 99 seeds in 100 at this confidence: `power` measures it.
RUNS = 1000
# Enough to see a release without any noise.
REPEATS = 600
# Sections of a config with which a client releases more than its updates.
BESIDE: dict[str, dict[str, Any]] = {
    "cluster choice": {"recipe": {"assign": {"rule": "by-loss", "clusters": 2}}},
    "clip quantile": {"recipe": {"protect": {"rule": "dp-sgd", "clip": "adaptive"}}},
    "mean of the inputs": {"recipe": {"protect": {"rule": "dp-sgd", "centre": 0.3}}},
    "number of training samples": {"recipe": {"weight": {"rule": "samples", "counts": "noisy"}}},
    "sufficient statistics": {"recipe": {"name": "closed-form"}},
    "evaluation on held-out rows": {"recipe": {"name": "dp-fedavg"}, "evaluation": {"share": 0.2, "every": 1}},
}


def plan(samples: int, batch: int, *, clip: float = 1.0, z: float = 0.0, epochs: int = 1) -> PrivacyPlan:
    return PrivacyPlan(
        samples=samples,
        batch=batch,
        epochs=epochs,
        rounds=1,
        clip=clip,
        noise_multiplier=z,
        relation="add-remove",
        accountant="pld",
    )


def claimed(relation: Relation, rounds: int) -> PrivacyPlan:
    """Full batches of eight rows that keep the claim."""
    return calibrated(Policy(CLAIM, 1e-3, relation), samples=8, batch=8, epochs=1, rounds=rounds, clip=1.0)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def noise_scale() -> Finding:
    """The noise of each part of the model has the planned scale; clip and batch are not 1."""
    model = build_model(ModelConfig(name="logreg"), (100,), 2, seed=1)
    x, y, lr = numbers(8, 100), torch.arange(8) % 2, 0.5
    made = plan(8, 8, clip=2.0, z=1.5)
    jobs = [
        Job(vector=model.start, first_row=0, plan=made, lr=lr, source=noise.Seeded(1, 0, number))
        for number in range(1000)
    ]
    (clean,) = train(model, x, y, [replace(jobs[0], plan=replace(made, noise_multiplier=0.0))])
    drawn = (torch.stack(train(model, x, y, jobs)) - clean) / (lr * 1.5 * 2.0 / 8)
    worst, ok = 1.0, True
    for part in drawn.double().split(model.layout.sizes, dim=1):
        energy, count = float(part.square().sum()), part.numel()
        ok = ok and bool(2 * min(stats.chi2.cdf(energy, count), stats.chi2.sf(energy, count)) > RARE)
        worst = min(worst, math.sqrt(energy / count))
    return Finding(ok, f"noise of {worst:.2f} times the planned scale")


def clip_bound() -> Finding:
    """Adding a row, however extreme, moves the sum by at most the clip."""
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    scales = (0.0, 1e-3, 1.0, 1e4, 1e18, math.inf, math.nan)
    clip, pairs, x, y, jobs = 0.3, 20 * len(scales), [], [], []
    for number in range(pairs):
        rows = 2 + number % 5
        x.append(numbers(rows, 4, seed=number) * (1e-3 if number % 3 else 1.0))
        x[-1][-1] *= scales[number % len(scales)]
        y.append(torch.from_numpy(np.random.default_rng(number).integers(0, 3, rows)))
        first = sum(len(part) for part in x[:-1])
        jobs += [
            Job(vector=model.start, first_row=first, plan=plan(n, n, clip=clip), lr=1.0, source=noise.Secure())
            for n in (rows - 1, rows)
        ]
    updates = train(model, torch.cat(x), torch.cat(y), jobs)
    sums = torch.stack([job.plan.batch * update for job, update in zip(jobs, updates, strict=True)]).double()
    if not bool(sums.isfinite().all()):
        return Finding(False, "one row makes the sum NaN")
    moved = float((sums[1::2] - sums[::2]).norm(dim=1).max()) / clip
    return Finding(moved <= 1.0 + 1e-4, f"one row changes the sum by {moved:.3g} times the clipping norm")


@cache
def _eight_rows() -> Target:
    return worst_case(samples=8, batch=2)


def _entries(runs: int = 1000) -> tuple[PrivacyPlan, Tensor]:
    """How often each row entered a batch of an epoch, read off noiseless updates: runs x rows."""
    target = _eight_rows()
    made = replace(target.plan, clip=0.5, noise_multiplier=0.0)
    jobs = [
        Job(vector=target.model.start, first_row=0, plan=made, lr=1e-3, source=noise.Seeded(2, 0, number))
        for number in range(runs)
    ]
    updates = torch.stack(train(target.model, target.x, target.y, jobs)).reshape(runs, 2, -1)
    along = (updates[:, 0] - updates[:, 1]) * math.sqrt(0.5) * made.batch / (1e-3 * made.clip)
    return made, (along @ target.x.T) * torch.where(target.y == 0, 1.0, -1.0)


def inclusion() -> Finding:
    """Rows enter batches at the planned rate and independently: the mean, and two variances, of their counts."""
    made, counts = _entries()
    mean, one = made.steps * made.rate, made.steps * made.rate * (1 - made.rate)
    found = float(counts.mean()), float(counts.var()), float(counts.sum(1).var())
    size = counts.numel()
    ok = (
        abs(found[0] - mean) < 5 * math.sqrt(one / size)
        and abs(found[1] / one - 1) < 5 * math.sqrt(3 / size)
        and abs(found[2] / (one * made.samples) - 1) < 5 * math.sqrt(3 / len(counts))
    )
    planned = f"planned {mean:.2f} and {one:.2f}"
    return Finding(ok, f"a row is used {found[0]:.2f} times per epoch with variance {found[1]:.2f} ({planned})")


def divisor() -> Finding:
    """A row counts the same whatever else is in its batch: the divisor is public."""
    _, counts = _entries()
    low, high = (float(x) for x in torch.quantile(counts[counts > 0.05], torch.tensor([0.001, 0.999])))
    whole = float((counts - counts.round()).abs().max())
    return Finding(whole < 0.02, f"a row counts {low:.2f} to {high:.2f} times, up to {whole:.2f} away from an integer")


def empty_batches() -> Finding:
    """A step on an empty batch is noised like any other: the energy of an epoch's noise is the planned one."""
    model = build_model(ModelConfig(name="logreg"), (80,), 2, seed=1)
    made = plan(40, 1, clip=1.0, z=1.0)
    silent = torch.full((40, 80), math.nan)
    jobs = [
        Job(vector=model.start, first_row=0, plan=made, lr=0.1, source=noise.Seeded(3, 0, number))
        for number in range(100)
    ]
    updates = torch.stack(train(model, silent, torch.zeros(40, dtype=torch.long), jobs)).double()
    ratio = float(updates.square().sum()) / (100 * made.update_noise(0.1, model.layout.size))
    return Finding(abs(ratio - 1) < 5 * math.sqrt(2 / updates.numel()), f"{ratio:.2f} of the planned noise energy")


def streams() -> Finding:
    """Noise differs between rounds, clients and runs: pairs of silent updates that the engine releases."""
    worst = max(_likeness("seeded"), _likeness("secure"))
    return Finding(worst < 0.3, f"correlation {worst:.2f} between the noise of two updates")


def _likeness(source: str) -> float:
    dataset = from_arrays(np.zeros((40, 300), np.float32), np.arange(40) % 2)
    config = parse(
        {
            "rounds": 2,
            "data": {"clients": 2, "partition": "iid", "test_fraction": 0.2},
            "privacy": {"noise": source},
            "local": {"batch_size": 16},
            "recipe": {"name": "dp-fedavg"},
        }
    )
    federation = prepare(config, dataset=dataset, module=nn.Linear(300, 2, bias=False))
    cohort = Simulator(federation, RunLedgers(federation.ledgers()))
    model = federation.model
    answers = [
        answer
        for number in (1, 2)
        for answer in cohort.answer(
            [
                Task(client=client, round=number, models=model.start[None], layout=model.layout, answer=model.layout)
                for client in (0, 1)
            ]
        )
    ]
    released = torch.stack([answer.vector for answer in answers if isinstance(answer, Update)])
    assert len(released) == 4
    return float((torch.corrcoef(released) - torch.eye(4)).abs().max())


class _Counting:
    """A source that counts how often noise is drawn."""

    def __init__(self, source: Source) -> None:
        self._source, self.noised = source, 0

    def uniform(self, size: int) -> Tensor:
        return self._source.uniform(size)

    def chosen(self, size: int, rate: float) -> Tensor:
        return self._source.chosen(size, rate)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        self.noised += 1
        return self._source.normal(size, dtype)


def accounted() -> Finding:
    """The event has as many steps as training takes, at the plan's rate and noise."""
    target = _eight_rows()
    source = _Counting(noise.Seeded(4, 0, 1))
    job = Job(vector=target.model.start, first_row=0, plan=target.plan, lr=0.1, source=source)  # type: ignore[arg-type]
    train(target.model, target.x, target.y, [job])
    cost = target.plan.cost(1)
    ok = (cost.steps, cost.rate, cost.noise) == (source.noised, 0.25, target.plan.noise_multiplier)
    return Finding(ok, f"{source.noised} noisy steps, {cost.steps} accounted")


def relation() -> Finding:
    """Calibrated noise keeps the budget under its relation, by the closed form of the plain Gaussian."""
    worst = 0.0
    moves: dict[Relation, float] = {"add-remove": 1.0, "replace-one": 2.0}
    for kind, moved in moves.items():
        made = claimed(kind, 3)
        worst = max(worst, gaussian.epsilon_of(made.noise_multiplier / (moved * math.sqrt(3)), 1e-3))
    return Finding(worst <= CLAIM * (1 + 1e-6), f"epsilon {worst:.2f} for a budget of {CLAIM:.2f}")


def _audited(target: Target) -> Finding:
    found = examine(target, kind="two-datasets", runs=RUNS, confidence=CONFIDENCE, seed=1)
    return Finding(not found.refuted, _against(found.epsilon_lower, found.epsilon_claimed))


def _against(lower: float, claimed: float) -> str:
    return f"epsilon is at least {lower:.2f} against a claim of {claimed:.2f}"


def _audit(kind: Relation) -> Finding:
    return _audited(worst_case(epsilon=CLAIM, relation=kind))


def audit() -> Finding:
    """The audit of one full-batch step, a row added or removed."""
    return _audit("add-remove")


def audit_replaced() -> Finding:
    """The audit of one full-batch step, a row replaced."""
    return _audit("replace-one")


def audit_alternating() -> Finding:
    """The audit of two rounds in which the server sends two models: the canary is fitted by the second one."""
    target = worst_case(epsilon=CLAIM, rounds=2)
    clip, start = target.plan.clip, target.model.start
    canary = plant(target.model, target.x[:-1], clip=clip, relation="add-remove", count=1, seed=1)
    fitted = start - 50.0 * effects(target.model, start, canary, clip).gaps[0]
    return _audited(replace(target, starts=torch.stack([start, fitted])))


def power(seeds: int = 200, runs: int = RUNS) -> float:
    """The share of seeds for which an audit of `RUNS` refutes the claim where noise is halved, on Gaussian scores."""
    noise = gaussian.noise_for(CLAIM, 1e-3)
    cost = Cost(what="model update", kind="gaussian", noise=noise, steps=1)
    limit = Planned(costs=(cost,), delta=1e-3, relation="add-remove").curve()
    caught = 0
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).normal(size=(2, runs))
        found = statistics.two_datasets(drawn[0], 2.0 / noise + drawn[1], 1e-3, CONFIDENCE)
        caught += found.refutes(limit)
    return caught / seeds


def releasing(sections: dict[str, Any]) -> Target:
    """One full-batch round on 16 rows, with these sections of a config, to be audited."""
    rows = numbers(64, 12, seed=6)
    config = parse(
        {
            "rounds": 1,
            "data": {"clients": 2, "partition": "iid", "test_fraction": 0.5},
            "privacy": {"budgets": CLAIM, "delta": 1e-3},
            "local": {"batch_size": 16, "lr": 0.01},
            **sections,
        }
    )
    dataset = from_arrays(rows.numpy(), np.arange(64) % 2, classes=2)
    return target(prepare(config, dataset=dataset))


def _audited_beside(name: str) -> Finding:
    """The audit of all releases of such a round together."""
    audited = releasing(BESIDE[name])
    found = examine(audited, kind="two-datasets", runs=REPEATS, confidence=CONFIDENCE, seed=1)
    assert not [each for each in found.releases if each.audited < each.times]
    return Finding(not found.refuted, _against(found.epsilon_lower, found.epsilon_claimed))


def audit_choice() -> Finding:
    """The audit of a cluster choice and an update: a row that turns the choice is there or not."""
    return _audited_beside("cluster choice")


def audit_quantile() -> Finding:
    """The audit of a clip quantile and an update."""
    return _audited_beside("clip quantile")


def audit_mean() -> Finding:
    """The audit of a mean of the inputs, released at enrolment, and an update."""
    return _audited_beside("mean of the inputs")


def audit_count() -> Finding:
    """The audit of a noised count, released at enrolment, and an update."""
    return _audited_beside("number of training samples")


def audit_statistics() -> Finding:
    """The audit of sufficient statistics, which are released in place of an update."""
    return _audited_beside("sufficient statistics")


def audit_evaluation() -> Finding:
    """The audit of an evaluation on held-out rows, and an update."""
    return _audited_beside("evaluation on held-out rows")


def audit_candidates() -> Finding:
    """The audit of the scores of a sweep's candidates."""
    plan = planned()
    found = statistics.two_datasets(*scores_of_candidates(REPEATS, 1), plan.delta, CONFIDENCE)
    scale = plan.least_refuted(found.refutes)
    return Finding(scale >= 1.0, _against(plan.epsilon(scale) if scale < math.inf else 0.0, plan.epsilon()))


CHECKS: dict[str, Callable[[], Finding]] = {
    check.__name__: check
    for check in (
        noise_scale, clip_bound, inclusion, divisor, empty_batches, streams, accounted, relation,
        audit, audit_replaced, audit_alternating, audit_choice, audit_quantile, audit_mean, audit_count,
        audit_statistics, audit_evaluation, audit_candidates,
    )
}  # fmt: skip
RELEASES: dict[str, Callable[[], Finding]] = releases()
# By name, for the bugs that are planted: the pipeline passes those of releases and sources in `test_releases.py`.
EVERY: dict[str, Callable[[], Finding]] = {**CHECKS, **SOURCE_CHECKS, **RELEASES}
