"""Every training path computes the gradient of the objective's own loss, as autograd does example by example."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.models import Model, build_model, from_module
from hush.models.user_loss import user_loss
from hush.objective import BinaryCrossEntropy, Huber, MeanSquaredError, Objective
from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.training.closed_form import (
    ClosedFormSum,
    closed_form_sums,
    closed_form_table_sums,
    linear_layer_of,
    row_norms,
)
from hush.training.job import Job
from hush.training.per_example.discrete_sums import IntegerSum, integer_sums
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import PackedSum, padded_sums
from hush.training.per_example.vmap import VmapSum, check_vmap, vmap_sums
from hush.training.queries import bounded_losses, gradient_norms
from hush.training.select import clipped_sums, select
from hush.training.train import train

pytestmark = pytest.mark.slow
CLIENTS, ROWS, WIDTH, OUTPUTS = 2, 5, 6, 3


class Scaled(nn.Module):
    """A Fourier transform, of which it is not known that it keeps examples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(WIDTH, OUTPUTS), nn.Parameter(torch.ones(OUTPUTS))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.fft.fft(self.scale * self.inner(x)).real
        return out


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(-2, 2, generator=torch.Generator().manual_seed(seed))


def pinball(output: Tensor, target: Tensor) -> Tensor:
    return torch.maximum(0.9 * (target - output), 0.1 * (output - target)).mean()


Y = uniform(3, CLIENTS, ROWS, OUTPUTS)
OBJECTIVES: Mapping[str, tuple[Objective, Tensor]] = {
    "labels": (Objective(task="multilabel", loss=BinaryCrossEntropy(), outputs=3, classes=3), (Y > 0).float()),
    "mse": (Objective(task="regression", loss=MeanSquaredError(), outputs=3), Y),
    "huber": (Objective(task="regression", loss=Huber(), outputs=3), Y),
    "own": (Objective(task="regression", loss=user_loss(pinball, "own", "regression", 3, 0), outputs=3), Y),
    "own of classes": (
        Objective(
            task="multiclass", outputs=3, classes=3,
            loss=user_loss(nn.CrossEntropyLoss(label_smoothing=0.2), "smooth", "multiclass", 3, 3),
        ),
        (Y[..., 0] > 0).long(),
    ),
}  # fmt: skip


def model_of(kind: str, objective: Objective) -> Model:
    made = (
        from_module(Scaled(), (WIDTH,))
        if kind == "scaled"
        else build_model(ModelConfig(name=kind, hidden=7), (WIDTH,), OUTPUTS, seed=1)
    )
    return replace(made, objective=objective)


def expected(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    """The sum of clipped gradients, one example after the other, in float64."""
    total = torch.zeros(vectors.shape, dtype=torch.float64)
    for client, vector in enumerate(vectors):
        for one_x, one_y in zip(x[client], y[client], strict=True):
            leaf = vector.clone().requires_grad_()
            loss = model.objective.loss(model.logits(leaf, one_x[None]), one_y[None], reduction="sum")
            (gradient,) = torch.autograd.grad(loss, leaf)
            total[client] += gradient.double() * min(1.0, float(clips[client] / gradient.norm()))
    return total


def by_recorder(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clipped_sums(model, vectors, x, y, torch.ones(CLIENTS, ROWS, dtype=torch.bool), clips)


def by_padding(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    real = torch.ones(CLIENTS * ROWS, dtype=torch.bool)
    flat_x, flat_y = (each.transpose(0, 1).flatten(0, 1) for each in (x, y))
    return padded_sums(Recorder(model), vectors, flat_x, flat_y, real, clips, 100)


def by_vmap(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    check_vmap(model, x[0], y[0])
    return vmap_sums(model, vectors, x, y, torch.ones(CLIENTS, ROWS, dtype=torch.bool), clips, 100)


def by_integers(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    grids = torch.full_like(clips, 1e-4)
    mask = torch.ones(CLIENTS, ROWS, dtype=torch.bool)
    return integer_sums(model, vectors, x, y, mask, clips, grids, 100).double() * grids[:, None]


def by_closed_form(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    flat_x, flat_y = x.flatten(0, 1), y.flatten(0, 1)
    layer = linear_layer_of(model, flat_x)
    assert layer is not None
    rows = list(torch.arange(CLIENTS * ROWS).split(ROWS))
    return closed_form_sums(layer, vectors, flat_x, flat_y, rows, clips, 3)


def by_tables(model: Model, vectors: Tensor, x: Tensor, y: Tensor, clips: Tensor) -> Tensor:
    flat_x, flat_y = x.flatten(0, 1), y.flatten(0, 1)
    layer = linear_layer_of(model, flat_x)
    assert layer is not None
    norms = row_norms(flat_x, [(0, len(flat_x))], True)[None]
    table, which = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS), torch.zeros(CLIENTS, dtype=torch.long)
    means = torch.zeros(CLIENTS, WIDTH)
    return closed_form_table_sums(layer, vectors, flat_x, flat_y, table, clips, norms, which, means, 100)


PATHS: Mapping[str, tuple[str, Callable[[Model, Tensor, Tensor, Tensor, Tensor], Tensor]]] = {
    "closed form": ("logreg", by_closed_form),
    "closed form of tables": ("logreg", by_tables),
    "packed": ("mlp", by_recorder),
    "packed linear": ("logreg", by_recorder),
    "padded": ("mlp", by_padding),
    "vmap": ("scaled", by_vmap),
    "integers": ("mlp", by_integers),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_sums_the_clipped_gradients_of_autograd(path: str, name: str) -> None:
    (kind, sums), (objective, y) = PATHS[path], OBJECTIVES[name]
    model = model_of(kind, objective)
    vectors = torch.stack([model.start, model.start + 0.1])
    x, clips = uniform(4, CLIENTS, ROWS, WIDTH), torch.tensor([0.5, 100.0], dtype=torch.float64)
    wanted = expected(model, vectors, x, y, clips)
    # Gradients are clipped 0.3 % below the clip, and integers leave room for rounding.
    torch.testing.assert_close(sums(model, vectors, x, y, clips), wanted, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(sums(model, vectors, x, y, clips * 100), expected(model, vectors, x, y, clips * 100),
                               rtol=1e-4, atol=2e-2 if path == "integers" else 1e-5)  # fmt: skip


@pytest.mark.parametrize("shape", [(CLIENTS, ROWS), (CLIENTS, ROWS, 1)])
def test_one_target_may_have_an_axis_of_outputs_or_none(shape: tuple[int, ...]) -> None:
    objective = Objective(task="regression", loss=MeanSquaredError(), outputs=1)
    model = replace(build_model(ModelConfig(name="mlp", hidden=4), (WIDTH,), 1, seed=1), objective=objective)
    vectors, x, y = model.start.repeat(2, 1), uniform(5, CLIENTS, ROWS, WIDTH), uniform(6, *shape)
    clips = torch.tensor([1.0, 100.0], dtype=torch.float64)
    wanted = expected(model, vectors, x, y, clips)
    for sums in (by_recorder, by_padding, by_vmap, by_integers):
        torch.testing.assert_close(sums(model, vectors, x, y, clips), wanted, rtol=5e-3, atol=5e-3)


PLAN = PrivacyPlan(
    samples=ROWS, batch=2, epochs=1, rounds=1, clip=0.7, noise_multiplier=1.3, relation="add-remove", accountant="pld"
)


@pytest.mark.parametrize(
    ("kind", "discrete", "wanted"),
    [
        ("logreg", False, ClosedFormSum),
        ("mlp", False, PackedSum),
        ("mlp", True, IntegerSum),
        ("scaled", False, VmapSum),
    ],
)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_path_is_selected_by_the_model_whatever_the_objective(
    kind: str, discrete: bool, wanted: type, name: str
) -> None:
    objective, y = OBJECTIVES[name]
    model, x = model_of(kind, objective), uniform(7, ROWS, WIDTH)
    jobs = [
        Job(
            vector=model.start, first_row=0, plan=replace(PLAN, discrete=discrete), lr=0.1, source=noise.Seeded(1, 0, 0)
        )
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert type(select(model, x, y[0], jobs)) is wanted


def test_kernels_with_a_softmax_of_their_own_serve_cross_entropy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where they would be taken for this network."""
    from hush.training import select as module

    monkeypatch.setattr(module, "triton_kernels", lambda _: object())
    monkeypatch.setattr(module, "noise_fits", lambda _: True)
    network = build_model(ModelConfig(name="cnn"), (1, 8, 8), OUTPUTS, seed=1)
    x = torch.zeros(ROWS, 1, 8, 8)
    jobs = [Job(vector=network.start, first_row=0, plan=PLAN, lr=0.1, source=noise.Seeded(1, 0, 0))]

    def found(model: Model, y: Tensor) -> bool:
        return (
            module._Facts(model=model, x=x, y=y, jobs=jobs, limit=None, precision="float32", strict=False).pooled_cnn
            is not None
        )

    assert found(network, torch.zeros(ROWS, dtype=torch.long))
    for objective, y in OBJECTIVES.values():
        assert not found(replace(network, objective=objective), y[0])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_of_queries_are_cut_to_their_bound(name: str) -> None:
    objective, y = OBJECTIVES[name]
    model, x = model_of("mlp", objective), uniform(8, ROWS, WIDTH)
    vectors = torch.stack([model.start, 1e3 * model.start])
    found = bounded_losses(model, vectors, x, y[0], 0.5)
    each = objective.loss(model.logits(vectors[0], x).double(), y[0], reduction="none")
    assert found[0].item() == pytest.approx((each.clamp(0, 0.5) - 0.25).sum().item())
    assert found.abs().max() <= 0.25 * ROWS
    alone = [
        expected(model, vectors[:1], x[None, i : i + 1], y[:1, i : i + 1], torch.tensor([1e9])) for i in range(ROWS)
    ]
    norms = torch.stack([one[0].norm() for one in alone])
    torch.testing.assert_close(gradient_norms(model, vectors[0], x, y[0]), norms, rtol=1e-4, atol=1e-5)


def test_a_model_is_trained_for_several_objectives_in_turn() -> None:
    """What is cached with its module does not outlive the objective."""
    x, clip = uniform(9, ROWS, WIDTH), replace(PLAN, noise_multiplier=0.0)
    model = build_model(ModelConfig(name="logreg"), (WIDTH,), OUTPUTS, seed=1)
    updates = []
    for name in ("mse", "labels", "mse"):
        objective, y = OBJECTIVES[name]
        own = replace(model, objective=objective)
        updates += train(
            own, x, y[0], [Job(vector=own.start, first_row=0, plan=clip, lr=0.1, source=noise.Seeded(1, 0, 0))]
        )
    assert torch.equal(updates[0], updates[2]) and not torch.equal(updates[0], updates[1])
