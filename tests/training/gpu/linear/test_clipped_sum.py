"""Kernels of a linear layer: their sums against float64 by definition, and training against the closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush.bench.workloads import plan_of
from hush.models import Model
from hush.models.model import wrap
from hush.objective import CLASSIFICATION, BinaryCrossEntropy, Huber, Loss, MeanSquaredError, Objective
from hush.privacy import noise
from hush.training import train as training
from hush.training.closed_form import LinearLayer, linear_layer_of
from hush.training.gpu import noise_bank, sampling
from hush.training.gpu.linear import clipped_sum
from hush.training.gpu.linear.clipped_sum import LinearSum, linear_sums
from hush.training.job import Job
from hush.training.train import train
from tests.statistical.neighbours import KERNELS, moves, objectives
from tests.support.interpreter import CUDA, DEVICE, check_interpreted, on_a_gpu, on_either, runs_itself
from tests.support.nets import applied, double, random, reference

# NumPy, in which the interpreter computes, warns of what kernels leave out afterwards.
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")
LOSSES: Mapping[str, Loss] = {"labels": BinaryCrossEntropy(), "mse": MeanSquaredError(), "huber": Huber()}


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

        for module in (clipped_sum, sampling):
            monkeypatch.setattr(module, "triton_kernels", lambda _: kernels)


def model_of(width: int, classes: int, bias: bool = True, loss: Loss | None = None) -> Model:
    model = wrap("linear", nn.Sequential(nn.Flatten(), nn.Linear(width, classes, bias=bias)), None)
    objective = CLASSIFICATION if loss is None else Objective(task="regression", loss=loss, outputs=classes)
    return replace(model, objective=objective, start=0.3 * random(model.layout.size, seed=5).float())


def layer_of(model: Model, width: int) -> LinearLayer:
    layer = linear_layer_of(model, torch.zeros(1, width))
    assert layer is not None
    return layer


def ours(model: Model, vectors: Tensor, x: Tensor, y: Tensor, mask: Tensor, clips: Tensor) -> Tensor:
    layer = layer_of(model, x[0, 0].numel())
    given = [t.to(DEVICE) for t in (vectors.float(), x.float(), y, mask, clips)]
    return linear_sums(layer, *given).cpu()


@on_either
@pytest.mark.parametrize("width", [5, 16, 40, 100, 130, 300])
@pytest.mark.parametrize(("classes", "bias"), [(1, True), (2, False), (10, True), (17, False), (128, True)])
def test_sums_are_those_of_float64(width: int, classes: int, bias: bool) -> None:
    model = model_of(width, classes, bias)
    vectors = model.start + 0.3 * random(4, model.layout.size, seed=1).float()
    x, mask = random(4, 41, width, seed=2).float(), random(4, 41, seed=3) > -0.8
    mask[2] = False
    y = (random(4, 41, seed=4).abs() * 7).long() % classes
    clips = torch.tensor([0.5, 2.0, 1.0, math.inf], dtype=torch.float64)
    found = ours(model, vectors, x, y, mask, clips)
    exact = reference(double(model), vectors, x, y, mask, clips)
    assert not found[2].any()
    assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())


@on_either
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("width", [7, 140])
def test_sums_of_other_losses_are_those_of_float64(name: str, width: int) -> None:
    model = model_of(width, 3, loss=LOSSES[name])
    vectors = model.start + 0.3 * random(3, model.layout.size, seed=1).float()
    x, mask = random(3, 20, width, seed=2).float(), random(3, 20, seed=3) > -0.8
    y = random(3, 20, 3, seed=4).float()
    if name == "labels":
        y = (y > 0).float()
    clips = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    found = ours(model, vectors, x, y, mask, clips)
    exact = reference(replace(double(model), objective=model.objective), vectors, x, y.double(), mask, clips)
    assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())


@on_either
@pytest.mark.parametrize("width", [6, 150])
def test_rows_that_are_not_finite_or_huge_add_nothing(width: int) -> None:
    model = model_of(width, 3)
    x = random(1, 40, width, seed=2).float()
    y, mask = torch.arange(40)[None] % 3, torch.ones(1, 40, dtype=torch.bool)
    odd = {3: math.nan, 7: math.inf, 11: -math.inf, 13: 3e38}
    wrong = x.clone()
    for row, value in odd.items():
        wrong[0, row, 1] = value
    clips, vectors = torch.tensor([0.7], dtype=torch.float64), model.start[None]
    found = ours(model, vectors, wrong, y, mask, clips)
    mask[0, list(odd)] = False
    torch.testing.assert_close(found, ours(model, vectors, x, y, mask, clips), rtol=1e-12, atol=1e-13)
    assert found.isfinite().all()


@on_either
@pytest.mark.parametrize("width", [6, 150])
def test_a_row_alone_keeps_its_clip_to_the_last_digit(width: int) -> None:
    model, count = model_of(width, 4), 64
    vectors = model.start + 0.5 * random(count, model.layout.size, seed=1).float()
    x, y = random(count, 1, width, seed=2).float(), torch.zeros(count, 1, dtype=torch.long)
    clips = torch.logspace(-4, 0, count, dtype=torch.float64)
    norms = ours(model, vectors, x, y, torch.ones(count, 1, dtype=torch.bool), clips).norm(dim=1)
    assert (norms <= clips).all()
    assert (norms > 0.999999 * applied(clips)).double().mean() > 0.9


@on_either
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["cross-entropy", "labels", "mse", "huber"])
def test_a_row_moves_a_sum_by_at_most_the_clip(monkeypatch: pytest.MonkeyPatch, name: str, fused: bool) -> None:
    from hush.training.gpu.linear import launch

    if not fused:
        monkeypatch.setattr(launch, "_FUSED_INPUTS", 0)
    seen = 0
    for found in moves("linear", KERNELS, 500 if CUDA else 50, 7, objectives()[name]):
        assert found.broken(KERNELS) == []
        seen += int((found.alone > 0.995).sum())
    assert seen > 10, "bounds that nothing comes near say little"


@on_either
def test_a_factor_that_is_too_large_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hush.training.gpu.linear import launch

    monkeypatch.setattr(launch, "_MARGIN", 1.0 + 1e-6)
    broken = {name for found in moves("linear", KERNELS, 50, 7) for name in found.broken(KERNELS)}
    assert "alone" in broken


class Mirrored:
    """A source of the rows and the noise that the device generator of another gives."""

    def __init__(self, seed: int, samples: int, steps: int, size: int, most: int = 1 << 19) -> None:
        rng = noise.Seeded(seed, 0, 0).device_rng(DEVICE)
        assert rng is not None
        words = torch.empty(steps * samples, dtype=torch.int64, device=DEVICE)
        drawn = torch.empty(steps, size, device=DEVICE)
        rng.words(words)
        for part in drawn.split(max(1, most // size)):
            rng.fill(part)
        self._noise, self._next = drawn.cpu(), [0, 0]
        self._words = ((words.cpu() >> 11) & (2**53 - 1)).view(steps, samples)

    def chosen(self, size: int, rate: float) -> Tensor:
        self._next[0] += 1
        return (self._words[self._next[0] - 1] < noise.threshold(rate)).nonzero()[:, 0]

    def uniform(self, size: int) -> Tensor:
        self._next[0] += 1
        return self._words[self._next[0] - 1].double() * 2.0**-53

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        self._next[1] += 1
        return self._noise[self._next[1] - 1]

    def device_rng(self, _: torch.device) -> None:
        return None


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"drift": 0.3},
    {"proximal": 0.8},
    {"at_start": True},
    {"drift": 0.2, "proximal": 0.5},
    {"fixed": True},
    {"clip": math.inf},
)
SIZES = ((12, 2), (9, 4), (10, 10), (14, 3), (8, 1), (11, 5), (7, 3))


def jobs_of(model: Model, source: Callable[[int, int, int], Any], centred: bool, width: int) -> list[Job]:
    made, first = [], 0
    for i, ((samples, size), kind) in enumerate(zip(SIZES, KINDS, strict=True)):
        plan = plan_of(samples, size, math.ceil(samples / size) * (1 + i % 2), 0.5)
        if kind.get("fixed"):
            plan = replace(plan, sampler="fixed", relation="replace-one")
        if "clip" in kind:
            plan = replace(plan, clip=kind["clip"], noise_multiplier=0.0)
        drift = kind["drift"] * random(model.layout.size, seed=i).float() if "drift" in kind else None
        made.append(
            Job(
                vector=model.start + 0.01 * i,
                first_row=first,
                plan=plan,
                lr=0.1,
                source=source(i, samples, plan.steps),
                drift=drift,
                proximal=kind.get("proximal", 0.0),
                at_start=kind.get("at_start", False),
                input_mean=0.2 * random(width, seed=i % 2).float() if centred and i != 4 else None,
            )
        )
        first += samples
    return made


def on_device(job: Job, model: Model) -> Job:
    moved = {name: t.to(DEVICE) for name in ("vector", "drift", "input_mean") if (t := getattr(job, name)) is not None}
    return replace(job, **moved)


@on_either
@pytest.mark.parametrize("width", [6, 140])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("at_once", [1 << 28, 60])
def test_clients_of_all_kinds_train_as_in_closed_form(
    monkeypatch: pytest.MonkeyPatch, width: int, centred: bool, at_once: int
) -> None:
    model = model_of(width, 3)
    x, y = random(80, width).float(), (random(80, seed=1).abs() * 7).long() % 3
    size = model.layout.size
    expected = train(model, x, y, jobs_of(model, lambda i, n, t: Mirrored(i, n, t, size), centred, width))
    monkeypatch.setattr(clipped_sum, "_AT_ONCE", at_once)
    again = [on_device(job, model) for job in jobs_of(model, lambda i, *_: noise.Seeded(i, 0, 0), centred, width)]
    rngs = noise_bank.device_rngs(again)
    layer, there, labels = layer_of(model, width), x.to(DEVICE), y.to(DEVICE)
    assert clipped_sum.can_train(layer, there, labels, again, rngs)
    path = LinearSum(layer, there, labels, again, rngs)
    assert len(path.groups(again)) == (1 if at_once > 60 else 6)
    monkeypatch.setattr(training, "select", lambda *_: path)
    for found, wanted in zip(train(model, there, labels, again), expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=2e-6)


@on_either
@pytest.mark.parametrize("most", [1, 1 << 19])
def test_rounds_of_one_step_and_noise_of_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A bank with room for one step draws in the buffer that it is given."""
    model = model_of(6, 3)
    x, y = random(40, 6).float(), (random(40, seed=1).abs() * 7).long() % 3
    monkeypatch.setattr(noise_bank, "_AT_ONCE", most)
    for steps in (1, 3):
        plans = [replace(plan_of(20, 4, 5, 0.5), local_steps=steps), replace(plan_of(20, 4, 5, 0.5), local_steps=1)]

        def given(source: Callable[[int, int], Any], plans: list[Any] = plans) -> list[Job]:
            return [
                Job(vector=model.start, first_row=20 * i, plan=plan, lr=0.1, source=source(i, plan.steps))
                for i, plan in enumerate(plans)
            ]

        def mirrored(i: int, own: int) -> Mirrored:
            return Mirrored(i, 20, own, model.layout.size, most)

        expected = train(model, x, y, given(mirrored))
        again = [on_device(job, model) for job in given(lambda i, _: noise.Seeded(i, 0, 0))]
        path = LinearSum(layer_of(model, 6), x.to(DEVICE), y.to(DEVICE), again, noise_bank.device_rngs(again))
        with monkeypatch.context() as patched:
            patched.setattr(training, "select", lambda *_, path=path: path)
            found = train(model, x.to(DEVICE), y.to(DEVICE), again)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=2e-6)


@on_either
def test_the_same_seed_trains_alike_whoever_trains_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(6, 3)
    x, y = random(80, 6).float().to(DEVICE), (random(80, seed=1).abs() * 7).long().to(DEVICE) % 3

    def trained(chosen: slice) -> list[Tensor]:
        given = [on_device(job, model) for job in jobs_of(model, lambda i, *_: noise.Seeded(i, 0, 0), False, 6)][chosen]
        path = LinearSum(layer_of(model, 6), x, y, given, noise_bank.device_rngs(given))
        monkeypatch.setattr(training, "select", lambda *_: path)
        return train(model, x, y, given)

    for one, two, alone in zip(trained(slice(7)), trained(slice(7)), trained(slice(0, 1)), strict=False):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, alone, rtol=1e-6, atol=1e-7)


@on_either
def test_what_the_kernels_do_not_train() -> None:
    model = model_of(6, 3)
    x, y = torch.zeros(20, 6, device=DEVICE), torch.zeros(20, dtype=torch.long, device=DEVICE)
    layer = layer_of(model, 6)
    job = Job(vector=model.start, first_row=0, plan=plan_of(20, 4, 5, 1.0), lr=0.1, source=noise.Seeded(1, 0, 0))
    rng, own = job.source.device_rng(DEVICE), objectives()["own"]

    def suits(**changed: Any) -> bool:
        kept = {"layer": layer, "x": x, "y": y, "jobs": [job], "rngs": [rng]} | changed
        return clipped_sum.can_train(**kept)  # type: ignore[arg-type]

    assert suits()
    for changed in (
        {"x": x.double()},
        {"y": y.float()},
        {"x": x.t().contiguous().t()},
        {"rngs": [None]},
        {"layer": replace(layer, classes=129)},
        {"layer": replace(layer, loss=own.loss)},
        {"jobs": [replace(job, plan=replace(job.plan, discrete=True))]},
    ):
        assert not suits(**changed)


@on_a_gpu
def test_it_is_selected_for_a_linear_model_on_a_gpu() -> None:
    from hush.training.select import select

    model = model_of(6, 3)
    model.to(DEVICE)
    x, y = torch.zeros(20, 6, device=DEVICE), torch.zeros(20, dtype=torch.long, device=DEVICE)
    job = Job(
        vector=model.start.to(DEVICE), first_row=0, plan=plan_of(20, 4, 5, 1.0), lr=0.1, source=noise.Seeded(1, 0, 0)
    )
    assert isinstance(select(model, x, y, [job]), LinearSum)
