"""The two training workloads, made of random tensors: their cost does not depend on the values.

W1: 20 clients x 2,400 MNIST-shaped samples, five clients at each batch size 16, 32, 64, 128, one epoch, the CNN of
28,938 parameters, clip 3. W2: logistic regression 40 -> 10, 20 users a round, 50 local steps of 800 of 4,000 samples,
with control variates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from hush.models import Model, build_model
from hush.privacy.noise import Secure, Seeded
from hush.privacy.plan import PrivacyPlan
from hush.seeds import rng
from hush.training.job import Job

if TYPE_CHECKING:
    from hush.config import ModelConfig


@dataclass(frozen=True)
class _Named:
    """A model's configuration without pydantic, which may not be installed."""

    name: str
    hidden: int = 0
    weights: None = None
    adapters: str = "none"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, the rows of all clients, and how each client trains.

    Attributes:
        name: Its name.
        model: The model to train.
        x: Inputs of all clients, one client after the other.
        y: Labels.
        plans: The plan of each client.
        lr: The learning rate.
        drifts: Corrections by control variates, clients x p, if any.
    """

    name: str
    model: Model
    x: Tensor
    y: Tensor
    plans: tuple[PrivacyPlan, ...]
    lr: float
    drifts: Tensor | None = None

    def jobs(self, round_number: int = 1, *, secure: bool = False) -> list[Job]:
        """Return new jobs, with seeded or secure noise, because a source can be drawn from only once."""
        drifts = [None] * len(self.plans) if self.drifts is None else self.drifts.unbind()
        start = self.model.start.to(self.x.device)
        return [
            Job(
                vector=start,
                first_row=first,
                plan=plan,
                lr=self.lr,
                source=Secure() if secure else Seeded(0, client, round_number),
                drift=drift,
            )
            for client, (first, plan, drift) in enumerate(zip(self.firsts, self.plans, drifts, strict=True))
        ]

    @property
    def firsts(self) -> list[int]:
        """The first row of each client."""
        return [self.plans[0].samples * client for client in range(len(self.plans))]

    @property
    def samples(self) -> int:
        """The mean number of per-example gradients in a round."""
        return sum(plan.steps * plan.batch for plan in self.plans)


def w1(clients: int = 20, samples: int = 2400, device: str = "cpu") -> Workload:
    """The convolutional workload."""
    sizes = [(16, 32, 64, 128)[4 * c // clients] for c in range(clients)]
    plans = [plan_of(samples, b, math.ceil(samples / b), 3.0) for b in sizes]
    return _made("w1", _model("cnn", (1, 28, 28)), (1, 28, 28), plans, device)


def w2(users: int = 20, steps: int = 50, device: str = "cpu") -> Workload:
    """The linear workload."""
    work = _made("w2", _model("logreg", (40,)), (40,), [plan_of(4000, 800, steps, 1.0)] * users, device)
    drawn = rng(0, "bench", "drift").standard_normal((users, work.model.layout.size), dtype="float32")
    return replace(work, drifts=torch.from_numpy(0.01 * drawn).to(device))


def plan_of(samples: int, batch: int, steps: int, clip: float) -> PrivacyPlan:
    """Return a plan with this many steps, in whole epochs."""
    epochs = steps // math.ceil(samples / batch)
    return PrivacyPlan(
        samples=samples,
        batch=batch,
        epochs=epochs,
        rounds=1,
        clip=clip,
        noise_multiplier=1.0,
        relation="add-remove",
        accountant="pld",
    )


def _model(name: str, shape: tuple[int, ...]) -> Model:
    return build_model(cast("ModelConfig", _Named(name)), shape, 10, seed=0)


def _made(name: str, model: Model, shape: tuple[int, ...], plans: list[PrivacyPlan], device: str) -> Workload:
    generator = rng(0, "bench", name)
    rows = sum(plan.samples for plan in plans)
    x = torch.from_numpy(generator.standard_normal((rows, *shape), dtype="float32")).to(device)
    y = torch.from_numpy(generator.integers(0, 10, rows)).to(device)
    return Workload(name=name, model=model, x=x, y=y, plans=tuple(plans), lr=0.01)
