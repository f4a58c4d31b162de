"""Weights of clients: by declared numbers, and by noise estimated from their updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hush.recipes import RoundView
from hush.recipes.context import Spaced
from hush.recipes.estimators.noise_energy import rpca
from hush.recipes.slots.weight import Epsilon, EstimatedNoise, Samples, Uniform


def view(updates: Tensor) -> RoundView:
    n = len(updates)
    numbers = torch.arange(1, n + 1, dtype=torch.float64)
    return RoundView(
        round=1,
        clients=tuple(range(n)),
        updates=updates,
        samples=10 * numbers,
        epsilon=numbers / 2,
        planned_noise=1 / numbers,
    )


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (Samples(), [1 / 6, 2 / 6, 3 / 6]),
        (Uniform(), [1 / 3, 1 / 3, 1 / 3]),
        (Epsilon(), [1 / 6, 2 / 6, 3 / 6]),
        (EstimatedNoise("declared"), [1 / 6, 2 / 6, 3 / 6]),
    ],
)
def test_weights(option: Samples, expected: list[float]) -> None:
    weighing, state = option.weight(view(torch.zeros(3, 4)), {})
    torch.testing.assert_close(weighing.weights, torch.tensor(expected, dtype=torch.float64))
    assert state == {}


@pytest.mark.parametrize("estimator", ["rpca", "pairwise"])
def test_estimated_noise_prefers_the_quiet_client(estimator: str) -> None:
    generator = torch.Generator().manual_seed(1)
    scale = torch.tensor([0.1, 1.0, 1.0, 3.0])
    updates = 0.2 + scale[:, None] * torch.randn(4, 2000, generator=generator)
    weighing, _ = EstimatedNoise(estimator).weight(view(updates), {})  # type: ignore[arg-type]
    assert weighing.weights.argmax() == 0
    assert weighing.weights.argmin() == 3
    assert weighing.weights.sum().item() == pytest.approx(1.0)
    assert weighing.noise is not None


def test_noise_can_be_estimated_once() -> None:
    """The first estimate for a client is kept; a client that joins later is estimated then."""
    once = EstimatedNoise("pairwise", "once")
    quiet = torch.ones(3, 400) + torch.tensor([[0.1], [1.0], [3.0]]) * torch.randn(3, 400, generator=_seeded(1))
    loud = torch.ones(3, 400) + 9.0 * torch.randn(3, 400, generator=_seeded(2))
    both = replace(view(quiet), budgets=torch.ones(4))
    first, state = once.weight(both, {})
    again, kept = once.weight(replace(both, updates=loud, round=2), state)
    assert torch.equal(first.weights, again.weights) and torch.equal(state["noise"][:3], kept["noise"][:3])
    later = replace(both, updates=loud, clients=(0, 1, 3), round=3)
    joined, learnt = once.weight(later, kept)
    assert torch.equal(learnt["noise"][:3], state["noise"][:3]) and bool(learnt["noise"].isfinite().all())
    assert len(joined.weights) == 3
    each, _ = EstimatedNoise("pairwise").weight(replace(both, updates=loud), {})
    assert not torch.allclose(each.weights, first.weights)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sub_matrices_share_no_parameter_and_their_estimates_are_averaged() -> None:
    columns = Spaced(640, 64)
    parts = columns.parts(6400, 3)
    numbers = torch.arange(6400)[None]
    taken = [part.of(numbers)[0] for part in parts]
    assert [len(part) for part in taken] == [640] * 3
    assert len(torch.cat(taken).unique()) == 3 * 640
    assert columns.parts(600, 3) == [columns]  # all of it is one matrix
    assert len(columns.parts(1300, 9)) == 2
    scale = torch.tensor([0.1, 1.0, 1.0, 3.0])
    updates = 0.2 + scale[:, None] * torch.randn(4, 6400, generator=_seeded(3))
    whole = EstimatedNoise(parts=3, columns=1280)
    one = [rpca(part.of(updates), parameters=6400) for part in Spaced(1280, 64).parts(6400, 3)]
    found = whole.weight(view(updates), {})[0].noise
    assert found is not None
    torch.testing.assert_close(found, torch.stack(one).mean(0))
    assert not torch.equal(one[0], one[1])
