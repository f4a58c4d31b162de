"""docs/persons.md shows what was measured."""

from __future__ import annotations

import json

from scripts import person_privacy
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "persons.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_results() -> None:
    stored = json.loads(person_privacy.RESULTS.read_text())
    assert "\n".join(person_privacy.table(stored)) in PAGE
    assert stored["ways"] == {way: dict(changes) for way, changes in person_privacy.WAYS.items()}
    assert stored["config"] == person_privacy.CONFIG


def test_group_privacy_is_as_the_page_says() -> None:
    epsilon, delta = person_privacy.of_rows(4.0, 1e-5, 20)
    assert epsilon == 0.2
    # k rows: k epsilon, and the sum of delta e^(i epsilon) over i < k.
    whole = sum(delta * 2.718281828459045 ** (i * epsilon) for i in range(20))
    assert abs(whole - 1e-5) < 1e-12
