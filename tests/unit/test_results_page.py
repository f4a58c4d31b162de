"""docs/results.md is what the script makes of the results, and every result names how it was made."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("results")
    sys.path.remove(str(ROOT / "scripts"))


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    assert script.page(script.loaded()) == (ROOT / "docs" / "results.md").read_text(encoding="utf-8"), (
        "run `make results`"
    )


def test_a_changed_number_changes_the_page(script: ModuleType) -> None:
    changed = copy.deepcopy(script.loaded())
    next(iter(changed[0]["cells"][0]["measures"].values()))["ours"] += 1.0
    assert script.page(changed) != (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_every_result_says_how_it_was_made(script: ModuleType) -> None:
    for content in script.loaded():
        assert content["command"].startswith(f"hush reproduce {content['entry']}")
        assert {"python", "torch", "hush"} <= set(content["versions"])
        assert content["seeds"]
        assert all(
            len(value["runs"]) in (1, len(content["seeds"]))
            for c in content["cells"]
            for value in c["measures"].values()
        )
