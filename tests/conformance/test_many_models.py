"""Many models in one process on a GPU, one after the other and back: none leaves anything that disturbs another."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from hush.bench.workloads import plan_of
from hush.models import Model, from_module
from hush.models.model import wrap
from hush.privacy.noise import Secure, Seeded
from hush.training.job import Job
from hush.training.train import train
from tests.support.nets import random
from tests.training.per_example.test_layers import CLASSES, NETS, UNKNOWN

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

SAMPLES = 24
NAMES = [name for name in NETS if name not in ("hidden",)]


def made(name: str) -> tuple[Model, torch.Tensor]:
    """A model on the device and rows for three clients."""
    build, shape, tokens = (*NETS[name][:3],) if name in NETS else (UNKNOWN[name], (5,), 0)
    module = build()
    x = (random(3 * SAMPLES, *shape).abs() * 3).long() % tokens if tokens else random(3 * SAMPLES, *shape).float()
    module(x[:8])
    plain = isinstance(module, torch.nn.Sequential)
    model = wrap(name, module, None) if plain else from_module(module, shape, name, x[:8])
    return model, x


def updates(model: Model, x: torch.Tensor, device: str, secure: bool = False, **settings: Any) -> torch.Tensor:
    plan = plan_of(SAMPLES, 8, 3, 0.5)
    model.to(torch.device(device))
    y = (torch.arange(len(x)) % CLASSES).to(device)
    start = model.start.to(device)
    jobs = [
        Job(
            vector=start, first_row=SAMPLES * c, plan=plan, lr=0.1, source=Secure() if secure else Seeded(1, c, 1)
        )
        for c in range(3)
    ]  # fmt: skip
    return torch.stack(train(model, x.to(device), y, jobs, **settings)).cpu()


@pytest.mark.parametrize("order", [1, -1])
def test_models_of_every_kind_train_in_any_order(order: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {name: made(name) for name in [*NAMES, *UNKNOWN][::order]}
        first = {name: updates(*pair, "cuda") for name, pair in models.items()}
        for name, pair in reversed(models.items()):
            updates(*pair, "cuda", secure=True)
            updates(*pair, "cuda", precision="bf16")
            again = updates(*pair, "cuda")
            assert again.isfinite().all()
            torch.testing.assert_close(again, first[name], rtol=1e-3, atol=1e-4, msg=name)
    assert len(models) >= 20
    assert torch.rand(4, device="cuda").isfinite().all(), "PyTorch's own generator draws as before"
