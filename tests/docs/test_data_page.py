"""The code of docs/data.md runs, and its config is accepted."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from hush.config import parse
from hush.data.schema import from_table
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)  # the page's own code


def test_the_config_of_the_page_is_accepted() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = parse(tomllib.loads(block))
    assert config.data.files == "sites/*.parquet"
    schema = from_table(config.data.table_schema)
    assert schema.class_names == ("no", "yes")
    assert schema.input_shape == (2 + 3 + 1,)
