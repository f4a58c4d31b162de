"""The pages of the papers: every file that they name exists, and every paper has one."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

PAGES = sorted(path for path in (ROOT / "docs" / "papers").glob("*.md") if path.stem != "index")
PAPERS = {path.name for path in (ROOT / "src" / "hush" / "reproduce" / "tables").iterdir() if path.name != "hush"}


def test_every_paper_has_a_page() -> None:
    assert {page.stem for page in PAGES} == PAPERS
    index = (ROOT / "docs" / "papers" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"({page.name})" in index
    references = re.findall(r"`(tests/\S+?\.py)`", index)
    assert len(references) >= len(PAPERS)
    assert all((ROOT / name).is_file() for name in references)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_settings_and_entries_exist(page: object) -> None:
    text = (ROOT / "docs" / "papers" / f"{getattr(page, 'stem', '')}.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "hush"
    files = re.findall(r"`((?:[a-z_]+/)+[\w.-]*)`", text)
    for name in files:
        entry = source / "reproduce" / "tables" / f"{name}.toml"
        assert (source / name).exists() or entry.exists(), name
    for name, symbol in re.findall(r"`((?:[a-z_]+/)+\w+\.py)` \(`(\w+)`", text):
        assert re.search(rf"\b{symbol}\b", (source / name).read_text(encoding="utf-8")), f"{name}: {symbol}"
    assert files
