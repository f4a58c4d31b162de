"""Enrolment, round 0: what clients tell once, noised and charged, before the first round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.engines.books import Books
from hush.engines.federation import Federation
from hush.local.centre import bound, bounded_sum
from hush.privacy import noise
from hush.privacy.course import ENROLMENT, Stage
from hush.privacy.ledger import BudgetSpentError
from hush.privacy.noise import Source
from hush.recipes.protect import CENTRE
from hush.recipes.view import State
from hush.recipes.weigh import COUNT
from hush.server.loop import Terms
from hush.types import Task

Rows = Callable[[int], Tensor]


@dataclass(frozen=True)
class Told:
    """What one client tells at enrolment: a noised count, and a noised mean of its rows with the noise in it."""

    count: float
    mean: Tensor | None = None
    deviation: float = 0.0


def enrolled(federation: Federation, held: Books, rows: Rows) -> tuple[Terms, State]:
    """The terms as the server gets to know them, and what it tells every client from then on.

    `rows` gives a client's training rows, behind the model's fixed features.
    """
    terms, config = federation.terms, federation.config
    if terms.outline.of[ENROLMENT] < 0:
        return terms, {}
    secure = config.privacy.noise == "secure"
    heard: list[Told | None] = []
    for member in terms.members:
        stage = federation.stage(member.client, ENROLMENT)
        try:
            held.charge(Task(member.client, ENROLMENT, torch.zeros(0), terms.layout, terms.layout), stage.costs())
        except BudgetSpentError:
            # It will decline every round as well: what is taken for its count does not matter.
            heard.append(None)
            continue
        source = noise.secure() if secure else noise.replayable(config.seed, member.client, ENROLMENT)
        heard.append(answered(stage, member.samples, rows, member.client, source))
    told = centred([answer for answer in heard if answer is not None])
    return with_counts(terms, [1.0 if answer is None else answer.count for answer in heard]), told


def answered(stage: Stage, samples: int, rows: Rows, client: int, source: Source) -> Told:
    """What a client answers when it is enrolled."""
    count = samples + stage.noise_of(COUNT) * float(source.normal(1, torch.float64))
    spread = stage.noise_of(CENTRE)
    if not spread:
        return Told(count)
    # A count that is told with noise is the one to divide by: the true one is nobody's business.
    known, x = whole(count) if stage.noise_of(COUNT) else samples, rows(client)
    return Told(count, noised_mean(x, spread, known, source), deviation(x[:1].numel(), spread, known))


def noised_mean(x: Tensor, spread: float, samples: int, source: Source) -> Tensor:
    """The sum of the bounded rows with noise of this multiplier, over a number of rows that is public."""
    limit = bound(x[:1].numel())
    total = bounded_sum(x, limit).cpu()
    noised = total + spread * limit * source.normal(total.numel(), torch.float64)
    return noised / samples


def deviation(width: int, spread: float, samples: int) -> float:
    """The noise in each number of such a mean."""
    return spread * bound(width) / samples


def centred(heard: Sequence[Told]) -> State:
    """The centre that the means give, each by the inverse of its noise, if there are means."""
    means = [(told.mean, told.deviation) for told in heard if told.mean is not None]
    if not means:
        return {}
    weights = torch.tensor([deviation**-2 for _, deviation in means], dtype=torch.float64)
    return {"centre": ((weights / weights.sum()) @ torch.stack([mean for mean, _ in means])).float()}


def with_counts(terms: Terms, counts: Sequence[float] | Tensor) -> Terms:
    """The terms with these sample counts, each at least 1."""
    members = zip(terms.members, [float(count) for count in counts], strict=True)
    return replace(terms, members=tuple(replace(member, samples=whole(count)) for member, count in members))


def whole(count: float) -> int:
    """A noised count as a number of rows."""
    return max(1, round(count))
