"""The client's half of a round, whoever runs it: choose a model if asked to, train, and encode what is sent back.

Everything here takes its numbers from the client's own course; a task only brings models and what the recipe's choices
say besides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.config import Config
from hush.local.job import Job
from hush.local.losses import bounded_losses, reach
from hush.models import Model
from hush.privacy.course import Stage
from hush.privacy.noise import Source
from hush.recipes import Recipe
from hush.types import Receipt, Task, Update

CHOICE = "cluster choice"


@dataclass(frozen=True)
class Work:
    """A task that its ledger allowed: how it is trained, and on which of the models."""

    task: Task
    receipt: Receipt
    job: Job
    model: int


def choose(model: Model, task: Task, stage: Stage, x: Tensor, y: Tensor, bound: float, source: Source) -> int:
    """The model with the least loss on the client's rows, by noised sums where the stage has noise for it."""
    models = task.models.to(x.device)
    sums = bounded_losses(model, models, x, y, bound)
    spread = stage.noise_of(CHOICE) * reach(bound, len(models))
    return int((sums + spread * source.normal(len(models), torch.float64)).argmin())


def work(
    task: Task, receipt: Receipt, stage: Stage, recipe: Recipe, config: Config, first_row: int, model: int,
    source: Source, device: torch.device,
) -> Work:  # fmt: skip
    """How a task is trained: y -= lr * (H + drift + pull * (y - start))."""
    chosen = model if len(task.models) > 1 else 0
    start = task.models[chosen].to(device)
    drift = task.notes["drift"][chosen].to(device) if "drift" in task.notes else None
    if config.local.weight_decay:
        shrink = config.local.weight_decay * start
        drift = shrink if drift is None else drift + shrink
    pull = recipe.local.pull() + config.local.weight_decay
    job = Job(start, first_row, stage.plan, config.local.lr, source, drift, pull, stage.ask.still)
    return Work(task, receipt, job, model)


def sealed(done: Work, vector: Tensor, recipe: Recipe, chose: bool) -> Update:
    """The update to send."""
    task = done.task
    encoded = recipe.project.encode(vector.cpu(), task.layout, task.notes)
    notes = {"choice": float(done.model)} if chose else {}
    return Update(task.client, task.round, encoded, task.answer, done.receipt, notes)
