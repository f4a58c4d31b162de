"""Mutants of the source: the tests named for each fail on it, and pass without it. Some seconds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.statistical.mutants import MUTANTS, ROOT, Mutant, failing_tests

DOCUMENT = ROOT / "docs" / "audit.md"


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    assert failing_tests(mutant, tmp_path, mutant.caught_by) == set(mutant.caught_by)


@pytest.mark.soak
def test_without_a_mutant_the_same_tests_pass(tmp_path: Path) -> None:
    every = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.caught_by))
    assert failing_tests(None, tmp_path, every) == set()


def test_the_document_lists_every_mutant_and_its_tests() -> None:
    rows = {cells[1].strip(): cells for line in DOCUMENT.read_text().splitlines() if len(cells := line.split("|")) > 4}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 32
    for mutant in MUTANTS:
        cells = rows[f"`{mutant.name}`"]
        assert cells[2].strip() == mutant.what
        assert cells[3].strip() == ", ".join(f"`{test}`" for test in mutant.caught_by)


def test_every_mutant_still_applies() -> None:
    """A mutant whose text is no longer in the source, or is there twice, tests nothing."""
    for mutant in MUTANTS:
        for file, old, _ in mutant.edits:
            assert (ROOT / "src" / "hush" / file).read_text().count(old) == 1, (mutant.name, file, old)
