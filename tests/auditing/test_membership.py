"""Membership inference finds what is there to find, and next to nothing under a small epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hush.auditing.membership import area, at_rate, membership, most_found
from hush.config import Config, parse
from hush.data import clients
from hush.types import HushError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 60)).astype(np.float32)
Y = RNG.integers(0, 2, 80)


def config(**privacy: object) -> Config:
    """Labels at random in many dimensions: what a model knows of them, it has remembered."""
    return parse(
        {
            "rounds": 6,
            "local": {"batch_size": 5, "epochs": 2},
            "recipe": {"name": "dp-fedavg"},
            "privacy": {"budgets": 1.0, "delta": 1e-3, **privacy},
        }
    )


def test_members_are_found_without_privacy_and_hardly_at_epsilon_1() -> None:
    data = clients(X, Y, clients=1, classes=2)
    bare, kept = membership(config(), [math.inf, 1.0], dataset=data, shadows=16)
    assert bare.auc > 0.9
    assert abs(kept.auc - 0.5) < 0.1
    assert kept.tpr["0.1"] <= kept.allowed["0.1"] + 0.05
    assert bare.allowed["0.01"] == 1.0
    assert (bare.units, bare.shadows) == (64, 16)


def test_persons_are_judged_as_a_whole() -> None:
    keys = np.repeat(np.arange(20), 4)
    data = clients(X, Y, clients=1, classes=2, person=keys)
    (found,) = membership(config(), [math.inf], dataset=data, shadows=8)
    assert found.units == 16
    assert found.auc > 0.9


def test_areas_and_rates_are_those_of_their_definitions() -> None:
    inside, outside = np.array([3.0, 2.0, 1.0]), np.array([2.0, 0.0, 0.5, 0.1])
    assert area(inside, outside) == pytest.approx(np.mean([[1, 1, 1, 1], [0.5, 1, 1, 1], [0, 1, 1, 1]]))
    assert area(outside, outside) == 0.5
    assert at_rate(inside, outside, 0.0) == pytest.approx(1 / 3)
    assert at_rate(inside, outside, 0.25) == 1.0
    assert at_rate(inside, outside, 1.0) == 1.0


def test_what_a_guarantee_allows() -> None:
    assert most_found(0.01, 0.0, 0.0) == pytest.approx(0.01)
    assert most_found(0.01, 1.0, 1e-5) == pytest.approx(math.e * 0.01 + 1e-5)
    assert most_found(0.5, 1.0, 0.0) == pytest.approx(1 - 0.5 / math.e)
    assert most_found(0.001, math.inf, 1e-5) == 1.0


def test_mistakes_are_named() -> None:
    with pytest.raises(HushError, match="shadows: found 2"):
        membership(config(), [1.0], shadows=2)
    with pytest.raises(HushError, match="epsilons"):
        membership(config(), [], shadows=16)
