"""Eager training of models with dropout: masks depend on (seed, client, round) alone, on every path of a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hush.models import Model, from_module
from hush.models.isolation import TracedModule
from hush.models.isolation.dropout import keys_of, uniform, with_keys
from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.training.job import Job
from hush.training.per_example.discrete_sums import IntegerSum
from hush.training.per_example.sums import PackedSum, PaddedSum
from hush.training.per_example.vmap import VmapSum
from hush.training.select import select
from hush.training.train import train
from tests.support.random_modules import Dropping, keys, rows

X, Y = rows(120).float(), torch.arange(120) % 3


def network(p: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(p), nn.Linear(16, 3))


MODEL = from_module(network(), (8,))


def job(client: int, steps: int = 3, batch: int = 10, deviation: float = 0.5, discrete: bool = False) -> Job:
    plan = PrivacyPlan(
        samples=40,
        batch=batch,
        epochs=1,
        rounds=1,
        clip=1.0,
        noise_multiplier=deviation,
        relation="add-remove",
        accountant="pld",
        discrete=discrete,
        local_steps=steps,
    )
    return Job(vector=MODEL.start, first_row=40 * client, plan=plan, lr=0.5, source=noise.Seeded(7, client, 2))


def fresh(of: Job) -> Job:
    """The same job with its source at the beginning."""
    return replace(of, source=noise.Seeded(7, of.first_row // 40, 2))


def alone(client: int, steps: int = 3, batch: int = 10) -> Tensor:
    return train(MODEL, X, Y, [job(client, steps, batch)])[0]


def test_runs_repeat_and_the_mask_is_on() -> None:
    assert torch.equal(alone(0), alone(0))
    without = train(replace(MODEL, training=None), X, Y, [job(0)])[0]
    assert float((alone(0) - without).norm()) > 1e-2


def test_masks_do_not_depend_on_companions_groups_or_micro_batches() -> None:
    jobs = [job(0), job(1, batch=40, steps=2), job(2, batch=5, steps=4)]
    expected = [alone(0), alone(1, batch=40, steps=2), alone(2, batch=5, steps=4)]
    for order, size in ((1, None), (-1, None), (1, 3)):
        found = train(MODEL, X, Y, [fresh(each) for each in jobs[::order]], size)[::order]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    other = replace(job(0), source=noise.Seeded(7, 0, 3))
    assert not torch.allclose(train(MODEL, X, Y, [other])[0], expected[0], atol=1e-3)


def test_keys_are_a_stream_of_their_own() -> None:
    """Models without dropout draw what they drew."""
    for kind in (noise.Seeded, noise.SharedSeeded):
        plain, drawing = kind(1, 2, 3), kind(1, 2, 3)
        drawn = drawing.keys(5)
        assert drawn.dtype == torch.int64 and len(drawn.unique()) == 5
        assert torch.equal(plain.uniform(9), drawing.uniform(9))
        assert torch.equal(plain.chosen(90, 0.3), drawing.chosen(90, 0.3))
        assert torch.equal(plain.normal(9, torch.float32), drawing.normal(9, torch.float32))
    assert torch.equal(noise.Seeded(1, 2, 3).keys(5), noise.Seeded(1, 2, 3).keys(5))
    assert not torch.equal(noise.Seeded(1, 2, 3).keys(5), noise.Seeded(1, 2, 4).keys(5))
    words = noise.Secure().keys(4000)
    assert words.dtype == torch.int64 and len(words.unique()) == 4000
    assert 0.4 < float((words < 0).double().mean()) < 0.6


@pytest.mark.parametrize("path", [PackedSum, PaddedSum, VmapSum])
def test_all_paths_take_the_same_masks(path: type[PackedSum]) -> None:
    model, jobs = MODEL.in_training, [job(0, steps=1), job(1, steps=1, batch=20)]
    sums = path(model, X, Y, 7, "float32").sums_of(jobs)
    at = [torch.arange(0, 10), torch.arange(40, 60)]
    drawn = [keys(10), keys(20, seed=1)]
    vectors, clips = torch.stack([MODEL.start, 0.5 * MODEL.start]), torch.tensor([0.3, 0.7], dtype=torch.float64)
    found = sums(vectors, at, clips, drawn)
    for client in range(2):
        torch.testing.assert_close(
            found[client].float(),
            reference(vectors[client], X[at[client]], Y[at[client]], drawn[client], float(clips[client])),
            rtol=1e-2, atol=1e-3,
        )  # fmt: skip


def test_discrete_sums_take_the_same_masks() -> None:
    plan = job(0, steps=1, discrete=True, deviation=1).plan
    one = replace(job(0), plan=plan)
    sums = IntegerSum(MODEL.in_training, X, Y, 4, "float32").sums_of([one])
    drawn = [keys(10)]
    found = sums(MODEL.start[None], [torch.arange(10)], torch.ones(1, dtype=torch.float64), drawn)
    expected = reference(MODEL.start, X[:10], Y[:10], drawn[0], 1.0)
    torch.testing.assert_close((found[0] * plan.grid).float(), expected, rtol=1e-2, atol=2e-3)
    assert train(MODEL, X, Y, [one])[0].isfinite().all()


def reference(vector: Tensor, x: Tensor, y: Tensor, drawn: Tensor, clip: float) -> Tensor:
    """The clipped sum by a loop over the examples, the masks applied by hand."""
    module, total = network(0.0), torch.zeros_like(vector)
    torch.nn.utils.vector_to_parameters(vector, module.parameters())
    trained = MODEL.in_training.module
    assert isinstance(trained, TracedModule)
    graph = trained.graph_module.graph
    (node,) = [n for n in graph.nodes if n.args and n.args[-2:] == (0.5, True)]
    for one_x, one_y, key in zip(x, y, drawn, strict=True):
        hidden = torch.tanh(module[0](one_x[None]))  # type: ignore[index]
        words = keys_of(with_keys(one_x[None], key[None]))
        kept = uniform(words, node.args[1], (0, 1, 1), hidden) < 0.5
        loss = nn.functional.cross_entropy(module[3](2.0 * hidden * kept), one_y[None])  # type: ignore[index]
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
        total += flat * min(1.0, clip / float(flat.norm()))
    return total


def test_the_packed_path_is_chosen() -> None:
    assert type(select(MODEL.in_training, X, Y, [job(0)])) is PackedSum


def test_a_path_by_rows_trains_with_masks_of_their_own() -> None:
    """One mask for the whole batch becomes one for each example, computed by vmap."""
    shared = Dropping(lambda h: h * nn.functional.dropout(torch.ones(8), 0.4))
    torch.manual_seed(0)
    model: Model = from_module(shared, (8,))
    assert model.in_training.module.order == "one row"
    plan = PrivacyPlan(
        samples=40,
        batch=10,
        epochs=1,
        rounds=1,
        clip=1.0,
        noise_multiplier=0.5,
        relation="add-remove",
        accountant="pld",
        local_steps=2,
    )
    jobs = [
        Job(vector=model.start, first_row=40 * c, plan=plan, lr=0.5, source=noise.Seeded(7, c, 2)) for c in range(3)
    ]
    with pytest.warns(UserWarning, match="slow path"):
        together = train(model, X, Y, [fresh(each) for each in jobs])
        single = [train(model, X, Y, [fresh(each)])[0] for each in jobs]
    torch.testing.assert_close(together, [*single], rtol=1e-4, atol=1e-6)
