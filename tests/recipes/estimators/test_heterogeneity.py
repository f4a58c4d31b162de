"""How much clients differ, seen through their noise, and what that does to their weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hush.recipes.context import RoundView, State
from hush.recipes.estimators.heterogeneity import Difference, columns, difference
from hush.recipes.slots.weight import Balanced

SIZE, CLIENTS = 20_000, 8


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def signals(apart: float) -> torch.Tensor:
    """Clients around a common signal of length 1, a squared distance `apart` from it on average."""
    own = drawn(CLIENTS, SIZE, seed=1) * math.sqrt(apart / SIZE)
    return drawn(1, SIZE, seed=2) / math.sqrt(SIZE) + own


NOISE = torch.logspace(0, 2, CLIENTS, dtype=torch.float64)  # squared norms


def view(number: int, apart: float, noise: torch.Tensor = NOISE) -> RoundView:
    updates = signals(apart) + drawn(CLIENTS, SIZE, seed=10 + number) * (noise / SIZE).sqrt()[:, None].float()
    ones = torch.ones(CLIENTS, dtype=torch.float64)
    return RoundView(
        round=number,
        clients=tuple(range(CLIENTS)),
        updates=updates,
        samples=ones,
        epsilon=ones,
        planned_noise=noise,
        reach=ones,
        budgets=ones,
        rounds=100,
    )


def heard(apart: float, rounds: int = 20, balanced: Balanced = Balanced(stress=5.0)) -> tuple[torch.Tensor, State]:  # noqa: B008
    state: State = {}
    for number in range(1, rounds + 1):
        weighing, state = balanced.weight(view(number, apart), state)
    return weighing.weights, state


@pytest.mark.parametrize("apart", [0.05, 0.3, 1.0])
def test_the_difference_is_found_beneath_the_noise(apart: float) -> None:
    _, state = heard(apart)
    found = difference(state["sum"], state["noise"], state["seen"])
    assert found.estimate == pytest.approx(apart, rel=0.25)
    assert found.likely(0.0) > 0
    assert found.likely(found.estimate) == found.estimate


def test_the_error_of_the_estimate_is_that_of_repeated_draws() -> None:
    """Planted: an error for independent pairs alone, or none, would be too small."""
    ones = torch.ones(CLIENTS, dtype=torch.float64)
    found = [difference(view(number, 0.0).updates - signals(0.0), NOISE, ones) for number in range(100)]
    spread = torch.tensor([each.estimate for each in found]).std().item()
    assert 0.5 * found[0].error < spread < 1.3 * found[0].error
    far = sum(abs(each.estimate) > 2 * each.error for each in found)
    assert far <= 10


def test_the_usual_difference_counts_within_the_error_of_the_estimate() -> None:
    sure, unsure = Difference(1.0, 0.1), Difference(-0.5, 10.0)
    assert [sure.likely(usual) for usual in (0.0, 1.1, 7.0)] == pytest.approx([0.8, 1.1, 1.2])
    assert [unsure.likely(usual) for usual in (0.0, 0.3)] == [0.0, 0.3]
    assert Difference(-1.0, 0.1).likely(0.3) == 0


def test_alike_clients_get_the_weights_of_least_variance() -> None:
    weights, state = heard(0.0)
    best = (1 / NOISE) / (1 / NOISE).sum()
    assert difference(state["sum"], state["noise"], state["seen"]).likely(0.003) < 0.01
    assert float((weights**2 * NOISE).sum() / (best**2 * NOISE).sum()) < 1.1


def test_clients_that_differ_are_not_starved() -> None:
    alike, _ = heard(0.0)
    differ, _ = heard(1.0)
    expected = 1 / (NOISE + 5 * 100 * 1.0)
    torch.testing.assert_close(differ, expected / expected.sum(), rtol=0.2, atol=0.0)
    assert differ.min() > 10 * alike.min()


def test_the_stress_follows_the_number_of_parameters() -> None:
    torch.testing.assert_close(heard(0.3, 3, Balanced())[0], heard(0.3, 3, Balanced(stress=SIZE / 100))[0])
    # A model of few parameters has no more directions than those: the difference itself is what counts.
    small = replace(view(2, 0.3), updates=view(2, 0.3).updates[:, :50], planned_noise=NOISE)
    torch.testing.assert_close(
        Balanced().weight(small, {})[0].weights, Balanced(stress=1.0).weight(small, {})[0].weights
    )


def test_without_noise_all_count_alike() -> None:
    weighing, _ = Balanced().weight(view(1, 1.0, torch.zeros(CLIENTS, dtype=torch.float64)), {})
    assert float(weighing.weights.max() / weighing.weights.min()) < 1.5


def test_one_client_or_one_round_tells_no_difference() -> None:
    for unknown in (
        difference(torch.ones(1, 4), torch.ones(1), torch.ones(1)),
        difference(torch.ones(3, 4), torch.ones(3), torch.tensor([1.0, 0.0, 0.0])),
    ):
        assert unknown.likely(0.3) == 0.3


def test_many_columns_are_thinned_evenly() -> None:
    wide = torch.arange(3_000_000.0).view(1, -1)
    assert 60_000 < columns(3_000_000, 20).of(wide).shape[1] <= 1 << 17
    assert columns(1000, 20).of(wide[:, :1000]).shape[1] == 1000
    assert 10_000 * columns(3_000_000, 10_000).of(wide).shape[1] <= 1 << 26
