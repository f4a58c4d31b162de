"""Enrolment, round 0: what clients release once before the first round, noised and charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from safetensors.torch import load, save
from torch import Tensor

from hush.engines.run_ledgers import RunLedgers, approve
from hush.engines.schedules import training
from hush.engines.setup import Federation
from hush.privacy import noise
from hush.privacy.ledger import BudgetSpentError
from hush.privacy.persons import Persons, sum_weights
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.source import Source
from hush.recipes import Recipe
from hush.recipes.context import State
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.server.loop import CLUSTERS
from hush.training.input_mean import bound, bounded_sum
from hush.types import HushError, Receipt

Rows = Callable[[int], tuple[Tensor, Persons | None]]


@dataclass(frozen=True)
class EnrolmentAnswer:
    """What one client releases at enrolment: a noisy count, and a noisy mean of its rows with its noise deviation."""

    count: float
    mean: Tensor | None = None
    deviation: float = 0.0


def enrolled(federation: Federation, ledgers: RunLedgers, rows: Rows) -> tuple[Federation, State]:
    """Return the federation planned from the enrolment answers, and the state that the server sends to every client.

    `rows` returns a client's training rows, behind the model's fixed features, and whose they are. An enrolment answer
    is charged, sampled and sealed once per run: repeated requests get the same bytes, or the run is refused.
    """
    terms, config = federation.terms, federation.config
    if terms.stage_table.of[ENROLMENT] < 0:
        return federation, {}
    secure = config.privacy.noise != "seeded"
    answers: list[EnrolmentAnswer | None] = []
    for member in terms.members:
        stage = federation.stage(member.client, ENROLMENT)
        try:
            charged = ledgers.charge(member.client, ENROLMENT, stage.round_costs)
        except BudgetSpentError:
            # This client will decline every round as well, so its count does not matter.
            answers.append(None)
            continue
        if charged is None:
            raise HushError(
                f"client {member.client}: its enrolment answer was already sent and is no longer stored; start a "
                "new run"
            )
        if isinstance(charged, Receipt):
            source = noise.Secure() if secure else noise.Seeded(config.seed, member.client, ENROLMENT)
            answer = enrolment_answer(stage, member.samples, rows, member.client, source)
            ledgers.seal(member.client, charged, partial(_packed, answer))
        else:
            answer = _unpacked(charged[1])
        answers.append(answer)
    found = combined(answers, terms.recipe, one_model=config.secure_aggregation)
    counts = [rounded_count(1.0 if answer is None else answer.count) for answer in answers]
    planned = federation.counted(counts)
    approve_training(planned, ledgers)
    return planned, found


def approve_training(planned: Federation, ledgers: RunLedgers) -> None:
    """Admit training that was planned from counts that enrolment released."""
    if planned.offers:
        plans = [(training(each, spare=True), training(each)) for each in planned.schedules]
        approve(ledgers.ledgers, plans, ledgers.run)


def _packed(answer: EnrolmentAnswer) -> bytes:
    numbers = torch.tensor([answer.count, answer.deviation], dtype=torch.float64)
    packed: bytes = save({"numbers": numbers} if answer.mean is None else {"numbers": numbers, "mean": answer.mean})
    return packed


def _unpacked(payload: bytes) -> EnrolmentAnswer:
    tensors = load(payload)
    count, deviation = tensors["numbers"].tolist()
    return EnrolmentAnswer(count, tensors.get("mean"), deviation)


def enrolment_answer(stage: Stage, samples: int, rows: Rows, client: int, source: Source) -> EnrolmentAnswer:
    """Compute the enrolment answer of a client."""
    count = samples + stage.noise_of(COUNT) * float(source.normal(1, torch.float64))
    spread = stage.noise_of(CENTRE)
    if not spread:
        return EnrolmentAnswer(count)
    # Divide by the count that is released; if it is noisy, the true one must not be revealed.
    known, (x, persons) = rounded_count(count) if stage.noise_of(COUNT) else samples, rows(client)
    mean = noised_mean(x, spread, known, source, persons)
    return EnrolmentAnswer(count, mean, deviation(x[:1].numel(), spread, known))


def noised_mean(x: Tensor, spread: float, samples: int, source: Source, persons: Persons | None = None) -> Tensor:
    """Return the noisy sum of the bounded rows, divided by a public number of rows; of persons, of their means."""
    limit = bound(x[:1].numel())
    total = bounded_sum(x, limit, sum_weights(persons)).cpu()
    noised = total + spread * limit * source.normal(total.numel(), torch.float64)
    return noised / samples


def deviation(width: int, spread: float, samples: int) -> float:
    """The standard deviation of the noise in each number of such a mean."""
    return spread * bound(width) / samples


def combined(answers: Sequence[EnrolmentAnswer | None], recipe: Recipe, *, one_model: bool) -> State:
    """Return what follows from the means of all clients, None for those without an answer; nothing without means.

    `input_mean` combines the means, each weighted by the inverse of its noise variance. `clusters` has the model of
    each client; those without a mean get the first. There is no more than one with `one_model`: sums of updates that
    the server does not see are of one model.
    """
    released = {
        client: (answer.mean, answer.deviation**2)
        for client, answer in enumerate(answers)
        if answer is not None and answer.mean is not None
    }
    if not released:
        return {}
    means = torch.stack([mean for mean, _ in released.values()])
    variances = torch.tensor([variance for _, variance in released.values()], dtype=torch.float64)
    weights = variances.reciprocal()
    clusters = torch.zeros(len(answers), dtype=torch.int64)
    if not one_model:
        clusters[list(released)] = torch.tensor(recipe.assign.clustered(means, variances))
    return {"input_mean": ((weights / weights.sum()) @ means).float(), CLUSTERS: clusters}


def rounded_count(count: float) -> int:
    """Return a noisy count as a number of rows."""
    return max(1, round(count))
