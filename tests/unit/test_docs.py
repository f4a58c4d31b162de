"""The README says what the files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hush import recipes
from hush.config import parse
from hush.recipes import RECIPES

ROOT = Path(__file__).parents[2]


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
    means = {name: entry["accuracy"]["mean"] for name, entry in measured.items()}
    assert max(means, key=lambda name: means[name]) == "robust-hdp"


def test_readme_config_is_accepted() -> None:
    import tomllib

    block, slots = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert parse(tomllib.loads(block)).recipe["name"] in RECIPES
    assert recipes.parse(tomllib.loads(slots)["recipe"])[1].assign.models == 2


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "src/hush" / name).exists()}
    assert missing == set()
    assert len(named) > 20
