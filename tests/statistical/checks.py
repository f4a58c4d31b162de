"""Checks of the live pipeline: each looks at what training really does and says whether that keeps the promise.

They go through public seams only (`train`, `PrivacyPlan`, `noise`, the engine, the accountant), so that a bug planted
anywhere below shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from hush.config import Config, ModelConfig, parse
from hush.data import from_arrays
from hush.engines import answer
from hush.engines.audit import examine
from hush.engines.audit_target import Target, worst_case
from hush.engines.books import Books
from hush.engines.canary import effects, plant
from hush.engines.cohort import Cohort
from hush.engines.federation import prepare
from hush.local.train import Job, train
from hush.models import Model, adopt, build
from hush.privacy import audit as statistics
from hush.privacy import gaussian, noise
from hush.privacy.course import Aside, Ask, drafted
from hush.privacy.course import calibrated as calibrated_course
from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan, calibrated
from hush.recipes import Recipe
from hush.types import Policy, Relation, Task, Update

RARE = 1e-6
CONFIDENCE = 0.999
CLAIM = 2.0
# Enough to see halved noise for 99 seeds in 100 at this confidence: `power` measures it.
RUNS = 9000
CHOICES = 2000


@dataclass(frozen=True)
class Finding:
    ok: bool
    figure: str


def plan(samples: int, batch: int, *, clip: float = 1.0, z: float = 0.0, epochs: int = 1) -> PrivacyPlan:
    return PrivacyPlan(samples, batch, epochs, 1, clip, z, "add-remove", "pld")


def claimed(relation: Relation, rounds: int) -> PrivacyPlan:
    """Full batches of eight rows that keep the claim."""
    return calibrated(Policy(CLAIM, 1e-3, relation), samples=8, batch=8, epochs=1, rounds=rounds, clip=1.0)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def noise_scale() -> Finding:
    """The noise of each part of the model has the planned scale; clip and batch are not 1."""
    model = build(ModelConfig(name="logreg"), (100,), 2, seed=1)
    x, y, lr = numbers(8, 100), torch.arange(8) % 2, 0.5
    made = plan(8, 8, clip=2.0, z=1.5)
    jobs = [Job(model.start, 0, made, lr, noise.replayable(1, 0, number)) for number in range(1000)]
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
    model = build(ModelConfig(name="logreg"), (4,), 3, seed=1)
    scales = (0.0, 1e-3, 1.0, 1e4, 1e18, math.inf, math.nan)
    clip, pairs, x, y, jobs = 0.3, 20 * len(scales), [], [], []
    for number in range(pairs):
        rows = 2 + number % 5
        x.append(numbers(rows, 4, seed=number) * (1e-3 if number % 3 else 1.0))
        x[-1][-1] *= scales[number % len(scales)]
        y.append(torch.from_numpy(np.random.default_rng(number).integers(0, 3, rows)))
        first = sum(len(part) for part in x[:-1])
        jobs += [Job(model.start, first, plan(n, n, clip=clip), 1.0, noise.secure()) for n in (rows - 1, rows)]
    updates = train(model, torch.cat(x), torch.cat(y), jobs)
    sums = torch.stack([job.plan.batch * update for job, update in zip(jobs, updates, strict=True)]).double()
    if not bool(sums.isfinite().all()):
        return Finding(False, "one row makes the sum not a number")
    moved = float((sums[1::2] - sums[::2]).norm(dim=1).max()) / clip
    return Finding(moved <= 1.0 + 1e-4, f"one row moves the sum by {moved:.3g} clips")


@cache
def _eight_rows() -> Target:
    return worst_case(samples=8, batch=2)


def _entries(runs: int = 1000) -> tuple[PrivacyPlan, Tensor]:
    """How often each row entered a batch of an epoch, read off noiseless updates: runs x rows."""
    target = _eight_rows()
    made = replace(target.plan, clip=0.5, noise_multiplier=0.0)
    jobs = [Job(target.model.start, 0, made, 1e-3, noise.replayable(2, 0, number)) for number in range(runs)]
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
    return Finding(ok, f"a row is used {found[0]:.2f} times an epoch with variance {found[1]:.2f} ({planned})")


def divisor() -> Finding:
    """A row counts the same whatever else is in its batch: the divisor is public."""
    _, counts = _entries()
    low, high = (float(x) for x in torch.quantile(counts[counts > 0.05], torch.tensor([0.001, 0.999])))
    whole = float((counts - counts.round()).abs().max())
    return Finding(whole < 0.02, f"a row counts {low:.2f} to {high:.2f} times, up to {whole:.2f} off a whole number")


def empty_batches() -> Finding:
    """A step on an empty batch is noised like any other: the energy of an epoch's noise is the planned one."""
    model = build(ModelConfig(name="logreg"), (80,), 2, seed=1)
    made = plan(40, 1, clip=1.0, z=1.0)
    silent = torch.full((40, 80), math.nan)
    jobs = [Job(model.start, 0, made, 0.1, noise.replayable(3, 0, number)) for number in range(100)]
    updates = torch.stack(train(model, silent, torch.zeros(40, dtype=torch.long), jobs)).double()
    ratio = float(updates.square().sum()) / (100 * made.update_noise(0.1, model.layout.size))
    return Finding(abs(ratio - 1) < 5 * math.sqrt(2 / updates.numel()), f"{ratio:.2f} of the planned noise energy")


def streams() -> Finding:
    """Noise differs between rounds, clients and runs: pairs of silent updates that the engine releases."""
    worst = max(_likeness("replayable"), _likeness("secure"))
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
    cohort = Cohort(federation, Books(federation.ledgers()))
    model = federation.model
    answers = [
        answer
        for number in (1, 2)
        for answer in cohort.answer(
            [Task(client, number, model.start[None], model.layout, model.layout) for client in (0, 1)]
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
    source = _Counting(noise.replayable(4, 0, 1))
    train(target.model, target.x, target.y, [Job(target.model.start, 0, target.plan, 0.1, source)])
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


def power(seeds: int = 200) -> float:
    """The share of seeds for which an audit of `RUNS` refutes the claim where noise is halved, on Gaussian scores."""
    move = 2.0 / gaussian.noise_for(CLAIM, 1e-3)
    caught = 0
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).normal(size=(2, RUNS))
        caught += statistics.two_datasets(drawn[0], move + drawn[1], 1e-3, CONFIDENCE) > CLAIM
    return caught / seeds


def _chooser(model: Model, x: Tensor, y: Tensor, source: Source) -> answer.Client:
    return answer.Client(Recipe(), Config(), model, x, y, 0, source)


def audit_choice() -> Finding:
    """The audit of a cluster choice: a row that turns the choice is there or not."""
    bound, slope = Config().privacy.loss_clip, 50.0
    # One row fits model 0 and not model 1, by the whole bound. The other one fits model 1 better, by half of it.
    x, y = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.zeros(2, dtype=torch.int64)
    tilt = math.log(math.exp(0.5 * bound + math.log(2.0)) - 1.0)
    models = torch.tensor([[slope, 0.0, 0.0, tilt], [-slope, 0.0, 0.0, 0.0]])
    model = adopt(nn.Linear(2, 2, bias=False), (2,))
    ask = Ask(train=False, choose=True, asides=(Aside(answer.CHOICE, 1.0),))
    (stage,) = calibrated_course(drafted([ask], [1], plan(2, 2)), Policy(CLAIM, 1e-3)).stages
    task = Task(0, 1, models, model.layout, model.layout)

    def choices(n: int) -> np.ndarray:
        clients = (_chooser(model, x[:n], y[:n], noise.replayable(5, n, run)) for run in range(CHOICES))
        return np.array([answer.choose(task, stage, client) for client in clients], float)

    lower = statistics.two_datasets(choices(1), choices(2), 1e-3, CONFIDENCE)
    return Finding(lower <= CLAIM, _against(lower, CLAIM))


CHECKS: dict[str, Callable[[], Finding]] = {
    check.__name__: check
    for check in (
        noise_scale, clip_bound, inclusion, divisor, empty_batches, streams, accounted, relation,
        audit, audit_replaced, audit_alternating, audit_choice,
    )
}  # fmt: skip
