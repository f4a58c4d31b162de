"""The results pages are what the script makes of the results, and every result names how it was made."""

from __future__ import annotations

import copy
import re

import pytest

from hush.reproduce import entries
from scripts import results as script
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return script.pages(script.loaded())


def test_the_pages_are_up_to_date(made: dict[str, str]) -> None:
    there = {str(path.relative_to(DOCS)) for path in (DOCS / "results").rglob("*.*")} | {"results.md"}
    assert there == set(made), "run `make results`"
    for place, text in made.items():
        assert (DOCS / place).read_text(encoding="utf-8") == text, "run `make results`"


def test_a_changed_number_changes_its_page() -> None:
    changed = copy.deepcopy(script.loaded())
    next(iter(changed[0]["cells"][0]["measures"].values()))["ours"] += 1.0
    paper = changed[0]["entry"].partition("/")[0]
    assert script.pages(changed)[f"results/{paper}.md"] != (DOCS / f"results/{paper}.md").read_text(encoding="utf-8")


def test_the_front_page_is_one_screen_and_links_every_page(made: dict[str, str]) -> None:
    front = made["results.md"]
    assert len(front.splitlines()) < 40
    assert set(re.findall(r"\((results/[\w-]+\.md)\)", front)) == {
        name for name in made if re.fullmatch(r"results/[\w-]+\.md", name)
    }


def test_every_entry_has_a_result_or_a_reason_with_its_cost(made: dict[str, str]) -> None:
    for name in entries():
        page = made[f"results/{name.partition('/')[0]}.md"]
        (line,) = re.findall(
            rf"^\| `{re.escape(name)}` \| ([^|]+) \| \d+ \| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE
        )
        assert re.fullmatch(r"\d+ of \d+ cells|not run: .+", line[0].strip())
        assert float(line[1]) >= 0


def test_pictures_are_there_and_have_words(made: dict[str, str]) -> None:
    drawn = {name for name in made if name.endswith(".svg")}
    shown = {
        f"results/{place}"
        for name, text in made.items()
        if name.endswith(".md")
        for words, place in re.findall(r"!\[([^\]]+)\]\((figures/[^)]+)\)", text)
        if words
    }
    assert shown == drawn and drawn
    assert all(made[name].startswith('<svg class="chart" xmlns="http://www.w3.org/2000/svg"') for name in drawn)


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
