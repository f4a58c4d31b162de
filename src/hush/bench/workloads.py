"""The training workloads, made of random tensors: their cost does not depend on the values.

W1: 20 clients x 2,400 MNIST-shaped samples, five clients at each batch size 16, 32, 64, 128, one epoch, the CNN of
28,938 parameters, clip 3. W2: logistic regression 40 -> 10, 20 users a round, 50 local steps of 800 of 4,000 samples,
with control variates. W3: ResNet-18 with group normalisation, 20 clients x 512 images of 3 x 32 x 32, batches of 64,
one epoch. W4: a transformer of 4 layers, width 256 and 3.2 M parameters over 128 tokens with learned positions, 8
clients x 1,024 sequences, batches of 64, one epoch; on a CPU a small one (2 layers, width 128, 64 tokens, batches of
32). W5: W4 with adapters of rank 8 and the head as all that is trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from hush.bench.networks import CLASSES, Transformer
from hush.models import Model, build_model, from_module
from hush.models.adapters import lora
from hush.models.validation import seeded
from hush.privacy.noise import Secure, Seeded
from hush.privacy.plan import PrivacyPlan
from hush.seeds import rng
from hush.training.job import Job

if TYPE_CHECKING:
    from hush.config import ModelConfig


_WORDS = 256


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A model's configuration without pydantic, which may not be installed."""

    name: str
    hidden: int = 0
    weights: None = None
    adapters: str = "none"
    encoder: None = None
    head: None = None
    model_fields_set: frozenset[str] = frozenset()


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
    """The convolutional workload. Clients with fewer than 128 samples have batches of 16."""
    sizes = [(16, 32, 64, 128)[4 * c // clients] if samples >= 128 else 16 for c in range(clients)]
    plans = [plan_of(samples, b, math.ceil(samples / b), 3.0) for b in sizes]
    return _made("w1", _model("cnn", (1, 28, 28)), (1, 28, 28), plans, device)


def w2(users: int = 20, steps: int = 50, device: str = "cpu") -> Workload:
    """The linear workload."""
    work = _made("w2", _model("logreg", (40,)), (40,), [plan_of(4000, 800, steps, 1.0)] * users, device)
    drawn = rng(0, "bench", "drift").standard_normal((users, work.model.layout.size), dtype="float32")
    return replace(work, drifts=torch.from_numpy(0.01 * drawn).to(device))


def w3(clients: int = 20, samples: int = 512, batch: int = 64, device: str = "cpu") -> Workload:
    """The residual workload."""
    plans = [plan_of(samples, batch, math.ceil(samples / batch), 1.0)] * clients
    return _made("w3", _model("resnet18-gn", (3, 32, 32)), (3, 32, 32), plans, device)


def w4(samples: int = 1024, device: str = "cpu") -> Workload:
    """The transformer workload."""
    return _transformer("w4", 8, samples, 64, (4, 256, 8, 128), device)


def w5(samples: int = 1024, device: str = "cpu") -> Workload:
    """The same transformer with adapters."""
    return _transformer("w5", 8, samples, 64, (4, 256, 8, 128), device, rank=8)


def w4_small(clients: int = 4, samples: int = 128) -> Workload:
    """The transformer workload for a CPU."""
    return _transformer("w4", clients, samples, 32, (2, 128, 4, 64), "cpu")


def w5_small(clients: int = 4, samples: int = 128) -> Workload:
    """The same transformer with adapters."""
    return _transformer("w5", clients, samples, 32, (2, 128, 4, 64), "cpu", rank=8)


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
    return build_model(cast("ModelConfig", _Named(name=name)), shape, 10, seed=0)


def _transformer(
    name: str, clients: int, samples: int, batch: int, sizes: tuple[int, int, int, int], device: str, rank: int = 0
) -> Workload:
    """Return the workload for a transformer of that many layers, width, heads and tokens, adapted if a rank is given.

    The model is made as a user's own module is.
    """
    with seeded(0):
        module: nn.Module = Transformer(*sizes, words=_WORDS)
    module = lora(module, rank) if rank else module
    model = from_module(module, sizes[3:], name, torch.arange(8 * sizes[3]).view(8, -1) % _WORDS)
    plans = [plan_of(samples, batch, math.ceil(samples / batch), 1.0)] * clients
    return _made(name, model, sizes[3:], plans, device, _WORDS)


def _made(
    name: str, model: Model, shape: tuple[int, ...], plans: list[PrivacyPlan], device: str, words: int = 0
) -> Workload:
    """Return the workload with rows of normal numbers, or of words by number."""
    generator = rng(0, "bench", name)
    rows = sum(plan.samples for plan in plans)
    if words:
        x = torch.from_numpy(generator.integers(0, words, (rows, *shape))).to(device)
    else:
        x = torch.from_numpy(generator.standard_normal((rows, *shape), dtype="float32")).to(device)
    y = torch.from_numpy(generator.integers(0, CLASSES, rows)).to(device)
    return Workload(name=name, model=model, x=x, y=y, plans=tuple(plans), lr=0.01)
