"""The two training workloads, made of random tensors: what they cost does not depend on what they say.

W1: 20 clients x 2,400 MNIST-shaped samples, five clients at each batch size 16, 32, 64, 128, one epoch, the CNN of
28,938 parameters, clip 3. W2: logistic regression 40 -> 10, 20 users a round, 50 local steps of 800 of 4,000 samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hush.config import ModelConfig
from hush.local.train import Job
from hush.models import Model, build
from hush.privacy.noise import replayable
from hush.privacy.plan import PrivacyPlan
from hush.seeds import rng


@dataclass(frozen=True)
class Workload:
    """A model, the rows of all clients, and how each client trains."""

    name: str
    model: Model
    x: Tensor
    y: Tensor
    plans: tuple[PrivacyPlan, ...]
    lr: float

    def jobs(self) -> list[Job]:
        """Fresh jobs: a source can be drawn from once."""
        starts = torch.tensor([0, *(plan.samples for plan in self.plans)]).cumsum(0).tolist()
        return [
            Job(self.model.start.to(self.x.device), start, plan, self.lr, replayable(0, client, 1))
            for client, (start, plan) in enumerate(zip(starts, self.plans, strict=False))
        ]

    @property
    def samples(self) -> int:
        """Examples whose gradients a round takes, on average."""
        return sum(plan.steps * plan.batch for plan in self.plans)


def w1(clients: int = 20, samples: int = 2400, device: str = "cpu") -> Workload:
    """The convolutional workload."""
    sizes = [(16, 32, 64, 128)[4 * c // clients] for c in range(clients)]
    model = build(ModelConfig(name="cnn"), (1, 28, 28), 10, seed=0)
    return _made("w1", model, (1, 28, 28), samples, [_plan(samples, b, 1, 3.0) for b in sizes], device)


def w2(users: int = 20, device: str = "cpu") -> Workload:
    """The linear workload: ten epochs of five steps are fifty steps."""
    model = build(ModelConfig(name="logreg"), (40,), 10, seed=0)
    return _made("w2", model, (40,), 4000, [_plan(4000, 800, 10, 1.0)] * users, device)


def _plan(samples: int, batch: int, epochs: int, clip: float) -> PrivacyPlan:
    return PrivacyPlan(samples, batch, epochs, 1, clip, 1.0, "add-remove", "pld")


def _made(
    name: str, model: Model, shape: tuple[int, ...], samples: int, plans: list[PrivacyPlan], device: str
) -> Workload:
    generator = rng(0, "bench", name)
    rows = samples * len(plans)
    x = torch.from_numpy(generator.standard_normal((rows, *shape), dtype="float32")).to(device)
    y = torch.from_numpy(generator.integers(0, 10, rows)).to(device)
    return Workload(name, model, x, y, tuple(plans), 0.01)
