"""The plan does what its event says: rates, noise scale and divisor, each with a wrong twin that the test rejects."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.privacy.source import Source
from hush.types import HushError

DRAWS = 100_000


def plan(**changes: float) -> PrivacyPlan:
    fields = {"samples": 50, "batch": 10, "epochs": 1, "rounds": 3, "clip": 2.0, "noise_multiplier": 1.5, **changes}
    return PrivacyPlan(**fields, relation="add-remove", accountant="pld")  # type: ignore[arg-type]


SOURCES: list[Source] = [noise.Secure(), noise.Seeded(1, 2, 3)]


def scale_is(values: torch.Tensor, std: float) -> bool:
    """A chi-square test of the variance, and Kolmogorov-Smirnov of the shape, at 1e-6."""
    x = values.double().numpy() / std
    n = len(x)
    energy = float((x**2).sum())
    tail = 2 * min(stats.chi2.cdf(energy, n), stats.chi2.sf(energy, n))
    return bool(tail > 1e-6 and stats.kstest(x, "norm").pvalue > 1e-6)


@pytest.mark.parametrize("source", SOURCES, ids=["secure", "seeded"])
def test_noise_has_the_planned_scale(source: Source) -> None:
    made = plan()
    noised = made.privatise(torch.zeros(DRAWS), source)
    planned = made.noise_multiplier * made.clip / made.batch
    assert scale_is(noised, planned)
    assert not scale_is(noised, 1.05 * planned)
    assert not scale_is(noised, 0.95 * planned)


def test_sum_is_divided_by_the_expected_batch() -> None:
    made = plan(noise_multiplier=1e-9)
    assert made.privatise(torch.full((3,), 5.0), SOURCES[1]).tolist() == pytest.approx([0.5] * 3)


def inclusion_is(counts: torch.Tensor, rounds: int, rate: float) -> bool:
    expected = rounds * rate
    statistic = float(((counts - expected) ** 2 / (expected * (1 - rate))).sum())
    tail = 2 * min(stats.chi2.cdf(statistic, len(counts)), stats.chi2.sf(statistic, len(counts)))
    return bool(tail > 1e-6)


@pytest.mark.parametrize("source", SOURCES, ids=["secure", "seeded"])
def test_rows_enter_independently_at_the_planned_rate(source: Source) -> None:
    made, rounds = plan(), 10_000
    drawn = [made.sample(source) for _ in range(rounds)]
    counts = torch.bincount(torch.cat(drawn), minlength=made.samples).double()
    assert inclusion_is(counts, rounds, made.rate)
    assert not inclusion_is(counts, rounds, 1.05 * made.rate)
    shuffled = torch.cat([torch.from_numpy(np.random.default_rng(r).permutation(50)[:10]) for r in range(rounds)])
    assert sizes_vary(drawn, made.rate)
    assert not sizes_vary(list(shuffled.split(10)), made.rate), "shuffled batches have a fixed size"
    # Each row once in five batches, as a shuffle that is cut into pieces has it, is too even.
    assert not inclusion_is(torch.full((50,), rounds * made.rate), rounds, made.rate)


def sizes_vary(drawn: list[torch.Tensor], rate: float) -> bool:
    """The variance of batch sizes is that of independent rows, at 1e-6."""
    sizes = torch.tensor([float(len(rows)) for rows in drawn]).double()
    energy = float(((sizes - 50 * rate) ** 2).sum() / (50 * rate * (1 - rate)))
    return bool(2 * min(stats.chi2.cdf(energy, len(drawn)), stats.chi2.sf(energy, len(drawn))) > 1e-6)


def test_full_batches_hold_every_row() -> None:
    assert plan(batch=50).sample(SOURCES[0]).tolist() == list(range(50))


def test_replayable_streams_depend_on_client_and_round() -> None:
    def first(client: int, number: int, seed: int = 1) -> float:
        return noise.Seeded(seed, client, number).normal(1, torch.float32).item()

    assert first(1, 1) == first(1, 1)
    assert len({first(1, 1), first(2, 1), first(1, 2), first(1, 1, seed=2), first(11, 1), first(1, 11)}) == 6


def test_secure_streams_never_repeat() -> None:
    a, b = noise.Secure().normal(1000, torch.float64), noise.Secure().normal(1000, torch.float64)
    assert not torch.equal(a, b)
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 6 / math.sqrt(1000)


def test_an_impossible_batch_is_refused() -> None:
    with pytest.raises(HushError, match=r"local.batch_size: 51 does not fit a client with 50"):
        plan(batch=51)


def test_event_counts_every_step() -> None:
    made = plan(samples=55, epochs=2)
    assert made.steps == 12
    event = made.event(3)
    assert (event.count, event.event.sampling_probability, event.event.event.noise_multiplier) == (36, 10 / 55, 1.5)


def test_update_noise_is_what_training_adds() -> None:
    made, lr = plan(), 0.3
    source = noise.Seeded(5, 0, 1)
    total = sum(lr * made.privatise(torch.zeros(20_000), source) for _ in range(made.steps))
    assert float(total.square().sum()) == pytest.approx(made.update_noise(lr, 20_000), rel=0.05)  # type: ignore[union-attr]
