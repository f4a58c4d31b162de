"""docs/results.md is what the script makes of the results, and every result names how it was made."""

from __future__ import annotations

import copy

from scripts import results as script
from tests.support.paths import ROOT


def test_the_page_is_up_to_date() -> None:
    assert script.page(script.loaded()) == (ROOT / "docs" / "results.md").read_text(encoding="utf-8"), (
        "run `make results`"
    )


def test_a_changed_number_changes_the_page() -> None:
    changed = copy.deepcopy(script.loaded())
    next(iter(changed[0]["cells"][0]["measures"].values()))["ours"] += 1.0
    assert script.page(changed) != (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_every_result_says_how_it_was_made() -> None:
    for content in script.loaded():
        assert content["command"].startswith(f"hush reproduce {content['entry']}")
        assert {"python", "torch", "hush"} <= set(content["versions"])
        assert content["seeds"]
        assert all(
            len(value["runs"]) in (1, len(content["seeds"]))
            for c in content["cells"]
            for value in c["measures"].values()
        )
