"""Clusters of clients from noisy means: found where there are some, and not where noise or labels explain all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hush.recipes.estimators import mean_clusters
from hush.recipes.estimators.mean_clusters import clusters

WIDTH = 64


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def means(seed: int, sizes: list[int], apart: float, variances: Tensor, within: float = 0.0) -> Tensor:
    """Means of clients in clusters whose centres are a squared distance `apart` from each other on average."""
    centres = drawn(seed, len(sizes), WIDTH) * (apart / (2 * WIDTH)) ** 0.5
    own = centres.repeat_interleave(torch.tensor(sizes), 0) + within**0.5 * drawn(seed + 500, sum(sizes), WIDTH)
    return own + variances.sqrt()[:, None] * drawn(seed + 1000, sum(sizes), WIDTH)


@pytest.mark.parametrize("sizes", [[8, 4], [6, 6], [9, 6, 3], [6, 6, 6, 3]])
def test_clusters_are_found(sizes: list[int]) -> None:
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).tolist()
    for seed in range(5):
        found = clusters(means(seed, sizes, 16.0, torch.full((sum(sizes),), 0.05)), torch.full((sum(sizes),), 0.05), 6)
        pairs = set(zip(truth, found, strict=True))
        assert len(pairs) == len(sizes)
        assert found.count(0) == max(sizes)


@pytest.mark.parametrize("count", [4, 12, 40])
def test_noise_alone_is_never_divided(count: int) -> None:
    """Planted: with the threshold of one division in place of the best of all, it is."""
    variances = torch.logspace(-3, 0, count, dtype=torch.float64)
    for seed in range(50):
        assert set(clusters(means(seed, [count], 0.0, variances), variances, 6)) == {0}


def test_the_best_of_all_divisions_needs_more_evidence_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    variances = torch.ones(40, dtype=torch.float64)
    monkeypatch.setattr(mean_clusters, "_PER_CLIENT", 0.0)
    monkeypatch.setattr(mean_clusters, "_EVIDENCE", 2.0)
    found = [max(clusters(means(seed, [40], 0.0, variances), variances, 6)) for seed in range(20)]
    assert any(found)


def test_differences_without_clusters_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with two of ten classes each, or a spread in one, two or nine directions; without noise to speak of."""
    variances = torch.full((20,), 1e-4, dtype=torch.float64)
    made = []
    for seed in range(10):
        classes = 2.0 * drawn(seed, 10, WIDTH)
        order = torch.stack(
            [torch.randperm(10, generator=torch.Generator().manual_seed(seed + at)) for at in range(20)]
        )
        made.append(classes[order[:, :2]].mean(1))
        made += [drawn(seed, 20, free) @ drawn(seed + 1, free, WIDTH) for free in (2, 9)]
    assert sum(max(clusters(each, variances, 6)) > 0 for each in made) <= 1
    monkeypatch.setattr(mean_clusters, "_SEPARATION", 1.0)
    assert sum(max(clusters(each, variances, 6)) > 0 for each in made) > 8


def test_clusters_are_found_among_clients_that_differ_otherwise() -> None:
    variances = torch.full((12,), 0.01, dtype=torch.float64)
    for seed in range(5):
        found = clusters(means(seed, [8, 4], 60.0, variances, within=0.05), variances, 6)
        assert found == [0] * 8 + [1] * 4


def test_a_noisy_client_joins_the_nearer_cluster_and_decides_nothing() -> None:
    variances = torch.tensor([0.01] * 7 + [1.0] + [0.01] * 3 + [1.0], dtype=torch.float64)
    found = clusters(means(3, [8, 4], 400.0, variances), variances, 6)
    assert found == [0] * 8 + [1] * 4
    # One precise client and many noisy ones: no pair of two is known to differ.
    lonely = torch.tensor([0.001] + [50.0] * 11, dtype=torch.float64)
    assert set(clusters(means(4, [6, 6], 20.0, lonely), lonely, 6)) == {0}


def test_limits() -> None:
    variances = torch.full((12,), 1e-3, dtype=torch.float64)
    apart = means(5, [3, 3, 3, 3], 100.0, variances)
    assert set(clusters(apart, variances, 1)) == {0}
    assert set(clusters(apart, variances, 2)) == {0, 1}
    assert clusters(apart[:3], variances[:3], 6) == [0, 0, 0]
    assert clusters(apart[:1], variances[:1], 6) == [0]
    # No cluster of one client.
    outlier = means(6, [11, 1], 100.0, variances)
    assert set(clusters(outlier, variances, 6)) == {0}
    # More clients than numbers in a mean.
    narrow = torch.cat([torch.zeros(50, 2), torch.ones(50, 2)]).double() + 0.1 * drawn(7, 100, 2)
    assert len(set(clusters(narrow, torch.full((100,), 0.01, dtype=torch.float64), 6))) == 2
