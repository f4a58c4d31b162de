"""DP-SGD for many clients against the loop it stands for: one client, one step, one draw at a time."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.models import Model, build_model, from_module
from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.training import closed_form, memory
from hush.training.clipping import RANGE
from hush.training.closed_form import closed_form_sums, linear_layer_of, padded_blocks, row_norms
from hush.training.gpu import noise_bank
from hush.training.gpu.graph_replay import PaddedGraphStep
from hush.training.gpu.prefetch import DEPTH, Prefetcher, table_width
from hush.training.per_example import sums
from hush.training.per_example.discrete_sums import integer_sums
from hush.training.per_example.vmap import vmap_sums
from hush.training.precision import Precision
from hush.training.select import clipped_sums
from hush.training.train import Job, train
from hush.types import HushError
from tests.support.nets import applied, random, reference

SAMPLES = 40
BATCHES = (4, 4, 13, 40, 1)


def plan(batch: int, epochs: int = 1, noise_multiplier: float = 0.7) -> PrivacyPlan:
    return PrivacyPlan(
        samples=SAMPLES,
        batch=batch,
        epochs=epochs,
        rounds=1,
        clip=0.5,
        noise_multiplier=noise_multiplier,
        relation="add-remove",
        accountant="pld",
    )


def jobs(model: Model, batches: Sequence[int] = BATCHES) -> list[Job]:
    return [
        Job(
            vector=model.start + 0.01 * i,
            first_row=SAMPLES * i,
            plan=plan(batch, epochs=1 + i % 2, noise_multiplier=0.0 if i == 2 else 0.7),
            lr=0.1 * (1 + i),
            source=noise.Seeded(1, i, 2),
        )
        for i, batch in enumerate(batches)
    ]


def data(shape: tuple[int, ...], classes: int = 3) -> tuple[Tensor, Tensor]:
    rows = SAMPLES * len(BATCHES)
    return random(rows, *shape).float(), (random(rows, seed=1) * 10).long() % classes


def by_hand(model: Model, x: Tensor, y: Tensor, job: Job) -> Tensor:
    """What training is, written down as plainly as possible."""
    vector = job.vector.clone()
    for _ in range(job.plan.steps):
        rows = job.plan.sample(job.source) + job.first_row
        mask, clips = torch.ones(1, len(rows), dtype=torch.bool), torch.tensor([job.plan.clip], dtype=torch.float64)
        sums = clipped_sums(model, vector[None], x[rows][None], y[rows][None], mask, clips)
        step = job.lr * job.plan.privatise(sums[0], job.source, vector.dtype)
        vector = (vector - step).to(vector.dtype)
    return vector - job.vector


@pytest.mark.parametrize("name", ["logreg", "cnn"])
@pytest.mark.parametrize("worth", [0, 10**15])
def test_updates_are_those_of_the_plain_loop(name: str, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_WORTH_THREADS", worth)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    model = build_model(ModelConfig(name=name), (1, 6, 6), 3, seed=1)
    x, y = data((1, 6, 6))
    expected = [by_hand(model, x, y, job) for job in jobs(model)]
    for ours, plain in zip(train(model, x, y, jobs(model)), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
        assert plain.norm() > 0


def test_a_client_moves_the_same_alone_as_among_others() -> None:
    model = build_model(ModelConfig(name="cnn"), (1, 6, 6), 3, seed=1)
    x, y = data((1, 6, 6))
    together = train(model, x, y, jobs(model))
    for i, job in enumerate(jobs(model)):
        torch.testing.assert_close(train(model, x, y, [job])[0], together[i], rtol=1e-5, atol=1e-6)


def test_threads_are_put_back_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("too many")

    monkeypatch.setattr(sums, "_WORTH_THREADS", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(sums, "packed_sums", fails)
        model = build_model(ModelConfig(name="mlp"), (4,), 3, seed=1)
        with pytest.raises(ValueError, match="too many"):
            train(model, *data((4,)), jobs(model))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Waves(nn.Module):
    """A model that needs the slow path."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.inner(x)).real


def test_the_slow_path_trains_too_with_one_message() -> None:
    model = from_module(Waves(), (4,))
    x, y = data((4,))
    with pytest.warns(UserWarning, match="fft_rfft.*slow path: all 20 numbers") as seen:
        updates = train(model, x, y, jobs(model))
        expected = [by_hand(model, x, y, job) for job in jobs(model)]
    assert len(seen) == 1
    for ours, plain in zip(updates, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def ordered(model: Model) -> list[Job]:
    return sorted(jobs(model), key=lambda job: -job.plan.steps)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_prefetching_draws_the_same(threads: int, noisy: bool) -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    mine = ordered(model)
    with Prefetcher(ordered(model), model.layout.size, torch.float32, threads, noisy) as prefetcher:
        for number in range(-(-mine[0].plan.steps // prefetcher.steps)):
            drawn = prefetcher.chunk(number)
            for k in range(min(prefetcher.steps, mine[0].plan.steps - number * prefetcher.steps)):
                active = [job for job in mine if job.plan.steps > number * prefetcher.steps + k]
                assert drawn.active[k] == len(active)
                for i, job in enumerate(active):
                    rows = drawn.rows[k, i]
                    assert torch.equal(rows[rows >= 0], job.plan.sample(job.source) + job.first_row)
                    if job.plan.private and drawn.noise is not None:
                        assert torch.equal(drawn.noise[k, i], job.source.normal(model.layout.size, torch.float32))
                assert (drawn.rows[k, len(active) :] == -1).all()
                assert (drawn.rows[k, :, drawn.longest[k] :] == -1).all()
            prefetcher.release()


def test_prefetching_survives_a_batch_that_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hush.training.gpu.prefetch.table_width", lambda _: 2)
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    mine = ordered(model)
    with Prefetcher(ordered(model), model.layout.size, torch.float32, 2) as prefetcher:
        drawn = prefetcher.chunk(0)
    assert drawn.wide[0].shape == (len(mine), drawn.longest[0])
    for rows, job in zip(drawn.wide[0], mine, strict=True):
        assert torch.equal(rows[rows >= 0], job.plan.sample(job.source) + job.first_row)


def test_an_error_while_prefetching_is_raised() -> None:
    class Broken:
        def chosen(self, size: int, rate: float) -> Tensor:
            raise OSError("no entropy")

    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    job = Job(vector=model.start, first_row=0, plan=plan(4), lr=0.1, source=Broken())  # type: ignore[arg-type]
    prefetcher = Prefetcher([job], model.layout.size, torch.float32, 1)
    with prefetcher, pytest.raises(OSError, match="no entropy"):
        prefetcher.chunk(0)


def replayed(step: PaddedGraphStep, group: Sequence[Job]) -> None:
    """All steps of a group, as a GPU takes them."""
    step.load_clients(group)
    with Prefetcher(group, step.noise.shape[1], torch.float32, 2) as prefetcher:
        for number in range(group[0].plan.steps):
            chunk = prefetcher.chunk(number)
            assert chunk.noise is not None
            step.move_first(chunk.active[0])
            step.load(chunk.rows[0], chunk.noise[0])
            step.step(chunk.rows[0], chunk.longest[0])
            prefetcher.release()


def test_noise_from_the_bank_depends_on_the_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    monkeypatch.setattr(noise_bank, "_AT_ONCE", 3 * model.layout.size)
    like = torch.zeros(3, model.layout.size)

    def drawn(clients: Sequence[int]) -> Tensor:
        mine = [
            Job(vector=model.start, first_row=0, plan=plan(4), lr=0.1, source=noise.Seeded(1, c, 1)) for c in clients
        ]
        rngs = [job.source.device_rng(torch.device("cpu")) for job in mine]
        assert None not in rngs
        bank = noise_bank.NoiseBank(mine, [rng for rng in rngs if rng], like[: len(mine)])
        return torch.stack([bank.step(number, len(mine)).clone() for number in range(8)], 1)

    together, alone = drawn([0, 1, 2]), drawn([1])
    assert torch.equal(together[1], alone[0])
    assert len({float(value) for value in together.flatten()}) > 0.99 * together.numel(), "no number comes twice"


def test_noise_from_the_bank_depends_on_the_client_alone_whatever_steps_others_take() -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    like = torch.zeros(3, model.layout.size)

    def drawn(clients: Sequence[int]) -> Tensor:
        """The noise of client 1, who takes six steps, beside clients who take more or fewer."""
        steps = {0: 9, 1: 6, 2: 2}
        mine = [
            Job(
                vector=model.start, first_row=0, plan=replace(plan(4), local_steps=steps[c]), lr=0.1,
                source=noise.Seeded(1, c, 1),
            )
            for c in clients
        ]  # fmt: skip
        rngs = [rng for job in mine if (rng := job.source.device_rng(torch.device("cpu"))) is not None]
        bank = noise_bank.NoiseBank(mine, rngs, like[: len(mine)])
        own = clients.index(1)
        return torch.stack(
            [bank.step(k, sum(steps[c] > k for c in clients))[own].clone() for k in range(steps[clients[0]])]
        )

    together, alone = drawn([0, 1, 2]), drawn([1])
    assert torch.equal(together[:6], alone)
    assert alone.abs().min() > 0 and not together[6:].any()


def test_a_replayed_step_is_the_step() -> None:
    """On a processor nothing is recorded, but the arithmetic around the record is the same."""
    model = build_model(ModelConfig(name="cnn"), (1, 6, 6), 3, seed=1)
    x, y = data((1, 6, 6))
    group = ordered(model)
    replay = PaddedGraphStep(model, x, y, len(group), table_width(group), 4096, "float32")
    replayed(replay, group)
    for vector, job in zip(replay.vectors, ordered(model), strict=True):
        torch.testing.assert_close(vector - job.vector, by_hand(model, x, y, job), rtol=1e-5, atol=1e-6)


def test_prefetching_never_runs_more_than_its_depth_ahead() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def chosen(self, size: int, rate: float) -> Tensor:
            self.calls += 1
            return torch.arange(size)

        def normal(self, size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype)

    model, source = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1), Counting()
    job = Job(vector=model.start, first_row=0, plan=plan(4), lr=0.1, source=source)  # type: ignore[arg-type]
    with Prefetcher([job], model.layout.size, torch.float32, 1) as prefetcher:
        for step in range(3):
            prefetcher.chunk(step)
        assert source.calls <= DEPTH


def corrected(model: Model, source_seed: int = 1, discrete: bool = False) -> list[Job]:
    """Jobs with drift, with a pull, with both, and standing still."""
    size = model.layout.size
    kinds: list[dict[str, Any]] = [
        {"drift": 0.3 * random(size, seed=7).float()},
        {"proximal": 0.8},
        {"drift": 0.3 * random(size, seed=8).float(), "proximal": 0.8},
        {"drift": 0.3 * random(size, seed=9).float(), "proximal": 0.8, "at_start": True},
        {},
        {"at_start": True},
    ]
    return [
        Job(
            vector=model.start + 0.01 * i,
            first_row=SAMPLES * (i % 5),
            plan=replace(plan(8, epochs=1 + i % 2), discrete=discrete),
            lr=0.3,
            source=noise.Seeded(source_seed, i, 3),
            **kind,
        )
        for i, kind in enumerate(kinds)
    ]


def loop64(model: Model, x: Tensor, y: Tensor, job: Job) -> Tensor:
    """The rule y -= lr (H + drift + proximal (y - start)) in float64, gradients by definition."""
    wide = Model(
        name=model.name, module=copy.deepcopy(model.module).double(), layout=model.layout, start=model.start.double()
    )
    start = job.vector.double()
    moving = start.clone()
    for _ in range(job.plan.steps):
        rows = job.plan.sample(job.source) + job.first_row
        at = start if job.at_start else moving
        clips = torch.tensor([job.plan.clip], dtype=torch.float64)
        mask = torch.ones(1, len(rows), dtype=torch.bool)
        total = reference(wide, at[None], x[rows][None].double(), y[rows][None], mask, clips)[0]
        # Noise is drawn in the type in which training runs.
        noise_alone = job.plan.privatise(torch.zeros(len(start)), job.source).double()
        step = total / job.plan.batch + noise_alone
        if job.drift is not None:
            step = step + job.drift.double()
        if not job.at_start:
            step = step + job.proximal * (moving - start)
        moving = moving - job.lr * step
    return moving - start


@pytest.mark.parametrize("name", ["logreg", "cnn", "slow"])
def test_drift_pull_and_standing_still_are_those_of_the_definition(name: str) -> None:
    shape = (4,) if name == "slow" else (1, 6, 6)
    model = from_module(Waves(), shape) if name == "slow" else build_model(ModelConfig(name=name), shape, 3, seed=1)
    x, y = data(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name == "slow" else "error")
        updates = train(model, x, y, corrected(model))
        plain = train(model, x, y, [replace(j, drift=None, proximal=0.0, at_start=False) for j in corrected(model)][:4])
    for ours, job in zip(updates, corrected(model), strict=True):
        torch.testing.assert_close(ours.double(), loop64(model, x, y, job), rtol=1e-4, atol=1e-5)
    for with_it, without in zip(updates, plain, strict=False):
        assert (with_it - without).norm() > 1e-3 * without.norm(), "each of them changes something"


def test_discrete_jobs_are_corrected_too() -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    x, y = data((4,))
    for ours, job in zip(
        train(model, x, y, corrected(model, discrete=True)), corrected(model, discrete=True), strict=True
    ):
        vector, start = job.vector.clone(), job.vector
        for _ in range(job.plan.steps):
            rows = job.plan.sample(job.source) + job.first_row
            clips, grids = (torch.tensor([v], dtype=torch.float64) for v in (job.plan.clip, job.plan.grid))
            mask = torch.ones(1, len(rows), dtype=torch.bool)
            at = start if job.at_start else vector
            whole = integer_sums(model, at[None], x[rows][None], y[rows][None], mask, clips, grids, 4096)
            step = job.plan.privatise(whole[0], job.source) + (0.0 if job.drift is None else job.drift)
            vector = vector - job.lr * (step + (0.0 if job.at_start else job.proximal) * (vector - start))
        torch.testing.assert_close(ours, vector - start, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("still", [False, True])
def test_a_replayed_step_is_corrected_too(still: bool) -> None:
    model = build_model(ModelConfig(name="logreg"), (1, 6, 6), 3, seed=1)
    x, y = data((1, 6, 6))

    def group() -> list[Job]:
        return sorted((j for j in corrected(model) if j.at_start == still), key=lambda job: -job.plan.steps)

    mine = group()
    replay = PaddedGraphStep(
        model, x, y, len(mine), table_width(mine), 4096, "float32", "at start" if still else "corrected"
    )
    replayed(replay, mine)
    for vector, job in zip(replay.vectors, group(), strict=True):
        torch.testing.assert_close((vector - job.vector).double(), loop64(model, x, y, job), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["fast", "slow", "discrete"])
def test_a_full_batch_is_never_gathered_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step over all rows: the mean gradient, in pieces of at most the physical batch."""
    model = from_module(Waves(), (4,)) if kind == "slow" else build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    x, y = data((4,))
    sizes: list[int] = []
    select, item = Tensor.index_select, Tensor.__getitem__

    def selected(self: Tensor, axis: int, rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return select(self, axis, rows)

    def taken(self: Tensor, key: Any) -> Tensor:
        if self is x and isinstance(key, Tensor):
            sizes.append(key.numel())
        return item(self, key)

    full = [
        Job(
            vector=model.start,
            first_row=SAMPLES * i,
            plan=replace(plan(SAMPLES), discrete=kind == "discrete"),
            lr=0.1,
            source=noise.Seeded(0, i, 0),
        )
        for i in range(3)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = train(model, x, y, full)
        full = [replace(job, source=noise.Seeded(0, i, 0)) for i, job in enumerate(full)]
        monkeypatch.setattr(Tensor, "index_select", selected)
        monkeypatch.setattr(Tensor, "__getitem__", taken)
        pieces = train(model, x, y, full, physical_batch=9)
    assert sizes
    assert max(sizes) <= 9
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_one_client_alone_with_a_batch_larger_than_the_physical_one() -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    x, y = data((4,))

    def job() -> Job:
        return Job(vector=model.start, first_row=0, plan=plan(SAMPLES), lr=0.1, source=noise.Seeded(0, 0, 0))

    expected = by_hand(model, x, y, job())
    torch.testing.assert_close(train(model, x, y, [job()], physical_batch=9)[0], expected, rtol=1e-5, atol=1e-6)


@given(counts=st.lists(st.integers(0, 50), max_size=8), limit=st.integers(1, 40))
def test_blocks_hold_every_example_once_and_never_too_many(counts: list[int], limit: int) -> None:
    seen = [set[int]() for _ in counts]
    for clients, start, stop in padded_blocks(counts, limit):
        assert (stop - start) * len(clients) <= limit
        assert clients == sorted(set(clients))
        for client in clients:
            mine = set(range(start, min(stop, counts[client])))
            assert not mine & seen[client]
            seen[client] |= mine
    assert [len(rows) for rows in seen] == counts


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e14, 1e25, 1e37])
@pytest.mark.parametrize("clip", [1e-20, 1.0, math.inf])
def test_the_closed_form_keeps_the_clip_at_any_scale(scale: float, clip: float) -> None:
    """Many examples, each a client of its own: what it adds is what its sum is. Logits are zero, so none saturates."""
    model = build_model(ModelConfig(name="logreg"), (30,), 5, seed=1)
    clients = 200
    x, y = (scale * random(clients, 30)).float(), torch.arange(clients) % 5
    clips = torch.full((clients,), clip, dtype=torch.float64)
    form = linear_layer_of(model, x)
    assert form is not None
    rows = list(torch.arange(clients)[:, None].unbind())
    sums = closed_form_sums(form, torch.zeros(clients, model.layout.size), x, y, rows, clips, 64)
    norms = sums.double().norm(dim=1)
    true = (
        torch.full((clients,), 1 / 5).double().square().mul(4).add((4 / 5) ** 2).sqrt()
        * (x.double().square().sum(1) + 1).sqrt()
    )
    assert (norms <= clips).all()
    # Beyond that, float32 has no digits left for the factor, and the row adds nothing.
    sure = true / clips < 0.1 * RANGE
    torch.testing.assert_close(norms[sure], torch.minimum(true, applied(clips))[sure], rtol=2e-5, atol=0.0)
    assert not norms[~sure].any()
    assert sure.all() == (clip / scale > 1e-28)


@pytest.mark.parametrize("lengths_known", [False, True])
def test_the_closed_form_drops_what_is_not_finite(lengths_known: bool) -> None:
    model = build_model(ModelConfig(name="logreg"), (6,), 5, seed=1)
    x, y = random(8, 6).float(), torch.arange(8) % 5
    x[2, 1], x[5, 0] = math.nan, math.inf
    form, clips = linear_layer_of(model, x), torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert form is not None
    known = [row_norms(x, [(0, 8)], True)] * 2 if lengths_known else None
    vectors = model.start.repeat(2, 1)
    everything = closed_form_sums(form, vectors, x, y, [torch.arange(4), torch.arange(4, 8)], clips, 99, known)
    finite = closed_form_sums(form, vectors, x, y, [torch.tensor([0, 1, 3]), torch.tensor([4, 6, 7])], clips, 99)
    torch.testing.assert_close(everything, finite, rtol=1e-5, atol=1e-7)
    assert finite.norm() > 0


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    module[1].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("make", "is_closed"),
    [
        (lambda: nn.Linear(6, 3), True),
        (lambda: nn.Sequential(nn.Sequential(nn.Identity()), nn.Linear(6, 3, bias=False)), True),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), True),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), False),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)), False),
        (hooked, False),
    ],
)
def test_only_one_linear_layer_has_a_closed_form(make: Callable[[], nn.Module], is_closed: bool) -> None:
    model = from_module(make(), (6,))
    x, y = data((6,))
    assert (linear_layer_of(model, x) is not None) == is_closed
    expected = [by_hand(model, x, y, job) for job in jobs(model)]
    for ours, plain in zip(train(model, x, y, jobs(model)), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "mlp", "slow"])
def test_every_path_multiplies_as_asked(kind: str) -> None:
    """bf16 changes an update a little, on every path but integers; tf32 is float32 on a processor."""
    shape = (4,) if kind == "slow" else (6,)
    name = "mlp" if kind == "mlp" else "logreg"
    model = (
        from_module(Waves(), shape)
        if kind == "slow"
        else build_model(ModelConfig(name=name, hidden=9), shape, 3, seed=1)
    )
    x, y = data(shape)

    def updates(precision: Precision) -> list[Tensor]:
        mine = [job for job in jobs(model) if job.plan.private]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return train(model, x, y, mine, precision=precision)

    exact, tf32, bf16 = (torch.stack(updates(how)) for how in ("float32", "tf32", "bf16"))
    assert torch.equal(exact, tf32)
    assert 1e-6 < float((bf16 - exact).norm() / exact.norm()) < 0.1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_clip_holds_on_the_slow_path_in_every_precision(precision: Precision) -> None:
    model, clients = from_module(Waves(), (4,)), 200
    vectors = model.start + 0.3 * random(clients, model.layout.size).float()
    x, y = 100 * random(clients, 1, 4).float(), torch.zeros(clients, 1, dtype=torch.long)
    clips = torch.from_numpy(np.random.default_rng(2).uniform(1e-3, 1.0, clients))
    sums = vmap_sums(model, vectors, x, y, torch.ones(clients, 1).bool(), clips, 64, precision=precision)
    norms = sums.double().norm(dim=1)
    assert (norms <= clips).all()
    assert (norms > 0.9999 * applied(clips)).double().mean() > 0.3, "many of these are clipped"


def test_a_strict_training_refuses_the_slow_path() -> None:
    model = from_module(Waves(), (4,))
    with pytest.raises(HushError, match=r"fft_rfft.*accepted: modules"):
        train(model, *data((4,)), jobs(model), strict=True)


def test_the_automatic_batch_changes_nothing_but_rounding() -> None:
    model = build_model(ModelConfig(name="cnn"), (1, 6, 6), 3, seed=1)
    x, y = data((1, 6, 6))
    for a, b in zip(train(model, x, y, jobs(model)), train(model, x, y, jobs(model), physical_batch=3), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_more_memory_means_more_examples_and_larger_models_fewer() -> None:
    gib = 2**30
    found = {free: memory.examples(free * gib, 28_938, 20, 28_938) for free in (1, 4, 16, 139)}
    assert list(found.values()) == sorted(found.values())
    assert found[139] > found[1] >= 64
    resnet = memory.examples(139 * gib, 11_200_000, 20, 11_200_000)
    assert 1 < resnet < found[139]
    assert resnet * 16 * 11_200_000 + 20 * 32 * 11_200_000 <= 139 * gib / 2
    assert memory.examples(139 * gib, 11_200_000, 20, 700_000) > 8 * resnet, "most gradients are never formed"
    assert memory.examples(0, 28_938, 20, 28_938) == 1, "no room is not no work"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["host", "device", "PyTorch on the host"],
)
def test_running_out_of_memory_says_what_to_set(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    monkeypatch.setattr(closed_form, "closed_form_sums", fails)
    with pytest.raises(HushError, match=r"engine.physical_batch: 4096 examples .* accepted: fewer, such as 1024"):
        train(model, *data((4,)), jobs(model), physical_batch=4096)


def test_another_error_is_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("something else")

    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    monkeypatch.setattr(closed_form, "closed_form_sums", fails)
    with pytest.raises(RuntimeError, match="something else"):
        train(model, *data((4,)), jobs(model))


def test_rows_are_those_whose_number_is_below_the_rate() -> None:
    """Words made up so that first bits tie with those of the rate: the rest of the number decides, to the last bit."""
    bar = 0.3
    high, low = divmod(math.floor(math.ldexp(bar, 53)), 2**37)
    heads = np.array([high - 1, high, high + 1, high, high, 0, 2**16 - 1, high], dtype=np.uint16)
    tails = np.array([low - 1, low, 0, 2**37 - 1], dtype=np.uint64) << np.uint64(27)
    words = iter([heads.view(np.uint64), tails])
    assert noise.RowSampler(lambda size: next(words)[:size]).chosen(8, bar).tolist() == [0, 1, 4, 5]


def test_a_rate_below_the_first_bits_is_met() -> None:
    """Ties alone can be chosen here; a comparison of sixteen bits would choose none, or twice as many."""
    source, size, batches = noise.Seeded(7, 0, 0), 60_000, 1000
    rate = 2.0**-17
    found = sum(len(source.chosen(size, rate)) for _ in range(batches))
    expected = size * batches * rate
    assert abs(found - expected) < 6 * math.sqrt(expected)
    assert abs(found - 2 * expected) > 6 * math.sqrt(2 * expected)


def test_batches_drawn_ahead_are_used_once_and_forgotten_when_the_rate_changes() -> None:
    source = noise.Seeded(7, 0, 0)
    first = [tuple(source.chosen(50, 0.3).tolist()) for _ in range(40)]
    assert len(set(first)) == 40
    other = [source.chosen(90, 0.5) for _ in range(40)]
    assert max(int(rows.max()) for rows in other) >= 50
    assert all(len(rows.unique()) == len(rows) and bool((rows.diff() > 0).all()) for rows in other)
    assert source.chosen(5, 1.0).tolist() == [0, 1, 2, 3, 4]
