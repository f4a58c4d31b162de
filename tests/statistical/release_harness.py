"""One harness for every covered release: what is applied is compared with the event that the ledger is charged with.

The cases follow from the declarations: every option of every slot, each of its choices changed one at a time, and every
covered release that such a recipe declares. What is needed for a kind of release is one adapter, which runs the engine
and gives what was released in units of what one row may change in it (the declared bound). In these units

    released = sum over steps (sum over the rows drawn of a vector of norm at most 1 + noise multiplier * N(0, 1)),

where steps, rows drawn and noise multiplier are those of the `Cost` that the stage charges. The checks measure each
part: `noise` (scale, shape, tails, independence between clients, rounds and coordinates), `draws` (each number that is
drawn is added once, unchanged, up to 8 deviations), `bound` (extreme neighbouring rows) and `rate` (how often rows
enter).

Every statistical check has a false-alarm probability of at most `RARE` on correct code.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from hush.config import parse
from hush.data import from_arrays
from hush.data.client_data import with_persons
from hush.engines import client_round, enrolment
from hush.engines.run_ledgers import RunLedgers
from hush.engines.setup import Federation, prepare
from hush.engines.simulator import Simulator
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost
from hush.privacy.plan import UPDATE
from hush.privacy.schedule import ENROLMENT
from hush.privacy.source import Source
from hush.recipes import SLOTS, Recipe
from hush.recipes.check import incompatible
from hush.recipes.slots.closed_form import STATISTICS
from hush.recipes.slots.clusters import CHOICE, ClusterChoice
from hush.recipes.slots.protect import BELOW, CENTRE, NoPrivacy
from hush.recipes.slots.weight import COUNT
from hush.training.input_mean import bound
from hush.types import Task, TaskExtras, Update
from tests.support.declarations import single_changes
from tests.support.paths import ROOT

RARE = 1e-6
# Numbers of noise in a check: 20 % less or more noise is seen. `draws_of` sees any other scale at all.
FEWEST = 600
WIDTH, CLASSES, ROUNDS, CLIENTS = 16, 3, 4, 12
CLIP = 0.5
EXTREMES = (0.0, 1e-30, 1e-3, 1.0, 1e4, 1e18, math.inf, math.nan)
# Rounding of a difference of models, off which a sum is read.
SLACK = 1e-6
Seen = dict[tuple[int, int], Tensor]
Opening = Callable[[], Source]


@dataclass(frozen=True)
class Finding:
    """Whether a check passes, and what it saw."""

    ok: bool
    figure: str


@dataclass(frozen=True, eq=False)
class Case:
    """A covered release in one setting: the recipe, and how clients train.

    Where a person has more than one row, persons are protected: what is said of rows in this file then holds for them.
    """

    what: str
    setting: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    module: Callable[[], nn.Module] | None = None
    rows: int = 1

    def __str__(self) -> str:
        return f"{self.what}: {self.setting}"


class _Scaled(nn.Module):
    """A linear layer behind a factor that no rule of the fast path knows."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH))
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x * self.factor)
        return found


def _filled(module: nn.Module) -> nn.Module:
    """With small parameters that are the same each time."""
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for part in module.parameters():
            part.copy_(torch.from_numpy(0.1 * rng.normal(size=part.shape)))
    return module


def _two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


@cache
def cases() -> tuple[Case, ...]:
    """Every covered release of every option, and the model update on each path of training."""
    found: dict[object, Case] = {}
    for slot, rules in SLOTS.items():
        for rule, option in rules.items():
            for variant in single_changes(option):
                recipe = replace(Recipe(), **{slot: variant})
                if any(incompatible(recipe)) or isinstance(recipe.protect, NoPrivacy) or recipe.protect.shared_draws:
                    continue
                table = {slot: _table(rule, variant)}
                changed = [f"{k} = {v}" for k, v in table[slot].items() if k != "rule" and v != _usual(option).get(k)]
                name = ", ".join([f"{slot} = {rule}", *changed])
                for release in recipe.releases():
                    if release.covered:
                        # What does not change what clients are asked, nor how they train, changes no release.
                        key = (release.what, recipe.stage_table(ROUNDS).specs, recipe.protect, recipe.local)
                        found.setdefault(key, Case(release.what, name, table))
    paths = (
        Case(UPDATE, "per-example fast path", module=_two_layers),
        Case(UPDATE, "vmap fallback", module=_Scaled),
        Case(UPDATE, "discrete noise", changes={"privacy": {"discrete": True}}),
        Case(UPDATE, "weight decay", changes={"local": {"weight_decay": 0.01}}),
    )
    return (*found.values(), *paths, *_of_persons(tuple(found.values()), paths))


def _of_persons(slots: Sequence[Case], paths: Sequence[Case]) -> Iterator[Case]:
    """Each kind of release, and each path, with persons of three rows; several rows to a batch, where that differs."""
    kinds = {case.what: case for case in reversed(slots)}
    several = {"privacy": {"rows_per_person": 2}}
    for case in (*kinds.values(), *paths[:3]):
        yield replace(case, setting=f"{case.setting}, persons", rows=3)
    for case in (kinds[UPDATE], kinds[BELOW]):
        yield replace(case, setting=f"{case.setting}, persons, two rows each", rows=3, changes=several)


def _usual(option: Any) -> dict[str, Any]:
    return dataclasses.asdict(option())


def _table(rule: str, variant: Any) -> dict[str, Any]:
    fields = {k: v for k, v in dataclasses.asdict(variant).items() if v is not None and v != _usual(type(variant))[k]}
    # A choice in every round that has one, not in one of ten.
    return {"rule": rule, **fields, **({"every": 1} if hasattr(variant, "every") else {})}


def without_adapter() -> set[str]:
    """What is declared as covered and has no adapter: no check can look at it."""
    return {case.what for case in cases()} - set(ADAPTERS)


@dataclass(frozen=True)
class Run:
    """A federation on rows that the harness chose: each client's are `x[client]`, `y[client]`, person after person."""

    case: Case
    federation: Federation
    x: Tensor
    y: Tensor

    @cached_property
    def _arrays(self) -> dict[object, tuple[Tensor, Tensor]]:
        data = self.federation.data
        ends = data.bounds()[-1][2]
        x, y = torch.zeros(ends, WIDTH), torch.zeros(ends, dtype=torch.int64)
        for (first, end, _), own, labels in zip(data.bounds(), self.x, self.y, strict=True):
            x[first:end], y[first:end] = own, labels
        return {(self.federation.data_key(), data.phase(1)): (x, y)}

    def cohort(self) -> Simulator:
        """The clients, with ledgers of their own."""
        books = RunLedgers(self.federation.ledgers())
        return Simulator(self.federation, books, self._arrays)

    def cost(self, client: int, number: int) -> Cost | None:
        """What the ledger is charged with for the release in a round, if it is released there."""
        if self.federation.terms.stage_table.of[number] < 0:
            return None
        costs = self.federation.stage(client, number).round_costs
        return next((cost for cost in costs if cost.what == self.case.what), None)

    def clip(self, client: int, number: int) -> float:
        """The clip that a task names, or else the plan's."""
        return self.extras().clip or self.federation.stage(client, number).plan.clip

    def extras(self) -> TaskExtras:
        """What the server tells: a clip that is not the configured one, where it adapts, and an input mean."""
        protect = self.federation.recipe.protect
        adapts = protect.round_clip(protect.start(CLIP)) is not None
        mean = torch.full((WIDTH,), 0.01) if protect.centres_inputs else None
        return TaskExtras(clip=0.6 * CLIP if adapts else None, input_mean=mean)

    def tasks(self, number: int) -> list[Task]:
        """What the server sends in a round: models of which rows along `ones` fit one best and the other worst."""
        model, ask = self.federation.model, self.federation.terms.stage_table.at(number)
        models = torch.zeros(1, model.layout.size) if model.name != "custom" else model.start[None]
        if ask.choose:
            models = torch.zeros(2, model.layout.size)
            if self.case.what == CHOICE:
                models[0, :WIDTH], models[1, :WIDTH] = 50.0, -50.0
        return [
            Task(
                client=client,
                round=number,
                models=models,
                layout=model.layout,
                answer=model.layout,
                extras=self.extras(),
            )
            for client in range(len(self.x))
        ]

    def rounds(self) -> Iterator[int]:
        """Rounds in which it is released."""
        return (number for number in range(ROUNDS + 1) if self.cost(0, number) is not None)

    @property
    def samples(self) -> int:
        """The number of rows, or of persons where they are protected."""
        return self.x.shape[1] // self.case.rows


def _updates(run: Run) -> Seen:
    """-(update) * batch / (lr * clip): the sum of the steps' noised sums, in clips."""
    cohort, found = run.cohort(), {}
    for number in run.rounds():
        for update in cohort.answer(run.tasks(number)):
            if isinstance(update, Update):
                plan = run.federation.stage(update.client, number).plan
                scale = -plan.batch / (run.federation.config.local.lr * run.clip(update.client, number))
                if plan.whole_update:
                    scale = 1 / plan.clip
                found[update.client, number] = scale * update.vector.double()
    return found


def _quantiles(run: Run) -> Seen:
    """A row that is within the clip adds a half to the count, any other takes a half."""
    cohort, found = run.cohort(), {}
    for number in run.rounds():
        for work in cohort.accept(run.tasks(number))[0]:
            found[work.task.client, number] = work.side.releases[BELOW] / 0.5
    return found


def _losses(run: Run) -> Seen:
    """The noised sums, the least of which is the choice that is sent."""
    cohort, found = run.cohort(), {}
    unit = ClusterChoice(CHOICE, 0.0).bound(replace(run.federation.terms.shape, models=2))
    for number in run.rounds():
        with _heard(client_round, "noised_losses") as heard:
            works = cohort.accept(run.tasks(number))[0]
        for work, sums in zip(works, heard, strict=True):
            assert work.side.choice == int(sums.argmin()), "the choice is made of something else"
            found[work.task.client, number] = sums / unit
    return found


def _enrolment_reader(read: Callable[[enrolment.EnrolmentAnswer, int], Tensor]) -> Callable[[Run], Seen]:
    def adapter(run: Run) -> Seen:
        cohort = run.cohort()
        with _heard(enrolment, "enrolment_answer") as heard:
            cohort.enrol()
        return {(client, ENROLMENT): read(answer, run.samples) for client, answer in enumerate(heard)}

    return adapter


def _mean(answer: enrolment.EnrolmentAnswer, samples: int) -> Tensor:
    assert answer.mean is not None
    return answer.mean * samples / bound(WIDTH)


def _sums(run: Run) -> Seen:
    """The noised sums of any side release of a round, in units of its bound."""
    cohort, found = run.cohort(), {}
    for number in run.rounds():
        (release,) = [each for each in run.federation.terms.stage_table.at(number).sent if each.what == run.case.what]
        for work in cohort.accept(run.tasks(number))[0]:
            bound = release.bound(run.federation.terms.shape)
            found[work.task.client, number] = work.side.releases[release.what] / bound
    return found


ADAPTERS: Mapping[str, Callable[[Run], Seen]] = {
    UPDATE: _updates,
    BELOW: _quantiles,
    CHOICE: _losses,
    CENTRE: _enrolment_reader(_mean),
    STATISTICS: _sums,
    COUNT: _enrolment_reader(lambda answer, samples: torch.tensor([answer.count], dtype=torch.float64)),
}


def example() -> Case:
    """The side release of `examples/label_balance.py`."""
    spec = importlib.util.spec_from_file_location("label_balance_example", ROOT / "examples" / "label_balance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return Case("label counts", "weight = label_balance:LabelBalance", {"weight": module.LabelBalance()})


@contextmanager
def _heard(module: Any, name: str) -> Iterator[list[Any]]:
    """What a function of a module returns while it is called as usual."""
    real, heard = getattr(module, name), []

    def listening(*args: Any, **named: Any) -> Any:
        heard.append(real(*args, **named))
        return heard[-1]

    with patch.object(module, name, listening):
        yield heard


class _Quiet:
    """A source that draws its rows as another does, and no noise."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def uniform(self, size: int) -> Tensor:
        return self._source.uniform(size)

    def chosen(self, size: int, rate: float) -> Tensor:
        return self._source.chosen(size, rate)

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def discrete(self, size: int, sigma: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def keys(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def device_rng(self, device: torch.device) -> None:
        return None


class _Scripted(_Quiet):
    """A source whose noise is known beforehand: of eight deviations in each draw, and no number twice."""

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source)
        self._rng, self.drawn = np.random.default_rng(seed), []  # type: ignore[var-annotated]

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        self.drawn.append(torch.from_numpy(self._rng.uniform(-8.0, 8.0, size)))
        return self.drawn[-1].to(dtype)

    def discrete(self, size: int, sigma: int) -> Tensor:
        whole = torch.from_numpy(self._rng.integers(-8 * sigma, 8 * sigma, size))
        self.drawn.append(whole / sigma)
        return whole


@contextmanager
def sources(make: Callable[[Source], Source]) -> Iterator[None]:
    """Every source of the engine, seeded or secure, replaced by what is made of it."""
    seeded, shared, secure = noise.Seeded, noise.SharedSeeded, noise.Secure
    with (
        patch.object(noise, "Seeded", lambda *args: make(seeded(*args))),
        patch.object(noise, "SharedSeeded", lambda *args: make(shared(*args))),
        patch.object(noise, "Secure", lambda: make(secure())),
    ):
        yield


@cache
def _federation(case: Case, samples: int, batch: int, steps: int | None, source: str, lr: float) -> Federation:
    config: dict[str, dict[str, Any]] = {
        "data": {"clients": CLIENTS, "partition": "iid", "test_fraction": 0.5},
        "privacy": {"budgets": 4.0, "delta": 1e-5, "clip": CLIP, "noise": source},
        "local": {"batch_size": batch, "lr": lr, **({"steps": steps} if steps else {})},
        "recipe": dict(case.recipe) or {"name": "dp-fedavg"},
    }
    for key, changed in case.changes.items():
        config[key] = {**config[key], **changed}
    total = 2 * samples * CLIENTS * case.rows
    rows = np.random.default_rng(0).normal(size=(total, WIDTH)).astype(np.float32)
    dataset = from_arrays(rows, np.arange(total) % CLASSES, classes=CLASSES)
    if case.rows > 1:
        dataset = with_persons(dataset, np.arange(total) // case.rows)
    module = None if case.module is None else _filled(case.module())
    federation = prepare(parse({"seed": 1, "rounds": ROUNDS, **config}), dataset=dataset, module=module)
    if case.what != UPDATE or not federation.offers:
        return federation
    # As after enrolment: where counts are noised, batches are planned from another number than that of the rows.
    return federation.counted([samples if batch == samples else samples + 9] * CLIENTS)


def run_of(
    case: Case,
    samples: int,
    batch: int,
    rows: tuple[Tensor, Tensor],
    *,
    steps: int | None = None,
    source: str = "seeded",
    lr: float = 1e-3,
) -> Run:
    """The case on these rows and labels, clients x samples; of persons, all rows are alike."""
    x, y = (part.repeat_interleave(case.rows, 1) for part in rows)
    return Run(case, _federation(case, samples, batch, steps, source, lr), x, y)


def observed(run: Run) -> Seen:
    """What was released, in units of what one row may change in it, by client and round."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*slow path", UserWarning)
        seen = ADAPTERS.get(run.case.what, _sums)(run)
    assert seen, f"{run.case} was not released"
    return seen


def _silent(samples: int) -> tuple[Tensor, Tensor]:
    """Rows that are not a number: they add nothing, or the same whatever the noise."""
    return torch.full((CLIENTS, samples, WIDTH), math.nan), torch.zeros(CLIENTS, samples, dtype=torch.int64)


def residuals(case: Case, source: str, steps: int = 3, samples: int = 6) -> Tensor:
    """The noise in every release over what is declared: clients x rounds x coordinates, standard normal if true.

    Where these are few, the rounds of several runs follow each other.
    """
    run = run_of(case, samples, samples, _silent(samples), steps=steps, source=source)
    with sources(_Quiet):
        exact = observed(run)
    found: list[Tensor] = []
    while sum(part.numel() for part in found) < FEWEST:
        noised = observed(_reseeded(run, len(found)))
        parts = {key: (noised[key] - exact[key]) / _deviation(run, *key) for key in noised}
        rounds = sorted({number for _, number in parts})
        found += [torch.stack([parts[client, number] for client in range(CLIENTS)]) for number in rounds]
    return torch.stack(found, dim=1)


def _reseeded(run: Run, seed: int) -> Run:
    config = run.federation.config.model_copy(update={"seed": seed})
    return replace(run, federation=replace(run.federation, config=config))


def _deviation(run: Run, client: int, number: int) -> float:
    cost = run.cost(client, number)
    assert cost is not None
    return cost.noise * math.sqrt(cost.steps)


def noise_of(case: Case, source: str) -> Finding:
    """The noise has the declared scale, the shape and tails of a normal, and is independent along every axis.

    Scale and shape also of the first and of the last coordinate; independence between clients, rounds and coordinates.
    """
    drawn = residuals(case, source)
    parts = [part.flatten().numpy() for part in (drawn, drawn[..., :1], drawn[..., -1:])]
    alike = [
        _products(drawn, axis, lag).numpy()
        for axis, length in enumerate(drawn.shape)
        for lag in sorted({1, length // 2} - {0})
        if length > lag
    ]
    p = min(*map(scale_p, parts), *map(shape_p, parts), *map(product_p, alike))
    scale, product = float(drawn.square().mean().sqrt()), max(abs(float(each.mean())) for each in alike)
    return Finding(p > RARE, f"noise of {scale:.2f} times the declared scale, mean product {product:.2f} of two")


def scale_p(z: np.ndarray) -> float:
    """The probability of so large or small a sum of squares of standard normals."""
    energy = float((z**2).sum())
    return float(2 * min(stats.chi2.cdf(energy, len(z)), stats.chi2.sf(energy, len(z))))


def shape_p(z: np.ndarray) -> float:
    """The least probability of the Kolmogorov-Smirnov distance and of the numbers beyond 3, 4 and 5 deviations."""
    return min(float(stats.kstest(z, "norm").pvalue), tails_p({k: int((abs(z) > k).sum()) for k in (3, 4, 5)}, len(z)))


def tails_p(beyond: Mapping[int, int], draws: int) -> float:
    """The least probability of so many or few numbers beyond each count of deviations, shared between them."""
    found = 1.0
    for k, count in beyond.items():
        share = 2 * stats.norm.sf(k)
        two_sided = 2 * min(stats.binom.cdf(count, draws, share), stats.binom.sf(count - 1, draws, share))
        found = min(found, float(two_sided))
    return found


def _products(drawn: Tensor, axis: int, lag: int) -> Tensor:
    """Products of numbers that are `lag` apart on an axis, each number in one product alone."""
    along = drawn.movedim(axis, 0)
    starts = [k for k in range(len(along) - lag) if (k // lag) % 2 == 0]
    return (along[starts] * along[[k + lag for k in starts]]).flatten()


def product_p(products: np.ndarray) -> float:
    """An upper bound (Chernoff's) on the probability of so large a mean of products of two standard normals each."""
    mean = abs(float(products.mean()))
    # E exp(t XY) = (1 - t^2)^(-1/2), which is least against exp(t mean) where t^2 mean + t - mean = 0.
    t = 0.0 if mean == 0 else (math.sqrt(1 + 4 * mean**2) - 1) / (2 * mean)
    return min(1.0, 2 * math.exp(-len(products) * (t * mean + 0.5 * math.log1p(-(t**2)))))


def draws_of(case: Case, source: str) -> Finding:
    """Each release adds its source's numbers, scaled as declared: fresh ones in each step, and none cut short."""
    samples, made = 6, []  # type: ignore[var-annotated]

    def scripted(real: Source) -> Source:
        made.append(_Scripted(real, len(made)))
        return made[-1]

    run = run_of(case, samples, samples, _silent(samples), steps=3, source=source)
    with sources(scripted):
        noised = observed(run)
    with sources(_Quiet):
        exact = observed(run)
    worst = 0.0
    # Sources are made client by client, round by round; releases that draw nothing leave theirs unused.
    used = [each for each in made if each.drawn]
    if len(used) != len(noised):
        return Finding(False, f"{len(used)} sources for {len(noised)} releases")
    for (key, value), each in zip(sorted(noised.items(), key=lambda item: item[0][::-1]), used, strict=True):
        cost = run.cost(*key)
        assert cost is not None
        own = [drawn for drawn in each.drawn if drawn.numel() == value.numel()]
        if len(own) != cost.steps:
            return Finding(False, f"{len(own)} draws for {cost.steps} noisy steps")
        wanted = cost.noise * torch.stack(own).sum(0)
        worst = max(worst, float((value - exact[key] - wanted).abs().max() / (cost.noise * 8.0)))
    return Finding(worst < 1e-3, f"noise differs from the source by up to {worst:.2g} of its range")


def bound_of(case: Case) -> Finding:
    """A row, however extreme, moves the release by at most the declared bound, and the loudest by all of it."""
    worst, samples = 0.0, 5
    for labels in range(CLASSES):
        x, y = _neighbours(samples, labels)
        with sources(_Quiet):
            with_row = observed(run_of(case, samples, samples, (x, y), steps=1, lr=1.0))
            fewer = x[:, :-1], y[:, :-1]
            without = observed(run_of(case, samples - 1, samples - 1, fewer, steps=1, lr=1.0))
        for key, value in with_row.items():
            moved = float((value - without[key]).norm())
            worst = math.inf if math.isnan(moved) else max(worst, moved)
    return Finding(0.99 <= worst <= 1.0 + SLACK, f"one row changes it by {worst:.6g} times the declared bound")


def _neighbours(samples: int, label: int) -> tuple[Tensor, Tensor]:
    """Small rows, the last of which is extreme: a scale for each client, along `ones` or at random."""
    rng = np.random.default_rng(label)
    x = torch.from_numpy(0.1 * rng.normal(size=(CLIENTS, samples, WIDTH))).float()
    last = torch.ones(CLIENTS, WIDTH)
    last[1::3] = torch.from_numpy(rng.normal(size=(len(last[1::3]), WIDTH))).float()
    scales = torch.tensor([EXTREMES[c % len(EXTREMES)] for c in range(CLIENTS)])
    x[:, -1] = last * scales[:, None]
    y = torch.from_numpy(rng.integers(0, CLASSES, (CLIENTS, samples)))
    y[:, -1] = label
    return x, y


def rate_of(case: Case, source: str, samples: int = 80, batch: int = 32) -> Finding:
    """Rows enter as often as is declared: the total over clients, rounds and steps, and how it spreads."""
    x, y = torch.full((CLIENTS, samples, WIDTH), 2.0), torch.zeros(CLIENTS, samples, dtype=torch.int64)
    run = run_of(case, samples, batch, (x, y), source=source, lr=2e-4)
    with sources(_Quiet):
        seen = observed(run)
    found = np.array([float(value.norm()) for value in seen.values()])
    trials, means, variances = np.array([_entries(run, samples, *key) for key in seen]).T
    figure = f"{found.sum():.0f} rows were sampled, {means.sum():.0f} are declared"
    drawn = variances > 0
    # A row adds a little less than it may, which leaves room for rounding.
    if not np.allclose(found[~drawn], means[~drawn], rtol=5e-3):
        return Finding(False, figure)
    if not drawn.any():
        return Finding(True, figure)
    (rate,) = set((means[drawn] / trials[drawn]).round(12))
    total, tried = round(found[drawn].sum()), round(trials[drawn].sum())
    p = 2 * min(stats.binom.cdf(total, tried, rate), stats.binom.sf(total - 1, tried, rate))
    energy = float(((found - means)[drawn] ** 2 / variances[drawn]).sum())
    p = min(p, 2 * min(stats.chi2.cdf(energy, drawn.sum()), stats.chi2.sf(energy, drawn.sum())))
    return Finding(bool(p > RARE), figure)


def _entries(run: Run, samples: int, client: int, number: int) -> tuple[float, float, float]:
    """How many rows could enter, and the mean and the variance of how many do, by the declared event."""
    cost = run.cost(client, number)
    assert cost is not None
    if cost.kind == "poisson-gaussian":
        mean = cost.steps * cost.rate * samples
        return cost.steps * samples, mean, mean * (1 - cost.rate)
    every = float(cost.steps * (cost.batch if cost.kind == "fixed-gaussian" else samples))
    return every, every, 0.0


CHECKS: Mapping[str, Callable[[Case, str], Finding]] = {
    "noise": noise_of,
    "draws": draws_of,
    "bound": lambda case, source: bound_of(case),
    "rate": rate_of,
}


def _checked(kind: str, case: Case) -> Callable[[], Finding]:
    """The check with seeded and with secure sources: the one that fails, or the last."""

    def check() -> Finding:
        found = Finding(True, "")
        for source in ("seeded",) if kind == "bound" else ("seeded", "secure"):
            found = CHECKS[kind](case, source)
            if not found.ok:
                break
        return found

    return check


def releases() -> dict[str, Callable[[], Finding]]:
    """Every check of every case, by name."""
    return {f"{kind} of {case}": _checked(kind, case) for case in cases() for kind in CHECKS}
