"""Enrolment, round 0: what clients tell once, noised and charged, before the first round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hush.engines.books import Books
from hush.engines.federation import Federation
from hush.privacy import noise
from hush.privacy.course import ENROLMENT
from hush.privacy.ledger import BudgetSpentError
from hush.recipes.weigh import COUNT
from hush.server.loop import Terms
from hush.types import Task


def enrolled(federation: Federation, held: Books) -> Terms:
    """The terms as the server gets to know them: with noised counts where the recipe asks for them."""
    terms, config = federation.terms, federation.config
    if terms.outline.of[ENROLMENT] < 0:
        return terms
    secure = config.privacy.noise == "secure"
    counts = []
    for member in terms.members:
        stage = federation.stage(member.client, ENROLMENT)
        try:
            held.charge(Task(member.client, ENROLMENT, torch.zeros(0), terms.layout, terms.layout), stage.costs())
        except BudgetSpentError:
            # It will decline every round as well: what is taken for its count does not matter.
            counts.append(1.0)
            continue
        source = noise.secure() if secure else noise.replayable(config.seed, member.client, ENROLMENT)
        counts.append(member.samples + stage.noise_of(COUNT) * float(source.normal(1, torch.float64)))
    return with_counts(terms, counts)


def with_counts(terms: Terms, counts: Sequence[float] | Tensor) -> Terms:
    """The terms with these sample counts, each at least 1."""
    members = zip(terms.members, [float(count) for count in counts], strict=True)
    return replace(terms, members=tuple(replace(member, samples=max(1, round(count))) for member, count in members))
