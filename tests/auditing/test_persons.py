"""Audits of persons: the canary is all rows of one person."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from hush.auditing.run import examine
from hush.privacy.persons import Persons
from hush.types import Relation
from tests.statistical.planted import all_rows
from tests.support.worst_case import worst_case

ROWS = 20


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_an_audit_of_a_person_comes_near_the_claim(relation: Relation) -> None:
    found = examine(worst_case(rows=ROWS, relation=relation), kind="two-datasets", runs=2_000)
    assert 0.7 * found.epsilon_claimed < found.epsilon_lower <= found.epsilon_claimed


@pytest.mark.soak
def test_audits_of_persons_over_many_seeds_stay_below_the_claim() -> None:
    for seed in range(20):
        found = examine(worst_case(rows=ROWS), kind="two-datasets", runs=5_000, confidence=0.999, seed=seed)
        assert 0.7 * found.epsilon_claimed < found.epsilon_lower <= found.epsilon_claimed


def test_an_audit_sees_rows_that_are_clipped_one_by_one() -> None:
    with patch.object(Persons, "drawn", all_rows):
        assert examine(worst_case(rows=ROWS), kind="two-datasets", runs=1000).refuted


def test_side_releases_and_many_canaries_are_audited_for_persons_too() -> None:
    adaptive = {"protect": {"rule": "dp-sgd", "clip": "adaptive"}}
    found = examine(worst_case(rows=3, recipe=adaptive, rounds=2), kind="two-datasets", runs=300)
    assert {each.what: each.audited for each in found.releases} == {"model update": 2, "clip quantile": 2}
    assert not found.refuted
    many = examine(worst_case(rows=3, samples=40, batch=40, rows_per_person=2), kind="one-run", canaries=20, runs=20)
    assert not many.refuted
    assert many.epsilon_if_gaussian > 0.2 * many.epsilon_claimed
