"""The client's half of a round, whoever runs it: choose a model if asked to, train, and encode what is sent back.

Everything here takes its numbers from the client's own course; a task only brings models and what the recipe's choices
say besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hush.config import Config
from hush.local import centre
from hush.local.gradients import gradient_norms
from hush.local.job import Job
from hush.local.losses import bounded_losses, reach
from hush.models import Model
from hush.privacy import noise
from hush.privacy.course import Output, Stage
from hush.privacy.noise import Source
from hush.privacy.plan import PrivacyPlan
from hush.recipes import Recipe
from hush.recipes.clusters import CHOICE as CHOICE
from hush.recipes.protect import BELOW as BELOW
from hush.types import Receipt, Task, Update


@dataclass(frozen=True)
class Client:
    """What a client has: its rows (training rows only), its recipe and settings, and its own random numbers."""

    recipe: Recipe
    config: Config
    model: Model
    x: Tensor
    y: Tensor
    first_row: int
    source: Source
    output: Output | None = None


@dataclass(frozen=True)
class Work:
    """A task that its ledger allowed: how it is trained, and the numbers that go with the update."""

    task: Task
    receipt: Receipt
    job: Job
    recipe: Recipe
    output: Output | None = None
    notes: dict[str, float] = field(default_factory=dict)


def source(recipe: Recipe, config: Config, client: int, number: int) -> Source:
    """Where a client's batches and noise of a round come from. They are its own, unless `protect` says otherwise."""
    if config.privacy.noise == "secure":
        return noise.secure()
    return noise.replayable(config.seed, client, number, recipe.shared)


def work(task: Task, receipt: Receipt, stage: Stage, client: Client) -> Work:
    """How a task is trained, y -= lr * (H + drift + pull * (y - start)); what is asked besides is answered here."""
    notes: dict[str, float] = {}
    config, chosen = client.config, 0
    if stage.ask.choose:
        chosen = choose(task, stage, client)
        notes["choice"] = float(chosen)
    start = task.models[chosen].to(client.x.device)
    plan = stage.plan
    if "clip" in task.notes:
        plan = replace(plan, clip=float(task.notes["clip"]))
        notes["below"] = below(stage, plan, start, client, task)
    drift = task.notes["drift"][chosen].to(client.x.device) if "drift" in task.notes else None
    if config.local.weight_decay:
        shrink = config.local.weight_decay * start
        drift = shrink if drift is None else drift + shrink
    pull = client.recipe.local.pull() + config.local.weight_decay
    shift = task.notes["centre"].to(client.x.dtype) if "centre" in task.notes else None
    job = Job(start, client.first_row, plan, config.local.lr, client.source, drift, pull, stage.ask.still, shift)
    return Work(task, receipt, job, client.recipe, client.output, notes)


def choose(task: Task, stage: Stage, client: Client) -> int:
    """The model with the least loss on the client's rows, by noised sums where the stage has noise for it."""
    models, bound = task.models.to(client.x.device), client.config.privacy.loss_clip
    if "centre" in task.notes:
        models = centre.plain(centre.form_of(client.model), models, task.notes["centre"])
    sums = bounded_losses(client.model, models, client.x, client.y, bound)
    spread = stage.noise_of(CHOICE) * reach(bound, len(models))
    return int((sums + spread * client.source.normal(len(models), torch.float64)).argmin())


def below(stage: Stage, plan: PrivacyPlan, start: Tensor, client: Client, task: Task) -> float:
    """A noised fraction of a batch's gradients that the clip leaves whole. One row moves the count by a half."""
    rows = plan.sample(client.source).to(client.x.device)
    x = client.x[rows]
    if "centre" in task.notes:
        x = x - task.notes["centre"].to(x).view(x.shape[1:])
    within = (gradient_norms(client.model, start, x, client.y[rows]) <= plan.clip).double()
    added = 0.5 * stage.noise_of(BELOW) * float(client.source.normal(1, torch.float64))
    return 0.5 + (float((within - 0.5).sum()) + added) / plan.batch


def sealed(done: Work, vector: Tensor) -> Update:
    """The update to send."""
    task = done.task
    if done.output is not None:
        vector = _perturbed(done, vector, done.output)
    encoded = done.recipe.project.encode(vector.cpu(), task.layout, task.notes)
    return Update(task.client, task.round, encoded, task.answer, done.receipt, done.notes)


def _perturbed(done: Work, vector: Tensor, output: Output) -> Tensor:
    start = done.job.vector
    end = start + vector
    end = end / (end.norm() / output.bound).clamp_min(1.0)
    drawn = done.job.source.normal(end.numel(), end.dtype).to(end.device)
    moved: Tensor = end + output.deviation * drawn - start
    return moved
