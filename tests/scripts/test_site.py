"""The documentation site: every page is in its navigation, and its references are complete and up to date."""

from __future__ import annotations

import re
from types import SimpleNamespace

import hush
from hush.config_keys import MEANINGS, config_keys
from scripts import reference_pages, site_hooks
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1].split("\ntheme:")[0]


def test_every_page_is_in_the_navigation() -> None:
    """The strict build fails for a page that is not; here it is noticed at once. Decisions are listed by themselves."""
    listed = re.findall(r"[\w/-]+\.md", NAVIGATION)
    pages = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "adr"]
    assert [page for page in pages if page not in listed] == []
    from_the_root = {"contributing.md", "changelog.md", "reporting.md"}
    assert [page for page in listed if not (DOCS / page).exists()] == [page for page in listed if page in from_the_root]
    assert len(set(listed)) == len(listed)


def test_every_public_name_is_in_the_api_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    shown = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    aliases = {"State", "__version__"}  # of types, in a sentence; of the package
    assert set(hush.__all__) - aliases <= shown
    assert "`hush.State`" in page


def test_every_config_key_has_a_meaning() -> None:
    keys = config_keys()
    assert [key.name for key in keys if not key.meaning] == [], "add a sentence to MEANINGS in hush/config_keys.py"
    assert set(MEANINGS) == {key.name for key in keys}
    assert all(key.accepts and key.accepts != "a value" for key in keys)


def test_the_reference_pages_are_up_to_date() -> None:
    for path, text in reference_pages.pages().items():
        same = path.read_text(encoding="utf-8") == text
        assert same, f"{path.relative_to(ROOT)}: run .venv/bin/python -m scripts.reference_pages"


def test_the_home_page_has_its_words_beside_its_figure() -> None:
    """The hook that lays it out takes the page apart at its paragraphs; the page itself stays plain Markdown."""
    page = SimpleNamespace(meta={}, file=SimpleNamespace(src_uri="index.md"))
    shown = site_hooks.on_page_markdown((DOCS / "index.md").read_text(encoding="utf-8"), page)
    words, figure = shown.split('<div class="hero" markdown>')[1].split("</div>")[:2]
    assert "# Hush\n" in words
    assert words.count(".md-button") == 3
    assert figure.count("](accuracy.svg)") == 1
    assert page.meta["hide"] == ["navigation", "toc"]


def test_what_the_theme_leaves_without_a_name_has_one() -> None:
    assert site_hooks.on_page_content('<th style="x"></th><th>a</th>') == '<td style="x"></td><th>a</th>'
    nested = '<nav class="md-nav" data-md-level="2" aria-labelledby="__nav_1_label" aria-expanded="false">\n'
    nested += (
        '<label class="md-nav__title" for="__nav_1">\n<span class="md-nav__icon md-icon"></span>\nDecisions\n</label>'
    )
    dialog = '<div class="md-search" data-md-component="search" role="dialog">'
    for named in (site_hooks.on_post_page(nested + dialog), site_hooks.on_post_template(nested + dialog)):
        assert 'aria-label="Decisions"' in named
        assert 'aria-label="Search"' in named
