"""The client's part of a round, in a simulation or a deployment: choose a model if asked to, train, and encode the
answer.

All privacy parameters come from the client's own schedule; a task contributes only models and the extras of the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from hush.config import Config
from hush.engines.side_releases import Evidence, noised_sum
from hush.models import Model
from hush.privacy import noise
from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import Output, Stage
from hush.privacy.side_release import ReleaseShape
from hush.privacy.source import Source
from hush.recipes import Recipe
from hush.recipes.slots.clusters import CHOICE, ClusterChoice
from hush.server import half_precision
from hush.training.job import Job
from hush.types import Receipt, SideAnswers, Task, Update


@dataclass(frozen=True, kw_only=True)
class Client:
    """The state of a client: training rows (and whose they are, where the unit of privacy is a person), rows that it
    holds out of training, if any, recipe and settings, its random numbers, and public numbers of the run.
    """

    recipe: Recipe
    config: Config
    model: Model
    x: Tensor
    y: Tensor
    first_row: int
    source: Source
    shape: ReleaseShape
    pull: float
    output: Output | None = None
    persons: Persons | None = None
    held_x: Tensor | None = None
    held_y: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A charged task: the training job, the numbers that accompany the update, and whether that is sent in 16 bits."""

    task: Task
    receipt: Receipt
    job: Job
    recipe: Recipe
    plan: PrivacyPlan
    output: Output | None = None
    side: SideAnswers = field(default_factory=SideAnswers)
    halves: bool = False


def source(config: Config, client: int, number: int, *, shared: bool) -> Source:
    """Return the source of a client's batches and noise in a round: its own stream, or one shared by all clients."""
    if config.privacy.noise != "seeded":
        return noise.Secure()
    made = noise.SharedSeeded if shared else noise.Seeded
    return made(config.seed, client, number)


def work(task: Task, receipt: Receipt, stage: Stage, client: Client) -> Work:
    """Prepare training, y -= lr * (H + drift + pull * (y - start)), and compute what is released in addition."""
    config, extras, plan = client.config, task.extras, stage.plan
    chosen = choose(task, stage, client) if stage.spec.choose else None
    start = task.models[chosen or 0].to(client.x.device)
    if extras.clip is not None:
        plan = replace(plan, clip=extras.clip)
    given = _evidence(task, start[None], plan, client)
    releases = {each.what: noised_sum(each, stage, given, client.source) for each in stage.spec.sent}
    drift = None if extras.drift is None else extras.drift[chosen or 0].to(client.x.device)
    if config.local.weight_decay:
        shrink = config.local.weight_decay * start
        drift = shrink if drift is None else drift + shrink
    pull = client.pull + config.local.weight_decay
    shift = None if extras.input_mean is None else extras.input_mean.to(client.x.dtype)
    job = Job(
        vector=start,
        first_row=client.first_row,
        plan=plan.training if plan.whole_update else plan,
        lr=config.local.lr,
        source=client.source,
        drift=drift,
        proximal=pull,
        at_start=stage.spec.still,
        idle=stage.spec.idle,
        input_mean=shift,
        persons=client.persons,
    )
    return Work(
        task=task,
        receipt=receipt,
        job=job,
        recipe=client.recipe,
        output=client.output,
        plan=plan,
        side=SideAnswers(choice=chosen, releases=releases),
        halves=halves(config),
    )


def halves(config: Config) -> bool:
    """Whether updates are sent as 16-bit numbers. Masked ones are integers."""
    return config.engine.transport == "float16" and not config.secure_aggregation


def choose(task: Task, stage: Stage, client: Client) -> int:
    """Return the model with the least loss on the client's rows, by noisy sums if the stage has noise for it."""
    return int(noised_losses(task, stage, client).argmin())


def noised_losses(task: Task, stage: Stage, client: Client) -> Tensor:
    """Return the sum of bounded losses of each model, with noise in proportion to the sensitivity of all together."""
    given = _evidence(task, task.models.to(client.x.device), stage.plan, client)
    return noised_sum(ClusterChoice(CHOICE, 0.0), stage, given, client.source)


def _evidence(task: Task, vectors: Tensor, plan: PrivacyPlan, client: Client) -> Evidence:
    shape = replace(client.shape, models=len(vectors))
    return Evidence(
        model=client.model, vectors=vectors, x=client.x, y=client.y, plan=plan, shape=shape,
        centre=task.extras.input_mean, persons=client.persons, held_x=client.held_x, held_y=client.held_y,
    )  # fmt: skip


def sealed(done: Work, vector: Tensor, *, stays: bool = False) -> Update:
    """Return the update to send. Its vector is in the memory of the host, unless it `stays` where it was computed."""
    task = done.task
    if done.output is not None:
        vector = _perturbed(done, vector, done.output)
    if done.plan.whole_update:
        vector = done.plan.release(vector, done.job.source)
    project = done.recipe.project
    if not stays or project.encodes:
        vector = vector.cpu()
    if project.encodes:
        vector = project.encode(vector, task.layout, task.extras)
    if done.halves:
        vector = half_precision.rounded(vector)
    return Update(
        client=task.client, round=task.round, vector=vector, layout=task.answer, receipt=done.receipt, side=done.side
    )


def _perturbed(done: Work, vector: Tensor, output: Output) -> Tensor:
    start = done.job.vector
    end = start + vector
    end = end / (end.norm() / output.bound).clamp_min(1.0)
    drawn = done.job.source.normal(end.numel(), end.dtype).to(end.device)
    moved: Tensor = end + output.deviation * drawn - start
    return moved
