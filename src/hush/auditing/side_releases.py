"""The side releases of an audited client, computed by the functions that a run uses.

Under add-remove, a removed row is really absent: it is not counted, not sampled, and has no loss. (In training, a row
of NaN represents it, which contributes nothing.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hush.auditing import statistics as statistics
from hush.auditing.canaries import Canaries, rivals
from hush.auditing.target import Target
from hush.engines import client_round, enrolment
from hush.engines.side_releases import Evidence, exact_sum, noised, noised_sum
from hush.privacy.persons import Persons
from hush.privacy.schedule import Stage
from hush.privacy.side_release import SideRelease
from hush.privacy.source import DeviceRng, Source
from hush.recipes.slots.clusters import CHOICE
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.training.input_mean import bound, bounded_sum
from hush.types import Task

Array = NDArray[np.float64]
_MOST_COORDINATES = 64


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A number that the adversary computes from a release.

    Attributes:
        what: The release.
        value: Its value.
        move: By how much a canary changes its mean, if known in advance; otherwise 0.
        noise: The standard deviation that the plan declares for it.
        rate: The probability that the canary is sampled.
        choice: Whether it is one of two outcomes, whose odds the adversary estimates.
    """

    what: str
    value: float
    move: float = 0.0
    noise: float = 1.0
    rate: float = 1.0
    choice: bool = False


class _Without:
    """A source that never samples the last row."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def uniform(self, size: int) -> Tensor:
        return self._source.uniform(size)

    def chosen(self, size: int, rate: float) -> Tensor:
        rows = self._source.chosen(size, rate)
        return rows[rows != size - 1]

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        return self._source.normal(size, dtype)

    def keys(self, size: int) -> Tensor:
        return self._source.keys(size)

    def device_rng(self, device: torch.device) -> DeviceRng | None:
        return self._source.device_rng(device)

    def discrete(self, size: int, sigma: int) -> Tensor:
        return self._source.discrete(size, sigma)


class SideReleases:
    """The side releases of a client with, or without, one canary in place of the last row."""

    def __init__(self, target: Target, canary: Canaries) -> None:
        self._target, self._shape = target, target.shape
        self._effects: dict[str, tuple[Tensor, float]] = {}
        self._sums: dict[tuple[str, int], Tensor] = {}
        self._removing = target.plan.relation == "add-remove"
        self._others = target.rows_before(1)
        others = target.x[: self._others], target.y[: self._others]
        self._x = [torch.cat([others[0], target.repeated(last)]) for last in (canary.instead_x, canary.x)]
        self._y = [torch.cat([others[1], target.repeated(last)]) for last in (canary.instead_y, canary.y)]
        limit = bound(target.x[:1].numel())
        gap = bounded_sum(canary.x, limit) - bounded_sum(canary.instead_x, limit)
        self._along = gap.cpu() / gap.norm().cpu().clamp_min(1e-30)
        self._move = float(gap.norm()) / limit * (1.0 if self._removing else 0.5)
        self._models = torch.empty(0)
        if any(side_release.what == CHOICE for stage in target.rounds for side_release in stage.spec.side_releases):
            clip, number = target.config.privacy.loss_clip, target.recipe.assign.models
            self._models = rivals(target.model, target.starts[0], *others, canary, clip, number)

    def enrolment(self, stage: Stage, world: int, source: Source) -> list[Observation]:
        """What is computed from an enrolment answer: the count, and the mean, projected onto the canary and raw."""
        # By what is asked for, not by the noise that is applied: an audit must detect a count without noise.
        counted = any(side_release.what == COUNT for side_release in stage.spec.side_releases)
        removed = self._removing and world == 0 and counted
        samples = self._target.plan.samples - int(removed)
        rows = self._x[world], self._target.persons
        disclosed = enrolment.enrolment_answer(stage, samples, lambda _: rows, self._target.client, source)
        found = []
        if counted:
            found.append(
                Observation(what=COUNT, value=disclosed.count, move=float(self._removing), noise=stage.noise_of(COUNT))
            )
        if disclosed.mean is not None:
            spread = stage.noise_of(CENTRE)
            # The sum of the rows relative to their bound, whatever number it was divided by.
            mean = disclosed.mean.cpu().double() * (spread / disclosed.deviation)
            found.append(Observation(what=CENTRE, value=float(mean @ self._along), move=self._move, noise=spread))
            found += (
                [Observation(what=CENTRE, value=float(each)) for each in mean] if len(mean) <= _MOST_COORDINATES else []
            )
        return found

    def round(self, stage: Stage, world: int, source: Source) -> list[Observation]:
        """What is computed from the side releases of a round, in the order in which a client draws them."""
        found, removed = [], self._removing and world == 0
        if CHOICE in (release.what for release in stage.spec.side_releases):
            chosen = client_round.choose(self._task(self._models), stage, self._client(world, removed, source))
            found.append(Observation(what=CHOICE, value=float(chosen == len(self._models) - 1), choice=True))
        for release in stage.spec.sent:
            found += self._numbers(release, stage, self._answer(release, stage, world, source))
        return found

    def _answer(self, release: SideRelease, stage: Stage, world: int, source: Source) -> Tensor:
        given, removed = self._rows(stage, world), self._removing and world == 0
        if removed and release.sampled:
            # Rows are sampled among as many as the plan has: an absent row is never sampled.
            return noised_sum(release, stage, given, _Without(source))
        if removed:
            given = replace(given, x=given.x[: self._others], y=given.y[: self._others], persons=self._persons(removed))
            given = replace(given, held_x=given.x, held_y=given.y)
        if release.sampled:
            return noised_sum(release, stage, given, source)
        # Without a batch, every run has the same sum: it is computed once.
        key = (release.what, world)
        if key not in self._sums:
            self._sums[key] = exact_sum(release, given.for_release(release))
        return noised(self._sums[key], release, stage, self._shape, source)

    def _numbers(self, release: SideRelease, stage: Stage, answer: Tensor) -> list[Observation]:
        """What is computed from a noisy sum relative to its bound: its projection onto the canary's effect, and raw."""
        along, move = self._effect(release, stage)
        scaled, noise = answer / release.bound(self._shape), stage.noise_of(release.what)
        rate = stage.plan.rate if release.sampled else 1.0
        found = [Observation(what=release.what, value=float(scaled @ along), move=move, noise=noise, rate=rate)]
        if 1 < len(scaled) <= _MOST_COORDINATES:
            found += [Observation(what=release.what, value=float(each)) for each in scaled]
        return found

    def _effect(self, release: SideRelease, stage: Stage) -> tuple[Tensor, float]:
        """The direction in which the canary changes a sum, and by how much, relative to its bound."""
        if release.what not in self._effects:
            gap = exact_sum(release, _last(self._rows(stage, 1)))
            if not self._removing:
                gap = gap - exact_sum(release, _last(self._rows(stage, 0)))
            far = float(gap.norm())
            move = far / release.bound(self._shape) * (1.0 if self._removing else 0.5)
            self._effects[release.what] = (gap / max(far, 1e-30), move)
        return self._effects[release.what]

    def _rows(self, stage: Stage, world: int) -> Evidence:
        target = self._target
        return Evidence(
            model=target.model, vectors=target.starts[:1], x=self._x[world], y=self._y[world], plan=stage.plan,
            shape=self._shape, persons=target.persons, held_x=self._x[world], held_y=self._y[world],
        )  # fmt: skip

    def _persons(self, removed: bool) -> Persons | None:
        """Whose the rows are, with or without the last person."""
        persons = self._target.persons
        return persons.only(len(persons) - 1) if removed and persons is not None else persons

    def _client(self, world: int, removed: bool, source: Source) -> client_round.Client:
        target = self._target
        rows = slice(self._others) if removed else slice(None)
        x, y = self._x[world][rows], self._y[world][rows]
        return client_round.Client(
            recipe=target.recipe,
            config=target.config,
            model=target.model,
            x=x,
            y=y,
            first_row=0,
            source=source,
            shape=self._shape,
            pull=target.recipe.local.pull(),
            persons=self._persons(removed),
        )

    def _task(self, models: Tensor) -> Task:
        return Task(
            client=self._target.client,
            round=1,
            models=models,
            layout=self._target.model.layout,
            answer=self._target.model.layout,
        )


def _last(given: Evidence) -> Evidence:
    """The same of the last row alone, which is trained on as well as held out."""
    x, y = given.x[-1:], given.y[-1:]
    return replace(given, x=x, y=y, held_x=x, held_y=y, persons=None)


def side_releases_of(target: Target) -> list[tuple[Stage, SideRelease]]:
    """All side releases of the run, each with its stage and as often as it occurs."""
    stages = (() if target.enrolment is None else (target.enrolment,)) + target.rounds
    return [(stage, side_release) for stage in stages for side_release in stage.spec.side_releases]


def scored(worlds: Sequence[Sequence[Sequence[Observation]]], relation: str) -> dict[str, tuple[Array, Array]]:
    """For each release and each of two datasets, a row for each run: the log likelihood ratio, and the raw numbers.

    What the adversary does not know in advance is estimated from the runs that choose the test.
    """
    values = [np.array([[number.value for number in run] for run in world]) for world in worlds]
    kinds = worlds[0][0]
    known = [world[statistics.choosing(len(world))] for world in values]
    found = {}
    for what in dict.fromkeys(kind.what for kind in kinds):
        own = [column for column, kind in enumerate(kinds) if kind.what == what]
        scores = [np.zeros(len(world)) for world in worlds]
        for column in own:
            observed = [world[:, column] for world in values]
            more = _likelihoods(kinds[column], observed, [one[:, column] for one in known], relation)
            scores = [one + own_more for one, own_more in zip(scores, more, strict=True)]
        tables = [np.column_stack([one, world[:, own]]) for one, world in zip(scores, values, strict=True)]
        found[what] = (tables[0], tables[1])
    return found


def _likelihoods(kind: Observation, observed: list[Array], known: list[Array], relation: str) -> list[Array]:
    """The log likelihood ratios of one number; zeros where nothing is known about it."""
    if kind.choice:
        odds = [(one.sum() + 0.5) / (len(one) + 1.0) for one in known]
        yes, no = np.log(odds[1] / odds[0]), np.log((1 - odds[1]) / (1 - odds[0]))
        return [np.where(one > 0.5, yes, no) for one in observed]
    if kind.move > 1e-3 and kind.noise > 0:
        low, high = (float(one.mean()) for one in known)
        rest = 0.5 * (low + high) if relation == "replace-one" else low
        return [
            statistics.log_likelihood(
                (one - rest) / kind.move, kind.rate, 1, kind.noise / kind.move,
                "replace-one" if relation == "replace-one" else "add-remove",
            )
            for one in observed
        ]  # fmt: skip
    return [np.zeros(len(one)) for one in observed]
