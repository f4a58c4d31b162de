"""The path for accelerators, on one: sums and training against float64 on the processor, in every precision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hush.bench.workloads import plan_of
from hush.models import Model
from hush.models.model import wrap
from hush.models.zoo import _BUILDERS
from hush.privacy import noise
from hush.training.gpu.pooled_cnn.clipped_sum import pooled_cnn_sums
from hush.training.gpu.pooled_cnn.network import pooled_cnn_of
from hush.training.gpu.sampling import sample
from hush.training.job import Job
from hush.training.per_example.recorder import Recorder
from hush.training.per_example.sums import padded_sums
from hush.training.select import clipped_sums
from hush.training.train import train
from tests.support.nets import applied, batch, double, random, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

SAMPLES = 60


class Named:
    hidden = 40


def made(name: str, shape: tuple[int, ...] = (1, 12, 12)) -> Model:
    module = _BUILDERS[name](shape, 5, Named())  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in module.parameters():
            fan = value[:1].numel() if value.ndim > 1 else 100
            value.copy_(torch.randn(value.shape, generator=generator) / math.sqrt(fan))
    return wrap(name, module, None)


def on_cuda(model: Model) -> Model:
    return Model(name=model.name, module=model.module.cuda(), layout=model.layout, start=model.start.cuda())


@pytest.mark.parametrize(("precision", "cost"), [("float32", 1e-5), ("tf32", 5e-3), ("bf16", 0.1)])
@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn"])
def test_sums_are_those_of_float64(name: str, precision: Any, cost: float) -> None:
    model = made(name)
    vectors, x, y, mask = batch(model, (1, 12, 12), 5, clients=5, examples=9)
    clips = torch.tensor([0.05, 0.5, 1.0, 3.0, 1e6], dtype=torch.float64)
    exact = reference(double(made(name)), vectors, x, y, mask, clips)
    device = [t.cuda() for t in (vectors.float(), x.float(), y, mask, clips)]
    ours = clipped_sums(on_cuda(model), *device, physical_batch=20, precision=precision).cpu().double()  # type: ignore[arg-type,misc]
    error = float((ours - exact).norm() / exact.norm())
    assert error < cost
    assert precision != "bf16" or error > 1e-5, "bf16 is not float32 by another name"


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_clip_holds_in_every_precision(name: str, precision: Any) -> None:
    model = on_cuda(made(name, (1, 8, 8)))
    clients = 300
    vectors = model.start + 0.05 * random(clients, model.layout.size).float().cuda()
    x, y = random(clients, 1, 1, 8, 8, seed=1).float().cuda(), torch.zeros(clients, 1, dtype=torch.long).cuda()
    clips = torch.linspace(1e-4, 1e-2, clients, dtype=torch.float64).cuda()
    mask = torch.ones(clients, 1, dtype=torch.bool).cuda()
    norms = clipped_sums(model, vectors, x, y, mask, clips, precision=precision).double().norm(dim=1)
    assert (norms <= clips).all()
    assert (norms > 0.9999 * applied(clips)).double().mean() > 0.9


class Hosted:
    """A source whose noise on the device is what the host would draw, so that both can be compared."""

    def __init__(self, seed: int) -> None:
        self._source = noise.Seeded(seed, 0, 0)
        self.normal, self.chosen = self._source.normal, self._source.chosen

    def device_rng(self, device: torch.device) -> None:
        return None


def jobs(model: Model, device: str, still: bool = False) -> list[Job]:
    kinds: list[dict[str, Any]] = [{}, {"drift": 0.3}, {"proximal": 0.8}, {"drift": 0.2, "proximal": 0.5}, {}]
    made_jobs = []
    for i, (size, kind) in enumerate(zip((6, 6, 12, 20, 60), kinds, strict=True)):
        drift = kind.get("drift")
        vector = None if drift is None else drift * random(model.layout.size, seed=i).float().to(device)
        plan = plan_of(SAMPLES, size, (1 + i % 2) * math.ceil(SAMPLES / size), 0.5)
        start = (model.start.cpu() + 0.01 * i).to(device)
        made_jobs.append(
            Job(
                vector=start,
                first_row=SAMPLES * i,
                plan=plan,
                lr=0.1,
                source=Hosted(i),  # type: ignore[arg-type]
                drift=vector,
                proximal=kind.get("proximal", 0.0),
                at_start=still and i % 2 == 0,
            )
        )
    return made_jobs


def data(device: str) -> tuple[Tensor, Tensor]:
    x, y = random(5 * SAMPLES, 1, 12, 12).float(), (random(5 * SAMPLES, seed=1) * 10).long() % 5
    return x.to(device), y.to(device)


@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn"])
@pytest.mark.parametrize("still", [False, True])
def test_training_is_that_of_the_processor(name: str, still: bool) -> None:
    expected = train(made(name), *data("cpu"), jobs(made(name), "cpu", still))
    model = on_cuda(made(name))
    for _ in range(2):  # the second time, steps are replayed
        found = train(model, *data("cuda"), jobs(model, "cuda", still))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["logreg", "mlp"])
def test_groups_that_run_at_once_do_not_disturb_each_other(name: str) -> None:
    expected = train(made(name), *data("cpu"), jobs(made(name), "cpu"))
    model = on_cuda(made(name))
    for _ in range(6):
        # All groups wait for this, and then run side by side as fast as the device can.
        torch.cuda._sleep(100_000_000)
        found = train(model, *data("cuda"), jobs(model, "cuda"))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-5)


def test_noise_of_the_device_has_the_planned_scale_and_repeats() -> None:
    model = on_cuda(made("cnn"))
    x, y = data("cuda")
    plan = replace(plan_of(SAMPLES, 12, 5, 1e-6), noise_multiplier=1e6)

    def updates(order: list[int]) -> dict[int, Tensor]:
        mine = [
            Job(vector=model.start, first_row=SAMPLES * i, plan=plan, lr=1.0, source=noise.Seeded(3, i, 1))
            for i in order
        ]
        return dict(zip(order, train(model, x, y, mine), strict=True))

    together, alone = updates([0, 1, 2]), updates([1])
    torch.testing.assert_close(together[1], alone[1], rtol=1e-4, atol=1e-5)
    scale = math.sqrt(plan.steps) / plan.batch
    assert float(together[0].std()) == pytest.approx(scale, rel=0.02)
    crossed = torch.corrcoef(torch.stack([together[0], together[1]]))[0, 1]
    assert abs(float(crossed)) < 6 / math.sqrt(model.layout.size)


def _only_on_the_device(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """Fail if the host draws."""

    def refused(*_: object) -> Tensor:
        raise AssertionError("the host draws")

    for name in names:
        monkeypatch.setattr(noise.Secure, name, refused)


@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn"])
def test_secure_noise_of_the_device_has_the_planned_scale_and_never_repeats(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients, rounds and steps differ, and so do the replays of a captured step."""
    _only_on_the_device(monkeypatch, ["normal", "chosen"] if name == "cnn" else ["normal"])
    model = on_cuda(made(name))
    x, y = data("cuda")
    plan = replace(plan_of(SAMPLES, 12, 5, 1e-6), noise_multiplier=1e6)
    rounds = [
        train(
            model,
            x,
            y,
            [
                Job(vector=model.start, first_row=SAMPLES * i, plan=plan, lr=1.0, source=noise.Secure())
                for i in range(3)
            ],
        )
        for _ in range(3)
    ]
    updates = torch.stack([update for each in rounds for update in each]).double()
    # Noise that repeats in every step would be larger by the root of their number.
    scale, size = math.sqrt(plan.steps) / plan.batch, model.layout.size
    deviations = updates.std(dim=1) / scale
    assert float((deviations - 1).abs().max()) < 6 / math.sqrt(2 * size)
    crossed = torch.corrcoef(updates) - torch.eye(len(updates), device=updates.device)
    assert float(crossed.abs().max()) < 6 / math.sqrt(size)


@pytest.mark.parametrize("samples", [30, 3000, 200_000])
def test_secure_rows_of_the_device_have_the_planned_rate(samples: int) -> None:
    """Down to a rate of 1/10,000, each row as often as another, and no two clients alike."""
    model, device = on_cuda(made("cnn")), torch.device("cuda")
    plan = replace(plan_of(samples, 20, math.ceil(samples / 20), 0.5), local_steps=100)
    mine = [Job(vector=model.start, first_row=samples * i, plan=plan, lr=0.1, source=noise.Secure()) for i in range(4)]
    draws = sample(mine, [job.source.device_rng(device) for job in mine], device)
    chosen = draws.chosen.view(4, plan.steps, samples).double().cpu()
    counts = chosen.sum((1, 2))
    planned, spread = plan.steps * samples * plan.rate, math.sqrt(plan.steps * samples * plan.rate * (1 - plan.rate))
    assert float((counts - planned).abs().max()) < 6 * spread
    by_row = chosen.sum((0, 1))
    expected = 4 * plan.steps * plan.rate
    excess = float(((by_row - expected) ** 2).mean() / (expected * (1 - plan.rate)) - 1)
    assert abs(excess) < 6 * math.sqrt((2 + 1 / expected) / samples)
    both = (chosen[0] * chosen[1]).sum()
    wanted = plan.steps * samples * plan.rate**2
    assert abs(float(both) - wanted) < 6 * math.sqrt(wanted) + 6


def test_a_full_batch_is_taken_in_pieces() -> None:
    model = on_cuda(made("cnn"))
    whole = Job(vector=model.start, first_row=0, plan=plan_of(SAMPLES, SAMPLES, 1, 0.5), lr=0.1, source=Hosted(1))  # type: ignore[arg-type]
    again = replace(whole, source=Hosted(1))  # type: ignore[arg-type]
    a, b = (train(model, *data("cuda"), [job], size)[0] for job, size in ((whole, 4096), (again, 7)))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_chain_and_the_recorded_network_agree() -> None:
    model = on_cuda(made("cnn", (2, 13, 10)))
    chain = pooled_cnn_of(model, torch.zeros(1, 2, 13, 10))
    assert chain is not None
    vectors, x, y, mask = batch(made("cnn", (2, 13, 10)), (2, 13, 10), 5, clients=4, examples=7)
    mask[2] = False
    clips = torch.tensor([0.05, 0.5, 1.0, 1e6], dtype=torch.float64)
    x[0, 0, 0, 0, 0], x[3, 1, 1, 2, 2], mask[0, 0], mask[3, 1] = math.nan, math.inf, True, True
    device = [t.cuda() for t in (vectors.float(), x.float(), y, mask, clips)]
    ours = pooled_cnn_sums(chain, *device, 6, "float32")  # type: ignore[arg-type,call-arg]
    xs, ys, masks = (t.transpose(0, 1).flatten(0, 1) for t in device[1:4])
    other = padded_sums(Recorder(model), device[0], xs, ys, masks, device[4], 4096)
    assert ours.isfinite().all()
    assert not ours[2].any()
    assert float((ours - other).norm() / other.norm()) < 1e-5
    mask[0, 0] = mask[3, 1] = False
    torch.testing.assert_close(pooled_cnn_sums(chain, *device[:3], mask.cuda(), device[4], 6, "float32"), ours)  # type: ignore[arg-type,call-arg]


def test_a_chain_trains_many_batch_sizes_at_once_as_each_alone() -> None:
    model = on_cuda(made("cnn"))
    x, y = data("cuda")
    plans = [plan_of(SAMPLES, size, math.ceil(SAMPLES / size), 0.5) for size in (2, 5, 30, 60)]

    def job(i: int) -> Job:
        return Job(vector=model.start, first_row=SAMPLES * i, plan=plans[i], lr=0.1, source=noise.Seeded(5, i, 1))

    together = train(model, x, y, [job(i) for i in range(4)])
    for i in range(4):
        torch.testing.assert_close(together[i], train(model, x, y, [job(i)])[0], rtol=1e-4, atol=1e-6)


def test_rows_of_the_device_are_those_of_its_bits() -> None:
    model, device = on_cuda(made("cnn")), torch.device("cuda")
    sizes = [(700, 3), (1500, 40), (40, 40), (1025, 999)]
    plans = [plan_of(samples, size, math.ceil(samples / size), 0.5) for samples, size in sizes]
    mine = [
        Job(vector=model.start, first_row=10_000 * i, plan=p, lr=0.1, source=noise.Seeded(2, i, 1))
        for i, p in enumerate(plans)
    ]
    mine.sort(key=lambda job: -job.plan.steps)
    draws = sample(mine, [job.source.device_rng(device) for job in mine], device)
    packed = draws.packed(6, max(draws.totals) + 5).cpu()
    for step, total in enumerate(draws.totals):
        ends, rows, owner = packed[step].split([7, max(draws.totals) + 5, max(draws.totals) + 5])
        assert ends[-1] == total
        for i, job in enumerate(mine):
            found = rows[ends[i] : ends[i + 1]]
            assert (owner[ends[i] : ends[i + 1]] == i).all()
            if step >= job.plan.steps:
                assert not len(found)
                continue
            rng, bits = job.source.device_rng(device), torch.empty(job.plan.steps * job.plan.samples, dtype=torch.int64)
            assert rng is not None
            there = bits.to(device)
            rng.words(there)
            high = (there.cpu().view(job.plan.steps, -1)[step] >> 11) & (2**53 - 1)
            expected = (high < noise.threshold(job.plan.rate)).nonzero()[:, 0] + job.first_row
            assert torch.equal(found.long(), expected)
    taken = sum(draws.totals)
    mean = sum(job.plan.steps * job.plan.batch for job in mine)
    assert abs(taken - mean) < 6 * math.sqrt(mean)


@pytest.mark.parametrize("broken", [False, True])
def test_rows_counted_from_a_centre_train_as_on_the_processor(broken: bool) -> None:
    model = made("logreg")
    centres = [None, random(144, seed=2).float(), random(144, seed=3).float()]

    def updates(device: str) -> Tensor:
        x, y = data(device)
        if broken:
            x[3] = math.nan
        net = on_cuda(made("logreg")) if device == "cuda" else model
        mine = [replace(job, input_mean=centres[i % 3]) for i, job in enumerate(jobs(net, device, False))]
        return torch.stack(train(net, x, y, mine)).cpu()

    expected = updates("cpu")
    torch.testing.assert_close(updates("cuda"), expected, rtol=1e-3, atol=1e-5)
    assert expected.isfinite().all()


@pytest.mark.parametrize("value", [None, math.nan, 1e15, 3e38, 1e-42])
@pytest.mark.parametrize(("name", "rows"), [("cnn", 64), ("cnn", 3000), ("mlp", 64), ("mlp", 3000), ("logreg", 30_000)])
def test_a_row_moves_a_sum_by_at_most_the_clip(name: str, rows: int, value: float | None) -> None:
    """Rows whose gradients point one way, so that rounding of their sum is as large as it can be; one is extreme."""
    model = on_cuda(made(name))
    x = (3 * random(1, 1, 12, 12)).float().repeat(rows, 1, 1, 1).cuda()
    if value is not None:
        x[rows // 2] = value
    y, clips = torch.ones(1, rows, dtype=torch.long).cuda(), torch.tensor([1e-3], dtype=torch.float64).cuda()
    mask = torch.ones(1, rows, dtype=torch.bool).cuda()
    rest = torch.arange(rows).cuda() != rows // 2
    whole = clipped_sums(model, model.start[None], x[None], y, mask, clips, physical_batch=1024)
    without = clipped_sums(
        model, model.start[None], x[rest][None], y[:, rest], mask[:, rest], clips, physical_batch=1024
    )
    assert whole.dtype == torch.float64
    assert float((whole - without).norm() / clips) <= 1.0000001
