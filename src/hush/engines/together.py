"""The clients of one run, or of many runs in lockstep, trained as one computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hush.engines.answer import Work
from hush.local.job import Job
from hush.local.train import train

if TYPE_CHECKING:
    from hush.engines.cohort import Cohort

Asked = tuple["Cohort", list[Work]]
_SHORT = 2**26  # numbers in all rows of a run


def train_together(asked: Sequence[Asked]) -> list[list[Tensor]]:
    """The updates of each run's work. Runs that train the same kind of model on the same kind of rows go together."""
    groups: dict[object, list[int]] = {}
    for number, (cohort, _) in enumerate(asked):
        groups.setdefault(_kind(cohort), []).append(number)
    trained: list[list[Tensor]] = [[] for _ in asked]
    for numbers in groups.values():
        chosen = [asked[number] for number in numbers]
        x, y, firsts = _rows([cohort for cohort, _ in chosen])
        jobs = [_moved(work.job, first) for (_, works), first in zip(chosen, firsts, strict=True) for work in works]
        engine = chosen[0][0].federation.config.engine
        model = chosen[0][0].federation.model
        limit = None if engine.physical_batch == "auto" else engine.physical_batch
        vectors = iter(train(model, x, y, jobs, limit, engine.precision, engine.strict))
        for number, (_, works) in zip(numbers, chosen, strict=True):
            trained[number] = [next(vectors) for _ in works]
    return trained


def _kind(cohort: Cohort) -> object:
    """What must be equal for two runs to be trained in one piece."""
    model = cohort.federation.model
    # Long rows, and all rows on a processor, are not worth copying side by side: runs that share them go together.
    shared = None if cohort.x.is_cuda and cohort.x.numel() <= _SHORT else id(cohort.x)
    return (str(model.module), model.layout, cohort.x.shape[1:], cohort.federation.config.engine, shared)


def _rows(cohorts: Sequence[Cohort]) -> tuple[Tensor, Tensor, list[int]]:
    """All rows of the runs, each array once, and where each run's rows begin."""
    distinct = {id(cohort.x): cohort for cohort in cohorts}
    if len(distinct) == 1:
        return cohorts[0].x, cohorts[0].y, [0] * len(cohorts)
    starts, begun = {}, 0
    for key, cohort in distinct.items():
        starts[key] = begun
        begun += len(cohort.x)
    x = torch.cat([cohort.x for cohort in distinct.values()])
    y = torch.cat([cohort.y for cohort in distinct.values()])
    return x, y, [starts[id(cohort.x)] for cohort in cohorts]


def _moved(job: Job, by: int) -> Job:
    return replace(job, first_row=job.first_row + by) if by else job
