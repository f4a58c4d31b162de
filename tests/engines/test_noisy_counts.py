"""counts = "noisy": with the same disclosed count, neighbouring clients plan, charge and release alike."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hush import recipes
from hush.config import Config, parse
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import enrolment
from hush.engines import simulator
from hush.engines.enrolment import enrolment_answer
from hush.engines.schedules import training
from hush.engines.setup import Federation, prepare
from hush.privacy.noise import Seeded
from hush.privacy.schedule import ENROLMENT, PrivacySchedule, epsilon
from hush.recipes.slots.weight import COUNT
from hush.server.loop import RunTerms
from hush.types import HushError, Policy

WAYS: dict[str, dict[str, Any]] = {
    "epochs": {"batch_size": 32, "lr": 1.0},
    "steps": {"batch_size": 32, "lr": 1.0, "steps": 10},
    "auto": {"batch_size": 32, "lr": "auto", "steps": 10},
}
PROTECT: dict[str, dict[str, Any]] = {
    "plain": {},
    "centred": {"centre": 0.1},
    "adaptive": {"clip": "adaptive"},
    "even": {"sampler": "even"},
    "equal-noise": {"spread": "equal-noise"},
}


def config(size: int, way: str = "steps", protect: str = "plain", **privacy: Any) -> Config:
    return parse(
        {
            "rounds": 4,
            "seed": 3,
            "data": {"clients": 3, "sizes": [size, 300, 500]},
            "privacy": {"budgets": 2.0, **privacy},
            "local": WAYS[way],
            "recipe": {
                "name": "fedavg",
                "protect": {"rule": "dp-sgd", **PROTECT[protect]},
                "weight": {"rule": "samples", "counts": "noisy"},
            },
        }
    )


def seen(schedule: PrivacySchedule) -> list[object]:
    """All of a schedule but how many rows there really are."""
    return [replace(stage, plan=replace(stage.plan, samples=0)) for stage in schedule.stages]


def public(terms: RunTerms) -> dict[str, object]:
    """All that the server knows, but for its random numbers."""
    values = {field.name: getattr(terms, field.name) for field in fields(terms) if field.name != "rng"}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}


def same(one: Federation, other: Federation) -> bool:
    client = 0
    enrolled = [federation.stage(client, ENROLMENT).round_costs for federation in (one, other)]
    return (
        seen(one.schedules[client]) == seen(other.schedules[client])
        and enrolled[0] == enrolled[1]
        and one.costs(client) == other.costs(client)
        and public(one.terms) == public(other.terms)
    )


@pytest.mark.parametrize("way", ["epochs", "steps"])
@pytest.mark.parametrize("protect", PROTECT)
def test_neighbours_that_disclosed_the_same_count_plan_the_same(way: str, protect: str) -> None:
    fewer, more = prepare(config(437, way, protect)), prepare(config(439, way, protect))
    assert fewer.members[0].samples < more.members[0].samples, "these are not neighbours: the test says nothing"
    disclosed = [360, 241, 399]
    assert same(fewer.counted(disclosed), more.counted(disclosed))
    assert fewer.counted(disclosed).schedules[0].plan.samples == fewer.members[0].samples
    # The plan follows what was disclosed, and keeps the budget together with enrolment.
    other = fewer.counted([260, 241, 399])
    assert other.schedules[0].plan.rate > fewer.counted(disclosed).schedules[0].plan.rate
    for federation in (fewer.counted(disclosed), other):
        ledger = federation.ledgers()[0]
        ledger.reserve(federation.stage(0, ENROLMENT).round_costs, "", ENROLMENT)
        planned = training(federation.schedules[0])
        if protect == "equal-noise":
            # Its noise is the same for all, and not calibrated by the filter: the last rounds may not be covered.
            planned = tuple(replace(cost, steps=cost.steps // 2) for cost in planned)
        assert ledger.affords(planned)


def test_nothing_is_planned_from_the_true_count_before_enrolment() -> None:
    one, other = prepare(config(437, "auto")), prepare(config(900, "auto"))
    assert one.config.local.lr == other.config.local.lr
    assert one.stage(0, ENROLMENT).round_costs == other.stage(0, ENROLMENT).round_costs


def test_a_run_trains_by_the_count_that_it_disclosed() -> None:
    federation = prepare(config(437))
    result = simulator.run(federation).result
    card = result.guarantees[0]
    disclosed = federation.counted([g.samples for g in result.guarantees])
    assert card.samples != federation.members[0].samples
    assert card.noise_multiplier == disclosed.schedules[0].plan.noise_multiplier
    assert card.sample_rate == 32 / card.samples
    assert 0.9 * card.epsilon_budget < card.epsilon_spent <= card.epsilon_budget


def test_a_sampler_that_needs_the_true_count_is_refused() -> None:
    with pytest.raises(HushError, match=r"privacy\.sampler.*true number of rows"):
        prepare(config(437, relation="replace-one", sampler="fixed", accountant="rdp"))


def test_a_member_is_charged_for_enrolment_by_public_numbers() -> None:
    policy = Policy(2.0, 1e-5)
    drafts = [
        enrolment(
            config(437),
            recipes.parse(config(437).recipe)[1],
            RosterEntry(
                name="a", epsilon=2.0, delta=1e-5, relation="add-remove", samples=rows, noised={COUNT: (0.0, 0.0)}
            ),
            0,
            policy,
        )
        for rows in (350, 351)
    ]
    assert drafts[0] == drafts[1]
    assert drafts[0][1] is not None
    assert epsilon(drafts[0][0], policy) <= 2.0


class Answering(Seeded):
    """A count's noise that is given, before the noise of a mean that is the same for everyone."""

    def __init__(self, first: float) -> None:
        super().__init__(3, 0, ENROLMENT)
        self.first: float | None = first

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        if self.first is not None:
            first, self.first = self.first, None
            return torch.full((size,), first, dtype=dtype)
        return super().normal(size, dtype)


def test_neighbours_that_disclosed_the_same_count_release_the_same_mean() -> None:
    """The mean is divided by the number that is disclosed: its noise would else give the true one away."""
    stage = prepare(config(250, protect="centred")).stage(0, ENROLMENT)
    spread = stage.noise_of(COUNT)
    x = torch.randn(250, 64, generator=torch.Generator().manual_seed(0))
    # A row that is not a number adds nothing to a sum.
    more = torch.cat([x, torch.full((1, 64), torch.nan)])
    answers = [
        enrolment_answer(stage, len(rows), {0: (rows, None)}.__getitem__, 0, Answering((270.0 - len(rows)) / spread))
        for rows in (x, more)
    ]
    assert answers[0].mean is not None and answers[1].mean is not None
    assert round(answers[0].count) == round(answers[1].count) == 270
    assert torch.equal(answers[0].mean, answers[1].mean)
    assert answers[0].deviation == answers[1].deviation
