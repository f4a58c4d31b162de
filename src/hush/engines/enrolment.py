"""Enrolment, round 0: what clients tell once, noised and charged, before the first round."""

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
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.source import Source
from hush.recipes.context import State
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.training.input_mean import bound, bounded_sum
from hush.types import HushError, Receipt

Rows = Callable[[int], Tensor]


@dataclass(frozen=True)
class EnrolmentAnswer:
    """What one client tells at enrolment: a noised count, and a noised mean of its rows with the noise in it."""

    count: float
    mean: Tensor | None = None
    deviation: float = 0.0


def enrolled(federation: Federation, held: RunLedgers, rows: Rows) -> tuple[Federation, State]:
    """The federation as it is planned from what clients tell, and what the server tells every client from then on.

    `rows` gives a client's training rows, behind the model's fixed features. What a client tells is charged, drawn and
    sealed once a run: asked again, it tells the same bytes, or the run is refused.
    """
    terms, config = federation.terms, federation.config
    if terms.stage_table.of[ENROLMENT] < 0:
        return federation, {}
    secure = config.privacy.noise != "seeded"
    heard: list[EnrolmentAnswer | None] = []
    for member in terms.members:
        stage = federation.stage(member.client, ENROLMENT)
        try:
            charged = held.charge(member.client, ENROLMENT, stage.round_costs)
        except BudgetSpentError:
            # It will decline every round as well: what is taken for its count does not matter.
            heard.append(None)
            continue
        if charged is None:
            raise HushError(
                f"client {member.client}: its enrolment answer was already sent and is no longer stored; start a "
                "new run"
            )
        if isinstance(charged, Receipt):
            source = noise.Secure() if secure else noise.Seeded(config.seed, member.client, ENROLMENT)
            told = answered(stage, member.samples, rows, member.client, source)
            held.seal(member.client, charged, partial(_packed, told))
        else:
            told = _unpacked(charged[1])
        heard.append(told)
    centre = centred([answer for answer in heard if answer is not None])
    counts = [whole(1.0 if answer is None else answer.count) for answer in heard]
    planned = federation.counted(counts)
    if federation.offers:
        approve(held.ledgers, [training(schedule) for schedule in planned.schedules])
    return planned, centre


def _packed(told: EnrolmentAnswer) -> bytes:
    numbers = torch.tensor([told.count, told.deviation], dtype=torch.float64)
    packed: bytes = save({"numbers": numbers} if told.mean is None else {"numbers": numbers, "mean": told.mean})
    return packed


def _unpacked(payload: bytes) -> EnrolmentAnswer:
    tensors = load(payload)
    count, deviation = tensors["numbers"].tolist()
    return EnrolmentAnswer(count, tensors.get("mean"), deviation)


def answered(stage: Stage, samples: int, rows: Rows, client: int, source: Source) -> EnrolmentAnswer:
    """What a client answers when it is enrolled."""
    count = samples + stage.noise_of(COUNT) * float(source.normal(1, torch.float64))
    spread = stage.noise_of(CENTRE)
    if not spread:
        return EnrolmentAnswer(count)
    # A count that is told with noise is the one to divide by: the true one is nobody's business.
    known, x = whole(count) if stage.noise_of(COUNT) else samples, rows(client)
    return EnrolmentAnswer(count, noised_mean(x, spread, known, source), deviation(x[:1].numel(), spread, known))


def noised_mean(x: Tensor, spread: float, samples: int, source: Source) -> Tensor:
    """The sum of the bounded rows with noise of this multiplier, over a number of rows that is public."""
    limit = bound(x[:1].numel())
    total = bounded_sum(x, limit).cpu()
    noised = total + spread * limit * source.normal(total.numel(), torch.float64)
    return noised / samples


def deviation(width: int, spread: float, samples: int) -> float:
    """The noise in each number of such a mean."""
    return spread * bound(width) / samples


def centred(heard: Sequence[EnrolmentAnswer]) -> State:
    """The centre that the means give, each by the inverse of its noise, if there are means."""
    means = [(told.mean, told.deviation) for told in heard if told.mean is not None]
    if not means:
        return {}
    weights = torch.tensor([deviation**-2 for _, deviation in means], dtype=torch.float64)
    return {"input_mean": ((weights / weights.sum()) @ torch.stack([mean for mean, _ in means])).float()}


def whole(count: float) -> int:
    """A noised count as a number of rows."""
    return max(1, round(count))
