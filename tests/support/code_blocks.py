"""Code blocks of the pages: every fenced or indented block, with the comment before it that says how it is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md" and path.parent.name not in ("adr", "reference")
)
_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4,}\S.*\n| *\n(?= {4,}\S))+)")
_NOTE = re.compile(r"<!-- code: (.+?) -->\s*\Z", re.DOTALL)
_OF_SECTION = re.compile(r"\n## [^\n]*\s*<!-- code of this section: (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block: the page and line where its code begins, its language (`shell` where it is indented), and its note."""

    page: Path
    line: int
    language: str
    code: str
    note: str

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order; a note, `<!-- code: ... -->`, holds for the block that follows it."""
    text = page.read_text(encoding="utf-8")
    return sorted(_found(page, text), key=lambda block: block.line)


def _found(page: Path, text: str) -> Iterator[Block]:
    def block(start: int, begins: int, language: str, code: str) -> Block:
        note = _NOTE.search(text, 0, start) or _OF_SECTION.match(text, text.rfind("\n## ", 0, start))
        return Block(page, text.count("\n", 0, begins) + 1, language, code, " ".join(note[1].split()) if note else "")

    for found in _FENCE.finditer(text):
        code = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield block(found.start(), found.start(3), "shell" if found[2] == "bash" else found[2], code)
    outside = _FENCE.sub(lambda fence: re.sub(r"[^\n]", "`", fence[0]), text)
    for found in _INDENTED.finditer(outside):
        yield block(found.start(), found.start(), "shell", found[1])
