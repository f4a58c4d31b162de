"""The README says what the files say."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from hush import recipes
from hush.config import parse
from hush.recipes import RECIPES
from tests.support.paths import ROOT


def test_readme_shows_the_measured_demo() -> None:
    measured = json.loads((ROOT / "results" / "demo.json").read_text())["recipes"]
    rows = re.findall(
        r"^\| `([\w-]+)`: .*\| ([\d.]+) % \| ([\d.]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    shown = {name: (mean, std) for name, mean, std in rows}
    assert shown == {
        name: (f"{100 * entry['accuracy']['mean']:.1f}", f"{100 * entry['accuracy']['std']:.1f}")
        for name, entry in measured.items()
    }
    for entry in measured.values():
        by_seed = [run["accuracy"]["mean"] for run in entry["runs"]]
        assert entry["accuracy"]["std"] == pytest.approx(statistics.stdev(by_seed))
    means = {name: entry["accuracy"]["mean"] for name, entry in measured.items()}
    assert max(means, key=lambda name: means[name]) == "robust-hdp"


def test_readme_config_is_accepted() -> None:
    import tomllib

    block, slots = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert parse(tomllib.loads(block)).recipe["name"] in RECIPES
    assert recipes.parse(tomllib.loads(slots)["recipe"])[1].assign.models == 2


def test_tests_that_the_docs_cite_exist() -> None:
    """Every `tests/FILE.py`, and every name of a test in a paragraph that cites one: it is in a file cited there."""
    cited, missing = 0, []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            files = [ROOT / file for file in re.findall(r"tests/[\w/]+\.py", paragraph)]
            names = re.findall(r"(?<![\w/])test_\w+\b(?!\.py)", paragraph) if files else []
            missing += [f"{page.name}: {file.relative_to(ROOT)}" for file in files if not file.exists()]
            text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
            missing += [f"{page.name}: {name}" for name in names if f"def {name}(" not in text]
            cited += len(names)
    assert missing == []
    assert cited > 100


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "src/hush" / name).exists()}
    assert missing == set()
    assert len(named) > 20
