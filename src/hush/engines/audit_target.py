"""What an audit looks at: one client's training, as the run would do it, or a worst case that hides nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from hush.config import parse
from hush.data import from_arrays
from hush.engines.federation import Federation, prepare
from hush.models import Model
from hush.privacy.course import epsilon
from hush.privacy.plan import PrivacyPlan
from hush.types import HushError, Relation


@dataclass(frozen=True)
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
        claimed: The epsilon of the client's whole course, as the accountant says; the plan is that of most rounds.
        secure: Whether noise comes from the operating system.
        physical_batch: As the run's.
        starts: The models that the server sends, in turn.
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


def target(federation: Federation, client: int | None = None) -> Target:
    """What there is to audit of one client; by default of the one with the largest budget."""
    policies = federation.policies
    if client is None:
        client = max(range(len(policies)), key=lambda c: policies[c].epsilon)
    if not 0 <= client < len(policies):
        raise HushError(f"client: found {client}; accepted: 0 to {len(policies) - 1}")
    course, policy, model = federation.courses[client], policies[client], federation.model
    plan = course.plan
    if not plan.private or plan.rounds == 0:
        raise HushError(f"audit: client {client} promises nothing to audit: no noise, or no round to take part in")
    model.module.to(federation.device)
    x, y = federation.arrays(1)
    first = federation.data.bounds()[client][0]
    rows = slice(first, first + plan.samples)
    asked = federation.config.engine.physical_batch
    return Target(
        client=client,
        model=model,
        x=x[rows],
        y=y[rows],
        plan=plan,
        lr=federation.config.local.lr,
        delta=policy.delta,
        claimed=epsilon(course, policy),
        secure=federation.config.privacy.noise == "secure",
        physical_batch=None if asked == "auto" else asked,
        starts=model.start.to(federation.device)[None],
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
    """A setting that hides nothing: a linear model of two classes, and rows that share no input.

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
                "budgets": epsilon, "delta": delta, "relation": relation, "noise": "secure" if secure else "replayable"
            },
            "local": {"batch_size": batch, "lr": 0.01},
            "recipe": {"name": "dp-fedavg"},
        }
    )  # fmt: skip
    dataset = from_arrays(rows, np.arange(2 * samples) % 2, name="worst-case", classes=2)
    return target(prepare(config, dataset=dataset, module=module))
