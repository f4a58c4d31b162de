"""Kernels of a pooled CNN: sums against float64 by definition, and steps in fewer launches against sums and update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush.bench.workloads import plan_of
from hush.models import Model
from hush.models.model import wrap
from hush.privacy import noise
from hush.training import select
from hush.training.gpu import noise_bank, sampling
from hush.training.gpu.pooled_cnn import clipped_sum
from hush.training.gpu.pooled_cnn import step as cnn_step
from hush.training.gpu.pooled_cnn.clipped_sum import pooled_cnn_sums
from hush.training.gpu.pooled_cnn.network import PooledCnn, pooled_cnn_of
from hush.training.gpu.pooled_cnn.step import PooledCnnStep
from hush.training.job import Job
from hush.training.train import train
from tests.statistical.neighbours import ADDING, Way, moves
from tests.support.interpreter import CUDA, DEVICE, check_interpreted, on_either, runs_itself
from tests.support.nets import applied, double, random, reference

# NumPy, in which the interpreter computes, warns of what kernels leave out afterwards.
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")


@pytest.mark.interpreter
@runs_itself()
def test_the_interpreter_agrees() -> None:
    """All tests of this file, with Triton's kernels interpreted."""
    check_interpreted(__file__)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, also where they are interpreted."""
    if not CUDA:
        from hush.training.gpu import kernels

        for module in (clipped_sum, cnn_step, sampling, select):
            monkeypatch.setattr(module, "triton_kernels", lambda _: kernels)


def block(inputs: int, outputs: int, kernel: tuple[int, int], padding: tuple[int, int]) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


FIVE, THREE = ((5, 5), (2, 2)), ((3, 3), (1, 1))
# Inputs and outputs, kernel and padding of layers; features, shape of inputs, and classes.
NETS: dict[str, tuple[Sequence[tuple[Any, ...]], int, tuple[int, ...], int]] = {
    "cnn": (((1, 16, *FIVE), (16, 32, *FIVE)), 32 * 9, (1, 12, 12), 5),
    "one layer": (((1, 6, *FIVE),), 6 * 20, (1, 8, 10), 5),
    "many inputs": (((3, 16, *FIVE), (16, 20, *THREE)), 20 * 4, (3, 8, 8), 5),
    "few channels": (((1, 3, *THREE), (3, 5, (3, 2), (0, 1))), 5 * 2, (1, 9, 8), 5),
    "three layers": (((1, 16, *THREE), (16, 17, *THREE), (17, 8, (3, 3), (2, 2))), 8 * 4, (1, 8, 8), 5),
    "many classes": (((1, 4, *THREE), (4, 8, *THREE)), 8 * 4, (1, 8, 8), 20),
}


def made(name: str) -> tuple[Model, PooledCnn, tuple[int, ...]]:
    layers, features, shape, classes = NETS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        parts = [part for layer in layers for part in block(*layer)]
        model = wrap("own", nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, classes)), None)
    network = pooled_cnn_of(model, torch.zeros(1, *shape))
    assert network is not None
    return model, network, shape


def sums(network: PooledCnn, *given: Tensor, limit: int = 64) -> Tensor:
    vectors, x, y, mask, clips = (t.to(DEVICE) for t in given)
    return pooled_cnn_sums(network, vectors.float(), x.float(), y, mask, clips, limit, "float32").cpu()


def batch(model: Model, shape: tuple[int, ...], classes: int) -> tuple[Tensor, ...]:
    vectors = model.start + 0.1 * random(3, model.layout.size, seed=1).float()
    x, mask = random(3, 4, *shape, seed=2).float(), torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]]).bool()
    y = (random(3, 4, seed=4).abs() * 7).long() % classes
    return vectors, x, y, mask, torch.tensor([0.5, 1.0, math.inf], dtype=torch.float64)


@on_either
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("limit", [64, 4])
def test_sums_are_those_of_float64(name: str, limit: int) -> None:
    model, network, shape = made(name)
    given = batch(model, shape, network.classes)
    found = sums(network, *given, limit=limit)
    exact = reference(double(made(name)[0]), *given)
    assert not found[1].any()
    assert float((found - exact).norm()) <= 3e-6 * float(exact.norm())


@on_either
@pytest.mark.parametrize("name", ["cnn", "one layer", "many classes"])
def test_a_step_in_few_launches_is_sums_and_update(name: str) -> None:
    from hush.training.gpu.kernels import pooled_cnn as launch

    model, network, shape = made(name)
    vectors, x, y, mask, clips = (t.to(DEVICE) for t in batch(model, shape, network.classes))
    clients, rows = len(vectors), mask.flatten().nonzero()[:, 0]
    ends = torch.cat([rows.new_zeros(1), mask.sum(1).cumsum(0)]).int()
    # Room for more examples than there are, so that some programs have none.
    room = torch.cat([rows, rows.new_zeros(3)])
    given = launch.Batch(room.int(), (room // mask.shape[1]).int(), ends)
    space = launch.Workspace(network, len(room), DEVICE)
    space.squares.fill_(7.0)  # of another step
    inputs, labels = x.flatten(0, 1).contiguous(), y.flatten()
    drawn = random(*vectors.shape, seed=6).float().to(DEVICE)
    scales = random(2, clients, 1, seed=7).abs().to(DEVICE)
    scales[:, 2] = 0.0
    out, moved = torch.zeros_like(vectors, dtype=torch.float64), vectors.clone()
    launch.fused_step(space, moved, inputs, labels, given, clips, "tf32x3", out, drawn, scales)
    total = sums(network, vectors, x, y, mask, clips).to(DEVICE)
    wanted = vectors.double() - scales[0] * total - scales[1] * drawn
    torch.testing.assert_close(moved, wanted.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(moved[2], vectors[2]), "who has no factor does not move"


@on_either
def test_rows_that_are_not_finite_or_huge_add_nothing() -> None:
    model, network, shape = made("cnn")
    x = random(1, 8, *shape, seed=2).float()
    y, mask = torch.arange(8)[None] % 5, torch.ones(1, 8, dtype=torch.bool)
    odd = {1: math.nan, 3: math.inf, 4: -math.inf, 6: 3e38}
    wrong = x.clone()
    for row, value in odd.items():
        wrong[0, row, 0, 4, 5] = value
    clips, vectors = torch.tensor([0.7], dtype=torch.float64), model.start[None]
    found = sums(network, vectors, wrong, y, mask, clips)
    mask[0, list(odd)] = False
    torch.testing.assert_close(found, sums(network, vectors, x, y, mask, clips), rtol=0, atol=1e-7)
    assert found.isfinite().all()


def _ours(model: Model, *given: Tensor) -> Tensor:
    network = pooled_cnn_of(model, given[1].flatten(0, 1))
    assert network is not None
    return sums(network, *given)


WAY = Way(_ours, ADDING)


@on_either
def test_a_row_moves_a_sum_by_at_most_the_clip() -> None:
    seen = 0
    for found in moves("conv2d", WAY, 500 if CUDA else 50, 7):
        assert found.broken(WAY) == []
        seen += int((found.alone > 0.995).sum())
    assert seen > 10, "bounds that nothing comes near say little"


@on_either
def test_a_factor_that_is_too_large_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.training.gpu.pooled_cnn import launch

    monkeypatch.setattr(launch, "_MARGIN", 1.0 + 1e-5)
    broken = {name for found in moves("conv2d", WAY, 50, 7) for name in found.broken(WAY)}
    assert "alone" in broken


@on_either
def test_a_row_alone_keeps_its_clip_to_the_last_digit() -> None:
    model, network, shape = made("few channels")
    count = 16
    vectors = model.start + 0.1 * random(count, model.layout.size, seed=1).float()
    x, y = random(count, 1, *shape, seed=2).float(), torch.zeros(count, 1, dtype=torch.long)
    clips = torch.logspace(-4, -1, count, dtype=torch.float64)
    norms = sums(network, vectors, x, y, torch.ones(count, 1, dtype=torch.bool), clips).norm(dim=1)
    assert (norms <= clips).all()
    assert (norms > 0.999999 * applied(clips)).double().mean() > 0.8


def jobs(model: Model) -> list[Job]:
    """Clients with different numbers of steps, that leave their group one after the other."""
    made_jobs, first = [], 0
    for i, (samples, size) in enumerate(((6, 2), (8, 5), (5, 3))):
        plan = plan_of(samples, size, math.ceil(samples / size), 0.5)
        source = noise.Seeded(i, 0, 0)
        vector = (model.start + 0.01 * i).to(DEVICE)
        made_jobs.append(Job(vector=vector, first_row=first, plan=plan, lr=0.1, source=source))
        first += samples
    return made_jobs


@on_either
def test_queued_steps_are_steps_given_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device finds batches and noise by itself, also where noise is drawn again and where clients have ended."""
    model, network, shape = made("few channels")
    monkeypatch.setattr(noise_bank, "_AT_ONCE", 2 * network.size)
    model.to(DEVICE)
    x, y = random(19, *shape).float().to(DEVICE), ((random(19, seed=1) * 10).long() % 5).to(DEVICE)
    queued, enqueue = [], PooledCnnStep.enqueue

    def noted(step: PooledCnnStep, packed: Tensor, drawn: Tensor, most: int) -> bool:
        queued.append(enqueue(step, packed, drawn, most))
        return queued[-1]

    monkeypatch.setattr(PooledCnnStep, "enqueue", noted)
    found = [train(model, x, y, jobs(model)) for _ in range(2)]  # on a GPU steps are replayed the second time
    monkeypatch.setattr(PooledCnnStep, "enqueue", lambda *_: False)
    given = train(model, x, y, jobs(model))
    assert all(queued) and queued
    for again in found:
        for ours, theirs in zip(again, given, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
            assert ours.norm() > 0.1
