"""The config of docs/objectives.md is accepted, and its tables name what there is."""

from __future__ import annotations

import re
import tomllib

from hush.config import parse
from hush.objective import METRICS, TARGETS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")


def test_the_config_of_the_page_is_accepted() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    objective = parse(tomllib.loads(block)).objective
    assert (objective.task, objective.loss, objective.target_bounds) == ("regression", "huber", [0, 500000])


def test_the_tables_have_all_tasks_and_metrics() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) >= set(TARGETS)
    assert all(f"`{name}`" in PAGE for name in METRICS)
