"""Chains of pooled convolutions where there is no accelerator: what is one, how its numbers lie, and how clients train.

The kernels themselves are compared in `test_cuda.py`; here a stand-in computes their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.bench.workloads import plan_of
from hush.config import ModelConfig
from hush.models import Model, build_model
from hush.models.model import wrap
from hush.privacy import noise
from hush.privacy.row_budgets import RateGroup
from hush.training import grouping, select
from hush.training.gpu import noise_bank, sampling
from hush.training.gpu.pooled_cnn import step as cnn_step
from hush.training.gpu.pooled_cnn.network import Block, pooled_cnn_of
from hush.training.job import Job
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import packed_sums
from hush.training.train import train
from tests.support.nets import random

SHAPE = (1, 8, 8)
CPU = torch.device("cpu")


def cnn(shape: tuple[int, ...] = SHAPE) -> Model:
    return build_model(ModelConfig(name="cnn"), shape, 5, seed=1)


def test_the_networks_of_the_product_that_are_chains() -> None:
    chain = pooled_cnn_of(cnn((1, 28, 28)), torch.zeros(1, 1, 28, 28))
    assert chain is not None
    assert chain.size == cnn((1, 28, 28)).layout.size
    assert [block.first for block in chain.blocks] == [0, 416]
    assert (chain.features, chain.first) == (7 * 7 * 32, 416 + 12_832)
    for name in ("logreg", "mlp", "resnet18-gn"):
        assert (
            pooled_cnn_of(build_model(ModelConfig(name=name), (1, 28, 28), 5, seed=1), torch.zeros(1, 1, 28, 28))
            is None
        )


def layers(**changed: Any) -> list[nn.Module]:
    conv: dict[str, Any] = {"in_channels": 1, "out_channels": 4, "kernel_size": 3, "padding": 1}
    own = {key: value for key, value in changed.items() if key not in ("pool", "rectifier", "flat")}
    return [
        nn.Conv2d(**conv | own),
        changed.get("rectifier", nn.ReLU()),
        changed.get("pool", nn.MaxPool2d(2)),
        changed.get("flat", nn.Flatten()),
        nn.Linear(64, 5),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"stride": 2},
        {"dilation": 2},
        {"bias": False},
        {"padding_mode": "circular"},
        {"padding": "same"},
        {"kernel_size": 7, "padding": 3},
        {"pool": nn.MaxPool2d(3)},
        {"pool": nn.MaxPool2d(2, ceil_mode=True)},
        {"rectifier": nn.Tanh()},
        {"flat": nn.Flatten(2)},
        {"out_channels": 65},
    ],
)
def test_what_is_no_chain(changed: dict[str, Any]) -> None:
    assert pooled_cnn_of(wrap("own", nn.Sequential(*layers()), None), torch.zeros(1, 1, 8, 8)) is not None
    assert pooled_cnn_of(wrap("own", nn.Sequential(*layers(**changed)), None), torch.zeros(1, 1, 8, 8)) is None


def test_a_chain_that_is_heard_or_trained_in_part_is_none() -> None:
    module = nn.Sequential(*layers())
    module[1].register_forward_hook(lambda *_: None)
    assert pooled_cnn_of(wrap("own", module, None), torch.zeros(1, 1, 8, 8)) is None
    frozen = nn.Sequential(*layers())
    frozen[0].weight.requires_grad_(False)
    assert pooled_cnn_of(wrap("own", frozen, None), torch.zeros(1, 1, 8, 8)) is None


@pytest.mark.parametrize(
    ("kernel", "padding"), [((5, 5), (2, 2)), ((3, 5), (0, 1)), ((1, 1), (0, 0)), ((4, 2), (3, 0)), ((5, 3), (4, 2))]
)
def test_a_tap_is_found_at_the_position_plus_its_own_place(kernel: tuple[int, int], padding: tuple[int, int]) -> None:
    """The kernels' addresses, in PyTorch: output, gradient for the input, and gradient for the weights."""
    block = Block(inputs=3, height=7, width=6, outputs=4, kernel=kernel, padding=padding, first=0)
    (high, wide), (rows, columns) = block.size, kernel
    x, weight, d = random(3, 7, 6), random(4, 3, *kernel, seed=1), random(4, high, wide, seed=2)
    seen = torch.zeros(block.input_room, dtype=torch.float64)
    inside = seen[: 3 * block.plane].view(3, -1, block.pitch)
    inside[:, padding[0] : padding[0] + 7, padding[1] : padding[1] + 6] = x
    arrived = torch.zeros(block.gradient_room, dtype=torch.float64)
    at = torch.arange(high)[:, None] * block.pitch + torch.arange(wide) + block.gradient_first
    for o in range(4):
        arrived[o * block.gradient_plane + at] = d[o]
    flat = torch.arange(high * block.pitch)
    taps = torch.arange(rows)[:, None] * block.pitch + torch.arange(columns)
    reads = (torch.arange(3)[:, None, None] * block.plane + taps)[..., None] + flat
    out = torch.einsum("ocij,cijf->of", weight, seen[reads]).view(4, high, block.pitch)[:, :, :wide]
    torch.testing.assert_close(out, functional.conv2d(x[None], weight, padding=padding)[0])

    places = torch.arange(4)[:, None] * block.gradient_plane + block.gradient_first + flat
    each = torch.einsum("of,cijf->ocij", arrived[places], seen[reads])
    torch.testing.assert_close(each, torch.nn.grad.conv2d_weight(x[None], weight.shape, d[None], padding=padding))  # type: ignore[attr-defined]

    whole = torch.arange(7 * block.pitch)
    begin = block.gradient_first + padding[0] * block.pitch
    shifts = torch.arange(4)[:, None] * block.gradient_plane - torch.arange(rows) * block.pitch + begin
    parts = torch.einsum("ocij,oif->jcf", weight, arrived[shifts[..., None] + whole]).view(columns, 3, 7, -1)
    back = torch.zeros(3, 7, 6, dtype=torch.float64)
    for j in range(columns):
        for w in range(6):
            if 0 <= w + padding[1] - j < wide:
                back[:, :, w] += parts[j, :, :, w + padding[1] - j]
    torch.testing.assert_close(back, torch.nn.grad.conv2d_input((1, 3, 7, 6), weight, d[None], padding=padding)[0])  # type: ignore[attr-defined]


class Batch(NamedTuple):
    rows: Tensor
    owner: Tensor
    ends: Tensor


class Kernel:
    """A function of the two numbers of a program, called for each."""

    def __init__(self, program: Callable[..., None]) -> None:
        self._program = program

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def launch(*given: Any, **known: Any) -> None:
            for i in range(grid[0]):
                for j in range(grid[1]):
                    self._program(i, j, *given, **known)

        return launch


def decide(
    i: int, step: int, words: Tensor, clients: Tensor, chosen: Tensor, counts: Tensor, first: int, *_: Any, **__: Any
) -> None:
    samples, steps, bar, _row, begin, fixed = clients[first + i].tolist()
    if step < steps:
        assert fixed < 0
        at = begin + step * samples
        high = (words[at - int(clients[first, 4]) :][:samples] >> 11) & (2**53 - 1)
        chosen[at : at + samples] = high < bar
        counts[step, first + i] = int((high < bar).sum())


def put(
    i: int,
    step: int,
    chosen: Tensor,
    clients: Tensor,
    ends: Tensor,
    packed: Tensor,
    _n: int,
    _s: int,
    rows: int,
    room: int,
    **_: Any,
) -> None:
    samples, steps, _bar, row, begin, _fixed = clients[i].tolist()
    if step < steps:
        mine = chosen[begin + step * samples :][:samples].nonzero()[:, 0] + row
        at = rows + int(ends[step, i])
        packed[step, at : at + len(mine)] = mine.int()
        packed[step, at + room : at + room + len(mine)] = i


def stand_in(model: Model) -> Any:
    """What computes sums and draws rows in place of the kernels."""

    def sums(_: Any, vectors: Tensor, x: Tensor, y: Tensor, batch: Batch, clips: Tensor, how: str, out: Tensor) -> None:
        counts = batch.ends.diff().tolist()
        assert how == "tf32x3"
        assert torch.equal(
            batch.owner[: sum(counts)].long(), torch.arange(len(counts)).repeat_interleave(batch.ends.diff())
        )
        rows = batch.rows[: sum(counts)].long()
        out.copy_(packed_sums(Recorder(model), vectors, x, y, counts, clips, 32, rows=rows))

    def space(_: Any, examples: int, __: torch.device) -> Any:
        return SimpleNamespace(examples=examples)

    def fused_step(*given: Any) -> None:
        sums(*given[:-2])
        (vectors, total), (noise, scales) = given[1:8:6], given[-2:]
        vectors.sub_(scales[0] * total + scales[1] * noise)

    launch = SimpleNamespace(Batch=Batch, Queue=lambda *_: None, Workspace=space, sums=sums, fused_step=fused_step)
    drawing = SimpleNamespace(DECIDE=Kernel(decide), LOWEST=None, PLACE=Kernel(put))
    return SimpleNamespace(pooled_cnn=launch, sampling=drawing)


class Hosted:
    """A source that only the host may draw from."""

    def __init__(self, seed: int) -> None:
        self._source = noise.Seeded(seed, 0, 0)
        self.normal, self.chosen = self._source.normal, self._source.chosen

    def device_rng(self, _: torch.device) -> None:
        return None


class Mirrored:
    """A source of the rows and the noise that the device generator of another gives."""

    def __init__(self, seed: int, samples: int, steps: int, size: int) -> None:
        rng = noise.Seeded(seed, 0, 0).device_rng(CPU)
        assert rng is not None
        words = torch.empty(steps * samples, dtype=torch.int64)
        self._noise = torch.empty(min(steps, noise_bank._AT_ONCE // size), size)
        assert len(self._noise) == steps
        rng.words(words)
        rng.fill(self._noise)
        self._words, self._next = ((words >> 11) & (2**53 - 1)).view(steps, samples), [0, 0]

    def chosen(self, size: int, rate: float) -> Tensor:
        self._next[0] += 1
        return (self._words[self._next[0] - 1] < noise.threshold(rate)).nonzero()[:, 0]

    def normal(self, size: int, dtype: torch.dtype) -> Tensor:
        self._next[1] += 1
        return self._noise[self._next[1] - 1]

    def device_rng(self, _: torch.device) -> None:
        return None


KINDS: Sequence[dict[str, Any]] = (
    {},
    {"drift": 0.3},
    {"proximal": 0.8},
    {"at_start": True},
    {"drift": 0.2, "proximal": 0.5},
)
SIZES = ((12, 2), (9, 4), (10, 10), (14, 3), (8, 1))


def jobs(model: Model, source: Callable[[int, int, int], Any]) -> list[Job]:
    made, first = [], 0
    for i, ((samples, size), kind) in enumerate(zip(SIZES, KINDS, strict=True)):
        plan = plan_of(samples, size, math.ceil(samples / size) * (1 + i % 2), 0.5)
        drift = kind["drift"] * random(model.layout.size, seed=i).float() if "drift" in kind else None
        rest = {key: value for key, value in kind.items() if key != "drift"}
        made.append(
            Job(
                vector=model.start + 0.01 * i,
                first_row=first,
                plan=plan,
                lr=0.1,
                source=source(i, samples, plan.steps),
                drift=drift,
                **rest,
            )
        )
        first += samples
    return made


@pytest.mark.parametrize("drawn", ["host", "device"])
@pytest.mark.parametrize("split", [0, 4096])
def test_clients_of_all_kinds_train_as_they_do_one_by_one(
    monkeypatch: pytest.MonkeyPatch, drawn: str, split: int
) -> None:
    model = cnn()
    x, y = random(60, *SHAPE).float(), (random(60, seed=1) * 10).long() % 5

    def mirrored(i: int, samples: int, steps: int) -> Mirrored:
        return Mirrored(i, samples, steps, model.layout.size)

    given = jobs(model, mirrored) if drawn == "device" else jobs(model, lambda i, *_: Hosted(i))
    expected = train(model, x, y, given)
    for module in (cnn_step, sampling, select):
        monkeypatch.setattr(module, "triton_kernels", lambda _: stand_in(model))
    # Addresses are for kernels: steps are given one by one.
    monkeypatch.setattr(cnn_step.PooledCnnStep, "enqueue", lambda *_: False)
    monkeypatch.setattr(grouping, "SMALL_STEP", split)
    monkeypatch.setattr(sampling, "_WORDS", 40)
    again = jobs(model, lambda i, *_: noise.Seeded(i, 0, 0) if drawn == "device" else Hosted(i))
    assert len(grouping.similar_steps(again)) == (3 if split else 2)
    for ours, theirs in zip(train(model, x, y, again), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_step_without_room_for_its_examples_takes_them_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    model = cnn()
    chain = pooled_cnn_of(model, torch.zeros(1, *SHAPE))
    assert chain is not None
    monkeypatch.setattr(cnn_step, "triton_kernels", lambda _: stand_in(model))
    x, y = random(20, *SHAPE).float(), torch.zeros(20, dtype=torch.long)
    moved = []
    for room in (4, 40):
        step = cnn_step.PooledCnnStep(model, chain, (x, y), 3, room, 40, "tf32x3", "plain")
        step.vectors.copy_(model.start.expand(3, -1))
        step._fused_scales[0] = 0.1
        packed = step.packed([np.arange(9), np.arange(5, 5)])
        step.step(torch.from_numpy(packed), None, 9)
        moved.append(step.vectors)
    torch.testing.assert_close(*moved)
    assert not torch.equal(moved[0][0], model.start)
    assert torch.equal(moved[0][1], model.start), "without examples, and without noise, nothing moves"


def test_steps_are_kept_for_as_many_clients_as_they_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = cnn()
    chain = pooled_cnn_of(model, torch.zeros(1, *SHAPE))
    assert chain is not None
    monkeypatch.setattr(cnn_step, "triton_kernels", lambda _: stand_in(model))
    x, y = torch.zeros(4, *SHAPE), torch.zeros(4, dtype=torch.long)

    def kept(clients: int, slots: int) -> cnn_step.PooledCnnStep:
        return cnn_step.cached_step(model, chain, x, y, ("plain", 0), (clients, slots), 100, "float32")

    first = kept(6, 50)
    assert kept(4, 40) is first
    assert kept(6, 51) is not first
    small = kept(2, 10)
    assert small.clients == 2


def test_rows_are_drawn_on_the_device_only_where_that_is_the_same_sampler() -> None:
    model = cnn()
    poisson, fixed = (
        Job(vector=model.start, first_row=0, plan=plan, lr=0.1, source=noise.Seeded(1, 0, 0))
        for plan in (plan_of(10, 2, 5, 1.0), _fixed(plan_of(10, 2, 5, 1.0)))
    )
    grouped = replace(poisson, plan=replace(poisson.plan, groups=(RateGroup(1.0, 10, 0.2),)))
    for job, suits in ((poisson, True), (fixed, True), (grouped, False)):
        assert sampling.can_sample([job], [job.source.device_rng(CPU)]) is suits
        assert sampling.can_sample([job], [None]) is False
    assert noise.threshold(1.0) == 2**53
    assert noise.threshold(0.25) == 2**51


def _fixed(plan: Any) -> Any:
    return replace(plan, relation="replace-one", sampler="fixed")
