"""Persons: which rows a batch takes, and what a person counts for in a sum over rows."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from hush.privacy import noise
from hush.privacy.persons import Persons
from hush.privacy.plan import PrivacyPlan

SIZES = torch.tensor([3, 1, 20, 2, 7])


@pytest.mark.parametrize("each", [1, 2, 5, 30])
def test_a_batch_takes_rows_of_its_persons_alone(each: int) -> None:
    persons, source = Persons(SIZES, each), noise.Seeded(0, 0, 0)
    ends = [0, *SIZES.cumsum(0).tolist()]
    for chosen in ([], [1], [0, 2, 4], [0, 1, 2, 3, 4]):
        rows = persons.drawn(torch.tensor(chosen, dtype=torch.int64), source)
        assert rows.shape == ((len(chosen),) if each == 1 else (len(chosen), each))
        for who, own in zip(chosen, rows.reshape(len(chosen), each).tolist(), strict=True):
            size, (first, end) = int(SIZES[who]), list(pairwise(ends))[who]
            assert all(first <= row < end for row in own)
            # No row again before every other row of the person.
            assert max(Counter(own).values()) <= -(-each // size)
            assert len(set(own)) == min(each, size)


@pytest.mark.parametrize("each", [1, 4])
def test_a_person_contributes_each_of_its_rows_as_often(each: int) -> None:
    persons, source = Persons(SIZES, each), noise.Secure()
    chosen = torch.arange(len(SIZES)).repeat(1)
    seen = torch.stack([persons.drawn(chosen, source).reshape(len(SIZES), each) for _ in range(4000)])
    counts = torch.bincount(seen[:, 2].flatten(), minlength=int(SIZES.sum()))[4:24].numpy()
    assert counts.sum() == 4000 * each
    assert stats.chisquare(counts).pvalue > 1e-6


def test_persons_that_come_later_change_no_rows_of_those_before() -> None:
    """What neighbours have in common is drawn alike: the last person is there or not, and nothing else differs."""
    for each in (1, 3):
        with_last = Persons(SIZES, each).drawn(torch.arange(5), noise.Seeded(3, 0, 1))
        without = Persons(SIZES[:4], each).drawn(torch.arange(4), noise.Seeded(3, 0, 1))
        assert torch.equal(with_last[:4], without)


def test_the_weights_of_a_person_add_up_to_one() -> None:
    weights = Persons(SIZES).weights
    sums = torch.stack([part.sum() for part in weights.split(SIZES.tolist())])
    assert torch.allclose(sums, torch.ones(len(SIZES), dtype=torch.float64), atol=1e-15)
    assert Persons(SIZES).only(2).rows == 4


def test_a_plan_samples_persons_at_its_rate_whatever_rows_they_have() -> None:
    plan = PrivacyPlan(
        samples=5, batch=2, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation="add-remove", accountant="pld"
    )
    persons, source = Persons(SIZES), noise.Seeded(1, 0, 1)
    whose = torch.arange(5).repeat_interleave(SIZES)
    found = torch.cat([whose[plan.batch_rows(source, persons)] for _ in range(5000)])
    counts = np.bincount(found.numpy(), minlength=5)
    assert min(2 * min(stats.binom.cdf(n, 5000, 0.4), stats.binom.sf(n - 1, 5000, 0.4)) for n in counts) > 1e-6
