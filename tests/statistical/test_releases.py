"""Every covered release of the promise: noise, bound and rate as applied are those that are charged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest

from hush.recipes import SLOTS
from hush.recipes.slots.weight import Uniform
from hush.types import Release
from tests.statistical import release_harness as harness
from tests.statistical.source_checks import SOURCE_CHECKS
from tests.support.declarations import declared

RELEASES = harness.releases()


@pytest.mark.parametrize("name", RELEASES)
def test_release(name: str) -> None:
    found = RELEASES[name]()
    assert found.ok, found.figure


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize("kind", harness.CHECKS)
def test_a_release_of_ones_own(kind: str, source: str) -> None:
    """The noise, bound and rate of the side release in examples/ are those that are charged, of rows and of persons."""
    for rows in (1, 3):
        found = harness.CHECKS[kind](replace(harness.example(), rows=rows), source)
        assert found.ok, found.figure


@pytest.mark.parametrize("name", SOURCE_CHECKS)
def test_source(name: str) -> None:
    found = SOURCE_CHECKS[name]()
    assert found.ok, found.figure


def test_every_covered_row_of_the_promise_has_a_case() -> None:
    """`test_promise.py` holds the table against the declarations; this holds the declarations against the cases."""
    covered = {(what, choice) for what, choice, covered, _ in declared() if covered == "yes"}
    tested = {(case.what, case.setting.partition(",")[0]) for case in harness.cases()}
    assert covered <= tested
    assert not harness.without_adapter()


def test_a_new_release_is_noticed_without_a_new_test() -> None:
    @dataclass(frozen=True)
    class Telling(Uniform):
        rule: ClassVar[str] = "telling"

        def releases(self) -> tuple[Release, ...]:
            return (Release("largest loss", True, "noised", "gaussian"),)

    weight = {**SLOTS["weight"], Telling.rule: Telling}
    harness.cases.cache_clear()
    try:
        with patch.dict(SLOTS, {"weight": weight}):
            assert harness.without_adapter() == {"largest loss"}
    finally:
        harness.cases.cache_clear()


def test_statistics_accept_normal_numbers_and_reject_their_twins() -> None:
    z = np.random.default_rng(1).normal(size=20_000)
    assert min(harness.scale_p(z), harness.shape_p(z)) > 1e-3
    assert harness.scale_p(0.95 * z) < harness.RARE
    assert harness.shape_p(np.clip(z, -3, 3)) < harness.RARE
    assert harness.shape_p(np.random.default_rng(1).laplace(scale=0.5**0.5, size=20_000)) < harness.RARE


def test_products_accept_independent_numbers_and_reject_correlated_ones() -> None:
    a, b = np.random.default_rng(2).normal(size=(2, 300))
    assert harness.product_p(a * b) > 1e-3
    assert harness.product_p(a * a) < harness.RARE
    assert harness.product_p(a * -a) < harness.RARE
    # Chernoff's bound is one: of 2,000 means of 300 products none in a hundred exceeds what it allows one of.
    pairs = np.random.default_rng(3).normal(size=(2, 2000, 300))
    assert sum(harness.product_p(row) < 0.01 for row in pairs[0] * pairs[1]) <= 20
