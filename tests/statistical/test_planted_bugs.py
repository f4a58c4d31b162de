"""Every check passes on the pipeline as it is, and every planted bug is caught by the checks that are named for it."""

from __future__ import annotations

import pytest

from tests.statistical.checks import CHECKS, EVERY, RELEASES, power
from tests.statistical.planted import BUGS, Bug, per_example, with_sums
from tests.statistical.source_checks import SOURCE_CHECKS
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "audit.md"
LONG = ("audit_replaced", "audit_alternating")


def case(bug: Bug, name: str) -> object:
    """Quick are the keepers, and one audit of a bug that is hard to see."""
    quick = name == bug.caught_by[0] or bug.name == "noise-halved"
    return pytest.param(bug, name, id=f"{bug.name}-{name}", marks=() if quick else pytest.mark.soak)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in LONG else ()) for name in CHECKS]
)
def test_the_pipeline_passes(name: str) -> None:
    found = CHECKS[name]()
    assert found.ok, found.figure


@pytest.mark.parametrize(("bug", "name"), [case(bug, name) for bug in BUGS for name in bug.caught_by])
def test_bug_is_caught(bug: Bug, name: str) -> None:
    with bug.plant():
        found = EVERY[name]()
    assert not found.ok, f"{name} missed it: {found.figure}"


@pytest.mark.parametrize("name", ["clip_bound", "noise_scale", "inclusion"])
def test_the_way_of_planting_is_not_what_is_caught(name: str) -> None:
    with with_sums(per_example):
        found = CHECKS[name]()
    assert found.ok, found.figure


def test_audits_are_long_enough_to_see_halved_noise() -> None:
    assert power(100) >= 0.99


def test_every_check_catches_something() -> None:
    caught = {name for bug in BUGS for name in bug.caught_by}
    assert caught - set(RELEASES) == {*CHECKS, *SOURCE_CHECKS}
    assert {name.partition(" of ")[0] for name in caught & set(RELEASES)} == {"noise", "draws", "bound", "rate"}
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 12


def test_the_document_lists_every_bug_and_its_keepers() -> None:
    rows = {cells[1].strip(): cells for line in DOCUMENT.read_text().splitlines() if len(cells := line.split("|")) > 4}
    for bug in BUGS:
        cells = rows[f"`{bug.name}`"]
        assert cells[2].strip() == bug.what
        assert cells[3].strip() == ", ".join(f"`{name}`" for name in bug.caught_by)
