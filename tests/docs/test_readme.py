"""The README says what the files say."""

from __future__ import annotations

import json
import re
import statistics
import tomllib

import pytest

from hush.config import load, parse
from tests.support.paths import ROOT

PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_shows_the_measured_demo() -> None:
    measured = json.loads((ROOT / "results" / "demo.json").read_text())["recipes"]
    rows = re.findall(r"^\| `([\w-]+)`: .*\| ([\d.]+) % \| ([\d.]+) \|$", README, re.MULTILINE)
    shown = {name: (mean, std) for name, mean, std in rows}
    assert shown == {
        name: (f"{100 * entry['accuracy']['mean']:.1f}", f"{100 * entry['accuracy']['std']:.1f}")
        for name, entry in measured.items()
    }
    for entry in measured.values():
        by_seed = [run["accuracy"]["mean"] for run in entry["runs"]]
        assert entry["accuracy"]["std"] == pytest.approx(statistics.stdev(by_seed))
    private = {name: entry["accuracy"]["mean"] for name, entry in measured.items() if name != "fedavg"}
    assert max(private, key=lambda name: private[name]) == "hush"


def test_readme_config_is_that_of_the_demo() -> None:
    """So that the sample gives the measured accuracy; the quickstart's adds keys with their defaults."""
    demo = load(ROOT / "src" / "hush" / "demo.toml")
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert parse(tomllib.loads(block)) == demo
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(encoding="utf-8"), re.DOTALL)
    assert parse(tomllib.loads(block)) == demo
    compared = re.search(r'^DEMO_RECIPES = "(.*)"$', (ROOT / "src/hush/cli/main.py").read_text(), re.MULTILINE)
    measured = json.loads((ROOT / "results" / "demo.json").read_text())
    assert parse(measured["config"]) == demo
    assert set(measured["recipes"]) == set(compared[1].split(","))


def test_readme_facts_are_those_of_the_results() -> None:
    def cells(name: str) -> dict[tuple[str, str], float]:
        measured = json.loads((ROOT / "results" / "reproduce" / f"{name}.json").read_text())["cells"]
        return {(cell["algorithm"], cell["column"]): cell["measures"]["value"]["ours"] for cell in measured}

    printed = json.loads((ROOT / "src/hush/reproduce/printed.json").read_text())["robust-hdp/12"]["rows"]
    columns = {row["column"].lower() for row in printed}
    ours = cells("robust-hdp-table-12-hush-cnn")
    lead = [
        ours["hush-cnn", column] - max(row["value"] for row in printed if row["column"].lower() == column)
        for column in columns
    ]
    assert f"{min(lead):.1f} to {max(lead):.1f} points" in README
    assert re.search(r"robust-hdp/table-12\].* 40 of 45;", (ROOT / "docs" / "results" / "robust-hdp.md").read_text())
    for suite, figure in (("cpu", "cpu.w1.opacus_over_ours"), ("h200", "gpu.w1.opacus_over_ours")):
        row = re.search(rf"`{re.escape(figure)}` \|[^|]*\| ([\d.]+) \| {suite} \|", PERFORMANCE)
        assert row
        assert f"{float(row[1]):.2g} times" in README or f"{float(row[1]):.0f} times" in README


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
