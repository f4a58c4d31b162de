"""Do the estimated noise energies give the weights that the true ones would?

The measure is the variance of the aggregate, sum w^2 sigma^2, over that of the best weights. Estimates with relative
errors e_i make it about 1 + sum w e^2 - (sum w e)^2, so the Fisher information says how near to one a method can come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from hush import seeds
from hush.recipes.context import DenseRows, Spaced
from hush.recipes.estimators import noise_energy

N, P = 20, 28_938
LEVELS = {"below": 0.001, "comparable": 0.03, "above": 3.0}  # of the signal, a coordinate; the noise is 0.001 to 1


@dataclass(frozen=True)
class Draw:
    updates: Tensor
    energies: Tensor
    excess: float  # expected loss of an efficient estimator that does not know the loadings

    def ratio(self, estimates: Tensor) -> float:
        weights = noise_energy.inverse(estimates)
        return float((weights.square() * self.energies).sum() * self.energies.reciprocal().sum())


def draw(seed: int, rank: int, level: float, *, decades: float = 3, n: int = N, p: int = P) -> Draw:
    """Noise over some decades, and signals: rank 0 is one common to all, else as many as that with random loadings."""
    rng = seeds.rng(seed, "estimators", rank)
    sigma = 10 ** -rng.uniform(0, decades, n)
    loadings = rng.standard_normal((n, rank)) / math.sqrt(rank) if rank else np.ones((n, 1))
    updates = loadings @ (level * rng.standard_normal((loadings.shape[1], p))) + sigma[:, None] * rng.standard_normal(
        (n, p)
    )
    Q = np.linalg.qr(loadings / sigma[:, None])[0]
    rest = np.eye(n) - Q @ Q.T
    errors = 2 / p * np.linalg.inv(rest**2)
    w = sigma**-2 / (sigma**-2).sum()
    return Draw(
        torch.from_numpy(updates).float(), torch.from_numpy(p * sigma**2), w @ errors.diagonal() - w @ errors @ w
    )


def known(rank: int, level: float, count: int = 4) -> list[Draw]:
    """The first draws where the noise can be known: an efficient estimator loses less than a thousandth on average."""
    found: list[Draw] = []
    seed = 0
    while len(found) < count:
        one = draw(seed, rank, level)
        seed += 1
        if one.excess < 0.001:
            found.append(one)
    return found


def norms(U: Tensor) -> Tensor:
    return U.double().square().sum(1)


def differences(U: Tensor) -> Tensor:
    G = U.double() @ U.double().T
    scale = G.diagonal().max()
    return noise_energy._least_squares(G / scale, U.shape[1]) * scale


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_pairwise_is_within_one_per_cent_of_the_oracle(rank: int, level: str) -> None:
    ratios = [one.ratio(noise_energy.pairwise(one.updates)) for one in known(rank, LEVELS[level])]
    assert max(ratios) <= 1.01, ratios


@pytest.mark.parametrize(("twin", "rank"), [(norms, 0), (norms, 2), (differences, 2), (differences, 3)])
@pytest.mark.parametrize("level", ["comparable", "above"])
def test_wrong_twins_are_not(twin: Callable[[Tensor], Tensor], rank: int, level: str) -> None:
    """Norms count the signal as noise; plain differences count what the signals do not share."""
    assert min(one.ratio(twin(one.updates)) for one in known(rank, LEVELS[level], 2)) > 1.05


def test_pairwise_loses_no_more_than_the_information_bound() -> None:
    """Over all draws, also those where three signals hide the noise of the best clients."""
    draws = [draw(seed, 3, 0.1) for seed in range(24)]
    lost = [one.ratio(noise_energy.pairwise(one.updates)) - 1 for one in draws]
    assert np.mean(lost) < np.mean([one.excess for one in draws]) + 0.005
    assert max(lost) < 1


def test_pairwise_gives_energies_not_only_their_ratios() -> None:
    one = draw(0, 0, 0.1, decades=1)
    torch.testing.assert_close(noise_energy.pairwise(one.updates), one.energies, rtol=0.05, atol=0)
    one = draw(1, 2, 0.1, decades=1)
    torch.testing.assert_close(noise_energy.pairwise(one.updates), one.energies, rtol=0.05, atol=0)


def test_pairwise_follows_scale_and_order() -> None:
    U = draw(2, 2, 0.03, p=4000).updates
    base = noise_energy.pairwise(U)
    torch.testing.assert_close(noise_energy.pairwise(U * 2.0**40), base * 2.0**80, rtol=1e-9, atol=0)
    torch.testing.assert_close(noise_energy.pairwise(U * 2.0**-60), base * 2.0**-120, rtol=1e-9, atol=0)
    torch.testing.assert_close(noise_energy.pairwise(U.flip(0)), base.flip(0), rtol=1e-4, atol=0)


def test_pairwise_reads_the_updates_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    U = draw(3, 0, 10.0, p=3000).updates
    whole = noise_energy.pairwise(U)
    monkeypatch.setattr(noise_energy, "_BLOCK", 997 * N)
    torch.testing.assert_close(noise_energy.pairwise(U), whole, rtol=1e-6, atol=0)


def test_pairwise_with_two_clients_uses_the_norms() -> None:
    U = torch.from_numpy(seeds.rng(0, "two").standard_normal((2, 5000))).float() * torch.tensor([[1.0], [4.0]])
    torch.testing.assert_close(noise_energy.pairwise(U), torch.tensor([5e3, 8e4]).double(), rtol=0.1, atol=0)


def test_many_clients() -> None:
    one = draw(4, 2, 0.1, n=200, p=2000)
    assert one.ratio(noise_energy.pairwise(one.updates)) < 1.02


def noise(n: int, p: int) -> Tensor:
    return torch.from_numpy(seeds.rng(5, "noise", n, p).standard_normal((n, p), dtype=np.float32))


@pytest.mark.parametrize("method", [noise_energy.pairwise, noise_energy.rpca])
@pytest.mark.parametrize(
    "U",
    [
        noise(1, 50),
        noise(2, 50),
        noise(3, 50),
        noise(3, 500) * torch.tensor([[1.0], [1e-4], [1.0]]),
        noise(4, 500),
        noise(20, 7),
        noise(20, 20),
        noise(20, 79),
        noise(9, 1),
        noise(1, 300).expand(6, 300),
        torch.cat([noise(1, 300).expand(2, 300), noise(5, 300)]),
        torch.cat([torch.zeros(4, 300), noise(1, 300)]),
        noise(5, 300) * 1e-18,
        noise(5, 300) * 1e18,
        torch.zeros(5, 300),
        torch.zeros(1, 10),
        torch.zeros(3, 0),
    ],
    ids=lambda U: f"{len(U)}x{U.shape[1]}",
)
def test_odd_updates_give_weights(method: Callable[[Tensor], Tensor], U: Tensor) -> None:
    estimates = method(U)
    assert estimates.shape == (len(U),)
    assert estimates.dtype == torch.float64
    assert bool(estimates.isfinite().all())
    assert bool((estimates >= 0).all()) and (method is noise_energy.rpca or bool((estimates > 0).all()))
    weights = noise_energy.inverse(estimates)
    assert bool(weights.isfinite().all())
    assert float(weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("method", [noise_energy.pairwise, noise_energy.rpca])
def test_equal_clients_get_equal_weights(method: Callable[[Tensor], Tensor]) -> None:
    for U in (torch.zeros(4, 100), noise(1, 100).expand(4, 100)):
        torch.testing.assert_close(noise_energy.inverse(method(U)), torch.full((4,), 0.25).double(), rtol=0.05, atol=0)


@pytest.mark.parametrize("method", [noise_energy.pairwise, noise_energy.rpca])
def test_a_client_that_sent_nothing_does_not_take_the_weight(method: Callable[[Tensor], Tensor]) -> None:
    U = noise(6, 1000) * torch.tensor([1.0, 2, 3, 4, 5, 6])[:, None]
    U[2] = 0
    estimates = method(U)
    assert float(estimates[2]) == float(estimates.max()) > float(estimates[0])


@pytest.mark.parametrize("level", [0.003, 0.03, 1.0])
def test_rpca_is_within_fifteen_per_cent_of_the_oracle(level: float) -> None:
    draws = [draw(seed, 0, level, decades=2) for seed in range(3)]
    ratios = [one.ratio(noise_energy.rpca(one.updates)) for one in draws]
    assert max(ratios) <= 1.15, ratios


def test_norms_are_not() -> None:
    assert min(one.ratio(norms(one.updates)) for one in (draw(seed, 0, 0.03, decades=2) for seed in range(3))) > 1.15


def textbook(M: Tensor) -> Tensor:
    """Algorithm 3 of Robust-HDP as printed (but + Y/mu in both steps): fixed penalty, full SVD, float64."""
    p, n = M.shape
    sparsity = 1 / math.sqrt(max(p, n))
    mu = p * n / (4 * float(M.abs().sum()))
    S, Y = torch.zeros_like(M), torch.zeros_like(M)
    for _ in range(3000):
        left, s, right = torch.linalg.svd(M - S + Y / mu, full_matrices=False)
        L = (left * (s - 1 / mu).clamp_min(0)) @ right
        R = M - L + Y / mu
        S = R.sign() * (R.abs() - sparsity / mu).clamp_min(0)
        Y = Y + mu * (M - L - S)
        if float((M - L - S).norm()) < 1e-7 * float(M.norm()):
            break
    return S.square().sum(0)


@pytest.mark.parametrize(("rank", "level"), [(0, 0.1), (2, 0.3)])
def test_rpca_gives_the_weights_of_the_fixed_penalty_method(rank: int, level: float) -> None:
    U = draw(6, rank, level, decades=2, n=10, p=1500).updates
    exact = noise_energy.inverse(textbook(U.T.double()))
    torch.testing.assert_close(noise_energy.inverse(noise_energy.rpca(U)), exact, rtol=0.01, atol=0)
    hasty = noise_energy.inverse(noise_energy.rpca(U, growth=1.5))
    assert float((hasty / exact - 1).abs().max()) > 0.02


def test_rpca_on_evenly_spaced_rows_scales_up() -> None:
    U = draw(7, 0, 0.03, decades=1).updates
    part = noise_energy.rpca(U, rows=10_000)
    torch.testing.assert_close(part, noise_energy.rpca(U), rtol=0.2, atol=0)


@pytest.mark.parametrize(("rank", "level"), [(0, 0.03), (2, 0.3)])
def test_columns_that_go_ahead_lead_the_others_to_the_same_weights(
    rank: int, level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    U = draw(8, rank, level, decades=2, n=10, p=120_000).updates
    led = noise_energy.inverse(noise_energy.rpca(U))
    monkeypatch.setattr(noise_energy, "_FEWEST_LEADING", U.shape[1])
    together = noise_energy.inverse(noise_energy.rpca(U))
    assert not torch.equal(led, together)
    assert float((led / together - 1).abs().max()) < 0.02
    monkeypatch.setattr(noise_energy, "_FEWEST_LEADING", 1)
    monkeypatch.setattr(noise_energy, "_LEADING", 1000)
    misled = noise_energy.inverse(noise_energy.rpca(U))
    assert float((misled / together - 1).abs().max()) > 0.04, "a hundred columns are too few"


def test_blocks_change_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    U = draw(9, 2, 0.1, decades=2, n=8, p=5000).updates
    whole = noise_energy.rpca(U)
    monkeypatch.setattr(noise_energy, "_CACHED_ENTRIES", 997 * 8)
    torch.testing.assert_close(noise_energy.rpca(U), whole, rtol=0.01, atol=0)


def test_the_updates_are_only_read() -> None:
    U = draw(10, 0, 0.1, n=6, p=3000).updates
    before = U.clone()
    noise_energy.rpca(U)
    assert torch.equal(U, before)


def test_inverse() -> None:
    torch.testing.assert_close(noise_energy.inverse(torch.tensor([1.0, 2.0, 4.0])), torch.tensor([4.0, 2.0, 1.0]) / 7)
    torch.testing.assert_close(noise_energy.inverse(torch.zeros(4)), torch.full((4,), 0.25))
    torch.testing.assert_close(noise_energy.inverse(torch.tensor([0.0, 3.0, 0.0])), torch.tensor([0.5, 0.0, 0.5]))
    torch.testing.assert_close(
        noise_energy.inverse(torch.tensor([1e-300, 1e-300]).double()), torch.full((2,), 0.5).double()
    )


@pytest.mark.parametrize("method", [noise_energy.pairwise, noise_energy.rpca])
def test_many_clients_are_estimated_in_groups(method: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    p, n = 3_000, 300
    scales = torch.logspace(-1, 1, n)[torch.randperm(n, generator=generator)]
    updates = scales[:, None] * torch.randn(n, p, generator=generator) + 0.05 * torch.randn(p, generator=generator)
    known = scales.double().square() * p
    asked: list[tuple[int, ...]] = []

    def estimate(sample: Tensor, parameters: int) -> Tensor:
        asked.append((*sample.shape, parameters))
        return method(sample, parameters=parameters)

    found = noise_energy.estimated(DenseRows(updates), estimate, Spaced(1 << 19))
    assert asked == [(100, p, p)] * 3
    together = method(updates)
    shared = (found / known).median() / (together / known).median()
    torch.testing.assert_close(found / shared, together, rtol=0.1, atol=0)
    weights, best = noise_energy.inverse(found), noise_energy.inverse(known)
    assert float((weights.square() * known).sum()) < 1.03 * float((best.square() * known).sum())


def test_a_sample_of_the_columns_is_enough_in_groups() -> None:
    updates = torch.randn(200, 1 << 17, generator=torch.Generator().manual_seed(3))
    updates *= torch.linspace(1, 3, 200)[:, None]
    found = noise_energy.estimated(DenseRows(updates), noise_energy.pairwise, noise_energy.COLUMNS)
    torch.testing.assert_close(found, updates.double().square().sum(1), rtol=0.05, atol=0)
