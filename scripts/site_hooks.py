"""Hooks of the documentation site: pages from outside docs/, the lists of decisions and notebooks, links and anchors.

The pages stay plain Markdown that reads well where it is stored. What only the site needs is done here, for mkdocs.yml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "build" / "notebooks"
# Pages of the repository's root, by the name that they have on the site.
ROOT_PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "reporting.md": "SECURITY.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_NOTEBOOK = re.compile(r"(\]\((?:\.\./)?(?:notebooks/)?\d\d_\w+)\.py\)")
_EMPTY_HEADING = re.compile(r"<th( style=\"[^\"]*\")?></th>")
_NESTED = re.compile(
    r'(<nav class="md-nav" data-md-level="2")( aria-labelledby="[^"]*")'
    r'([^>]*>\s*<label class="md-nav__title"[^>]*>\s*(?:<span[^>]*></span>)?\s*)([^<\n]*[^<\s])'
)
# What a search finds first, and last: by how a page's path begins.
BOOSTS = (("glossary|quickstart|concepts/", 4), ("adr/|changelog|results|dependencies", 0.3))
_COUNTED = re.compile(r"\]\(#([^)]+)-(\d+)\)")


def slug(text: str, separator: str = "-") -> str:
    """Return the anchor of a heading as repositories name it, so that one link serves both."""
    plain = "".join(c if c.isalnum() or c in "-_" else separator if c == " " else "" for c in text.strip().lower())
    return plain or "section"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions and the notebooks where the navigation says `adr` and `notebooks`."""
    decisions = [f"adr/{path.name}" for path in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    notebooks = [f"notebooks/{path.stem}.md" for path in sources()]
    config.nav = _expanded(config.nav, {"adr": ["adr/index.md", *decisions], "notebooks": notebooks})
    return config


def sources() -> list[Path]:
    """The notebooks, in order."""
    return sorted((ROOT / "docs" / "notebooks").glob("[0-9]*.py"))


def _expanded(entry: Any, lists: dict[str, list[str]]) -> Any:
    if isinstance(entry, list):
        return [
            each
            for item in entry
            for each in (lists.get(item, [item]) if isinstance(item, str) else [_one(item, lists)])
        ]
    return entry


def _one(item: dict[str, Any], lists: dict[str, list[str]]) -> dict[str, Any]:
    return {
        title: lists.get(content, content) if isinstance(content, str) else _expanded(content, lists)
        for title, content in item.items()
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, the list of decisions and the executed notebooks; leave their sources out."""
    for name, path in ROOT_PAGES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_LINK.sub(_from_root, text)))
    files.append(File.generated(config, "adr/index.md", content=_decisions()))
    for file in list(files):
        if file.src_uri.startswith("notebooks/"):
            files.remove(file)
    for source in sources():
        executed = sorted(NOTEBOOKS.glob(f"{source.stem}*"))
        if not executed:
            raise PluginError(f"{NOTEBOOKS.name}/{source.stem}: not executed; `make notebooks` does it")
        for notebook in executed:
            files.append(File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name what lies outside of the pages without a link; link to repeated headings as the site numbers them."""
    page.meta["search"] = {"boost": next((boost for at, boost in BOOSTS if re.match(at, page.file.src_uri)), 1)}
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
        markdown = _home(markdown)
    inside = _LINK.sub(lambda found: _outside(found, page.file.src_uri), _NOTEBOOK.sub(r"\1.md)", markdown))
    headings = [slug(line.lstrip("#")) for line in markdown.splitlines() if re.match(r"#+ ", line)]
    return _COUNTED.sub(
        lambda found: f"](#{found[1]}_{found[2]})" if headings.count(found[1]) > int(found[2]) else found[0], inside
    )


def on_page_content(html: str, **_: Any) -> str:
    """An empty corner of a table is a cell, not a heading without words."""
    return _EMPTY_HEADING.sub(r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog and nested lists of pages, which the theme leaves without names for screen readers."""
    named = output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return _NESTED.sub(r'\1 aria-label="\4"\3\4', named)


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page that says that there is none."""
    return on_post_page(output_content)


def _home(markdown: str) -> str:
    """The home page: words and buttons, made of its links, beside the figure."""
    title, lead, links, figure, caption, rest = markdown.split("\n\n", 5)
    buttons = "\n".join(f"[{text}]({target}){{ .md-button }}" for text, target in _LINK.findall(links))
    column, end = "<div markdown>", "</div>"
    hero = ['<div class="hero" markdown>', column, title, lead, buttons, end, column, figure, caption, end, end]
    return "\n\n".join([*hero, rest])


def _from_root(found: re.Match[str]) -> str:
    text, target = found[1], found[2]
    named = {path: name for name, path in ROOT_PAGES.items()}
    page, hash_, anchor = target.partition("#")
    if page in named:
        return f"[{text}]({named[page]}{hash_}{anchor})"
    if page in ("docs/adr", "docs"):
        return f"[{text}]({'adr/index.md' if page == 'docs/adr' else 'index.md'})"
    if not re.match(r"[a-z]+:|#", target) and not page.startswith("docs/"):
        return f"{text} (`{page}`)" if text != page else f"`{page}`"
    return f"[{text}]({target.removeprefix('docs/')})"


def _outside(found: re.Match[str], page: str) -> str:
    """A link to a file that is no page, as words; the site stands alone, without the repository."""
    text, target = found[1], found[2]
    if re.match(r"[a-z]+:|#", target):
        return found[0]
    path = target.partition("#")[0]
    full = (ROOT / "docs" / page).parent.joinpath(path).resolve()
    if (ROOT / "docs") in full.parents or not full.exists():
        return found[0]
    named = {value: key for key, value in ROOT_PAGES.items()}.get(str(full.relative_to(ROOT)))
    up = "../" * page.count("/")
    return f"[{text}]({up}{named})" if named else f"{text} (`{full.relative_to(ROOT)}`)"


def _decisions() -> str:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in pages]
    listed = [f"- [{title}]({path.name})" for path, title in zip(pages, titles, strict=True)]
    head = ["# Decisions", "", "Decisions on architecture, each with its context and consequences.", ""]
    return "\n".join([*head, *listed, ""])
