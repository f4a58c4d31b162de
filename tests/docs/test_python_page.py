"""The code of docs/python.md and of the README's Python section runs, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hush.fit_result import FitResult
from hush.simulation import KEYWORDS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(blocks(PAGE)) == 8
    for block in blocks(PAGE):
        exec(block, names)  # the page's own code


@pytest.mark.slow
def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, *_ = found = blocks(README)
    assert len([line for line in first.splitlines() if line]) <= 6, "an import and five lines"
    for block in found:
        exec(block, names)  # the page's own code


def test_the_page_names_every_argument_and_attribute() -> None:
    table = PAGE.split("## Settings")[1].split("## Before")[0]
    assert [name for name in (*KEYWORDS, "recipe", "settings", "config") if f"`{name}`" not in table] == []
    listed = PAGE.split("| attribute |")[1].split("\n\n")[0]
    public = [
        name for name in vars(FitResult) if not name.startswith("_") and name not in ("completed", "path", "weights")
    ]
    assert [name for name in public if not re.search(rf"`{name}[`(]", listed)] == []
