"""Which path is selected, and that a user of training can tell from the table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.models import Model, build_model, from_module
from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.training import select as module
from hush.training.closed_form import ClosedFormSum
from hush.training.job import Job
from hush.training.per_example.discrete_sums import IntegerSum
from hush.training.per_example.sums import PackedSum
from hush.training.per_example.vmap import VmapSum
from hush.training.precision import Precision
from hush.training.select import select

PLAN = PrivacyPlan(
    samples=12, batch=4, epochs=1, rounds=1, clip=0.7, noise_multiplier=1.3, relation="add-remove", accountant="pld"
)


class Scaled(nn.Module):
    """A Fourier transform, of which it is not known that it keeps examples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.fft.fft(self.scale * self.inner(x)).real
        return out


def built(name: str) -> Model:
    return build_model(ModelConfig(name=name), (5,), 3, seed=1)


def jobs(model: Model, discrete: bool = False) -> list[Job]:
    return [
        Job(
            vector=model.start, first_row=0, plan=replace(PLAN, discrete=discrete), lr=0.1, source=noise.Seeded(1, 0, 0)
        )
    ]


@pytest.mark.parametrize(
    ("make", "discrete", "precision", "expected"),
    [
        (lambda: built("logreg"), False, "float32", ClosedFormSum),
        (lambda: built("logreg"), False, "bf16", PackedSum),
        (lambda: built("logreg"), True, "float32", IntegerSum),
        (lambda: built("mlp"), False, "float32", PackedSum),
        (lambda: from_module(Scaled(), (5,)), False, "float32", VmapSum),
    ],
    ids=["linear", "linear in bf16", "discrete", "layers with rules", "a layer without"],
)
def test_the_path_on_a_cpu(make: Callable[[], Model], discrete: bool, precision: Precision, expected: type) -> None:
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if expected is VmapSum else "error")
        path = select(model, torch.zeros(12, 5), torch.zeros(12).long(), jobs(model, discrete), None, precision)
    assert type(path) is expected


def test_a_linear_model_is_recognised_before_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "probe", never)
    model = built("logreg")
    assert isinstance(select(model, torch.zeros(12, 5), torch.zeros(12).long(), jobs(model)), ClosedFormSum)
