"""The page of proofs and the code name each other: assumptions their theorem, theorems their code and their tests."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
THEOREMS = {int(number): text for number, text in re.findall(r"^## Theorem (\d+):(.*?)(?=^## )", PAGE, re.M | re.S)}
NAMED = re.compile(r"Theorems? (\d+)(?: and (\d+))? of\s+(?:#\s+)?docs/proofs\.md")
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src" / "hush").rglob("*.py"))}


def test_theorems_are_numbered_from_one() -> None:
    assert sorted(THEOREMS) == list(range(1, len(THEOREMS) + 1))
    assert len(THEOREMS) >= 15


def test_what_the_code_names_is_there_and_names_the_code() -> None:
    found = 0
    for path, text in SOURCES.items():
        for numbers in NAMED.findall(text):
            for number in filter(None, numbers):
                found += 1
                assert int(number) in THEOREMS, f"{path}: theorem {number} does not exist"
                name = str(path.relative_to(ROOT / "src" / "hush"))
                assert f"`{name}`" in THEOREMS[int(number)], f"theorem {number} does not name {name}"
    assert found >= 20


def test_each_module_with_an_assumption_names_a_theorem() -> None:
    """What bounds a release, its sampling, its noise or their sum rests on a theorem, which the module names."""
    bounding = {
        *(path for path in SOURCES if path.parent.name == "accounting" and path.name in (
            "events.py", "gaussian.py", "pld.py", "privacy_filter.py",
        )),
        *(ROOT / "src" / "hush" / "privacy" / f"{name}.py" for name in (
            "discrete", "noise", "persons", "plan", "row_budgets", "sensitivity", "side_release",
        )),
        ROOT / "src" / "hush" / "tuning.py",
        ROOT / "src" / "hush" / "engines" / "schedules.py",
        ROOT / "src" / "hush" / "models" / "isolation" / "proof.py",
    }  # fmt: skip
    assert {path.name for path in bounding if not NAMED.findall(SOURCES[path])} == set()


@pytest.mark.parametrize("number", sorted(THEOREMS))
def test_every_theorem_names_code_that_names_it_and_tests(number: int) -> None:
    code = re.findall(r"`([a-z_/]+\.py)`", re.findall(r"^Code: (.*?)(?: Tests:|$)", THEOREMS[number], re.M | re.S)[-1])
    tests = re.findall(r"`(tests/[a-z_/]+\.py)`", THEOREMS[number])
    assert code and tests
    for name in code:
        text = SOURCES[ROOT / "src" / "hush" / name]
        numbers = {int(each) for pair in NAMED.findall(text) for each in pair if each}
        assert number in numbers, f"{name} does not name theorem {number}"
    for name in tests:
        assert (ROOT / name).is_file(), name


def test_every_question_of_a_reviewer_has_a_file_and_a_test() -> None:
    table = PAGE[PAGE.index("## Questions of reviewers") : PAGE.index("## References")]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for question, answer, test in rows:
        files = re.findall(r"`([a-z_/]+\.py)`", answer)
        assert files, question
        assert all((ROOT / "src" / "hush" / name).is_file() for name in files), answer
        assert all((ROOT / name).is_file() for name in re.findall(r"`(tests/[a-z_/]+\.py)`", test)), test
