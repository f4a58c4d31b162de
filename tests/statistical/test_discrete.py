"""The discrete Gaussian is exactly what it says: chi-square on many draws, with a wrong twin."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from scipy import stats

from hush.privacy import noise
from hush.privacy.discrete import BITS, _below, discrete_gaussian
from hush.privacy.source import Source
from hush.types import HushError
from tests.support.paths import ROOT


def fits(drawn: torch.Tensor, sigma: float) -> bool:
    """Chi-square against the exact probabilities on a window, tails pooled, at 1e-6."""
    reach = int(4 * sigma) + 1
    inside = np.arange(-reach, reach + 1)
    everything = np.arange(-60 * reach, 60 * reach + 1)
    mass = np.exp(-(everything.astype(float) ** 2) / (2 * sigma**2))
    share = np.exp(-(inside.astype(float) ** 2) / (2 * sigma**2)) / mass.sum()
    x = drawn.numpy()
    seen = np.array([(x == k).sum() for k in inside] + [(np.abs(x) > reach).sum()])
    expected = np.append(share, max(1 - share.sum(), 1e-12)) * len(x)
    big = expected >= 5
    if not big.all():
        seen, expected = (np.append(values[big], values[~big].sum()) for values in (seen, expected))
    statistic = ((seen - expected) ** 2 / expected).sum()
    return bool(stats.chi2.sf(statistic, len(seen) - 1) > 1e-6)


SOURCES: list[Source] = [noise.Secure(), noise.Seeded(7, 1, 1)]


@pytest.mark.parametrize("sigma", [1, 3, 10])
@pytest.mark.parametrize("source", SOURCES, ids=["secure", "seeded"])
def test_distribution(source: Source, sigma: int) -> None:
    drawn = source.discrete(200_000, sigma)
    assert fits(drawn, sigma)
    assert not fits(drawn, 1.05 * sigma)
    assert not fits(drawn, 0.95 * sigma)
    lone = (torch.arange(len(drawn)) % 20 == 0).long()
    assert not fits(drawn + 2 * sigma * lone, sigma), "one shifted draw in twenty must be seen"


@pytest.mark.soak
@pytest.mark.parametrize("sigma", [1, 3, 10])
@pytest.mark.parametrize("source", SOURCES, ids=["secure", "seeded"])
def test_distribution_of_a_million(source: Source, sigma: int) -> None:
    drawn = source.discrete(1_000_000, sigma)
    assert fits(drawn, sigma)
    assert not fits(drawn, 1.01 * sigma)
    assert not fits(drawn, 0.99 * sigma)


def test_large_scale_looks_gaussian() -> None:
    drawn = SOURCES[1].discrete(100_000, 4096).double().numpy() / 4096
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * drawn, "norm").pvalue < 1e-6


def test_uniform_integers_are_unbiased() -> None:
    """A bound that does not divide the range of the words: plain remainders would favour small numbers."""
    high = 3 * 2 ** (BITS - 2)
    generator = torch.Generator().manual_seed(1)

    def words(size: int) -> torch.Tensor:
        return torch.randint(0, 2**BITS, (size,), generator=generator, dtype=torch.int64)

    drawn = _below(torch.full((30_000,), high), words)
    lower = (drawn < high // 3).double().mean().item()
    assert lower == pytest.approx(1 / 3, abs=0.015)
    assert (words(30_000) % high < high // 3).double().mean().item() > 0.45


def test_edges() -> None:
    assert discrete_gaussian(0, 5, SOURCES[0]._words).shape == (0,)  # type: ignore[attr-defined]
    with pytest.raises(HushError, match="accepted: 1 to"):
        SOURCES[0].discrete(3, 10**6)


def test_the_promise_states_the_measured_loss() -> None:
    measured = json.loads((ROOT / "results" / "discrete.json").read_text())
    text = " ".join((ROOT / "docs" / "privacy-promise.md").read_text().split())
    (shown,) = re.findall(
        r"over (\d+) seeds \(`scripts/mixed_budgets.toml`, `results/discrete.json`\): the accuracy is ([\d.]+) % with "
        r"it and ([\d.]+) % without it. "
        r"The difference of (-?[\d.]+) points has a standard error of ([\d.]+)",
        text,
    )
    seeds, lost, accuracy = measured["seeds"], measured["lost"], measured["accuracy"]
    figures = accuracy["discrete"]["mean"], accuracy["floating_point"]["mean"], lost["mean"]
    error = lost["std"] / len(seeds) ** 0.5
    assert shown == (str(len(seeds)), *(f"{100 * figure:.1f}" for figure in (*figures, error)))
    assert lost["mean"] == pytest.approx(figures[1] - figures[0])
    assert len(lost["each"]) == len(seeds) >= 5
