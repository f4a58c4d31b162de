"""The target of an audit: one client's training as the run would do it, or a worst case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from hush.config import Config, parse
from hush.data import from_arrays
from hush.engines.setup import Federation, prepare
from hush.models import Model
from hush.privacy.accounting import api
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.side_release import ReleaseShape
from hush.recipes import Recipe
from hush.types import HushError, Relation


@dataclass(frozen=True, kw_only=True)
class Target:
    """One client's training, as the run would do it.

    Attributes:
        client: Its number.
        model: What it trains.
        x: Its training rows, behind the model's fixed features.
        y: Their labels.
        plan: Its plan.
        lr: Its learning rate.
        delta: Of its policy.
        claimed: The epsilon of the client's whole schedule, as the accountant says; the plan is that of most rounds.
        secure: Whether noise comes from the operating system.
        physical_batch: As the run's.
        starts: The models that the server sends, in turn.
        recipe: What decides on the releases beside the update.
        config: The run's.
        shape: What the widths of side releases depend on.
        rounds: What each of its rounds of training asks, in the order of the recipe's stages.
        enrolment: What it is asked before the first round, if anything.
        not_covered: What it releases and no epsilon covers, in words: there is no claim to refute.
    """

    client: int
    model: Model
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    lr: float
    delta: float
    claimed: float
    secure: bool
    physical_batch: int | None
    starts: Tensor
    recipe: Recipe
    config: Config
    shape: ReleaseShape
    rounds: tuple[Stage, ...]
    enrolment: Stage | None
    not_covered: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Noisy steps of training in all rounds."""
        return sum(stage.plan.steps for stage in self.rounds)


def target(federation: Federation, client: int | None = None) -> Target:
    """Return the audit target of one client; default: the client with the largest budget."""
    # Where counts are noised, training is planned from what is told: here the true numbers.
    federation = federation.counted([member.samples for member in federation.members])
    policies = federation.policies
    if client is None:
        client = max(range(len(policies)), key=lambda c: policies[c].epsilon)
    if not 0 <= client < len(policies):
        raise HushError(f"client: found {client}; accepted: 0 to {len(policies) - 1}")
    schedule, policy, model = federation.schedules[client], policies[client], federation.model
    plan = schedule.plan
    if not plan.private or plan.rounds == 0:
        raise HushError(f"audit: client {client} has no guarantee to audit: it adds no noise or takes part in no round")
    model.to(federation.device)
    x, y = federation.arrays(1)
    first = federation.data.bounds()[client][0]
    rows = slice(first, first + plan.samples)
    asked = federation.config.engine.physical_batch
    enrolled = federation.terms.stage_table.of[ENROLMENT] >= 0
    costs = federation.costs(client)
    return Target(
        client=client,
        model=model,
        x=x[rows],
        y=y[rows],
        plan=plan,
        lr=federation.config.local.lr,
        delta=policy.delta,
        claimed=api.epsilon_of(costs, policy.delta, policy.relation, plan.accountant),
        secure=federation.config.privacy.noise == "secure",
        physical_batch=None if asked == "auto" else asked,
        starts=model.start.to(federation.device)[None],
        recipe=federation.recipe,
        config=federation.config,
        shape=federation.terms.shape,
        rounds=tuple(stage for stage in schedule.stages if stage.spec.train for _ in range(stage.rounds)),
        enrolment=federation.stage(client, ENROLMENT) if enrolled else None,
        not_covered=tuple(release.what for release in federation.recipe.releases() if not release.covered),
    )


def worst_case(
    *,
    epsilon: float = 4.0,
    delta: float = 1e-3,
    relation: Relation = "add-remove",
    samples: int = 8,
    batch: int = 8,
    rounds: int = 1,
    secure: bool = False,
) -> Target:
    """Return a worst case: a linear model with two classes, and rows that share no inputs.

    With full batches its one noisy step a round is exactly the Gaussian mechanism, so an audit that is worth something
    must come near the claim.
    """
    rows = np.eye(2 * samples, 2 * samples + 1, dtype=np.float32)
    module = nn.Linear(2 * samples + 1, 2, bias=False)
    nn.init.zeros_(module.weight)
    config = parse(
        {
            "rounds": rounds,
            "data": {"clients": 1, "partition": "iid", "test_fraction": 0.5},
            "privacy": {
                "budgets": epsilon, "delta": delta, "relation": relation, "noise": "secure" if secure else "seeded"
            },
            "local": {"batch_size": batch, "lr": 0.01},
            "recipe": {"name": "dp-fedavg"},
        }
    )  # fmt: skip
    dataset = from_arrays(rows, np.arange(2 * samples) % 2, name="worst-case", classes=2)
    return target(prepare(config, dataset=dataset, module=module))
