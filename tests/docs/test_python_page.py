"""docs/python.md names what there is, and the README begins with five lines."""

from __future__ import annotations

import re

from hush.fit_result import FitResult
from hush.simulation import KEYWORDS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_code_of_the_readme_is_short() -> None:
    first = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line]) <= 6, "an import and five lines"


def test_the_page_names_every_argument_and_attribute() -> None:
    table = PAGE.split("## Settings")[1].split("## Before")[0]
    assert [name for name in (*KEYWORDS, "recipe", "settings", "config") if f"`{name}`" not in table] == []
    listed = PAGE.split("| attribute |")[1].split("\n\n")[0]
    public = [
        name for name in vars(FitResult) if not name.startswith("_") and name not in ("completed", "path", "weights")
    ]
    assert [name for name in public if not re.search(rf"`{name}[`(]", listed)] == []
