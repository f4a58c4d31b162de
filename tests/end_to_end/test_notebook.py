"""docs/notebooks/01_first_federation.py runs: ten lines give a trained model, its metrics and its guarantees."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT, environment

NOTEBOOK = ROOT / "docs" / "notebooks" / "01_first_federation.py"
# A cell begins at a line of "# %%"; one of text is marked.
CELLS = [cell for cell in NOTEBOOK.read_text(encoding="utf-8").split("# %%")[1:] if not cell.startswith(" [markdown]")]
DATA, TRAIN, GUARANTEES, PREDICT, METRICS, PREVIEW, SAVE = range(7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebook runs."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def outputs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What each cell of code shows, after all of them ran in one kernel."""
    nbclient, jupytext = pytest.importorskip("nbclient"), pytest.importorskip("jupytext")
    pytest.importorskip("ipykernel")
    own = str(tmp_path_factory.mktemp("jupyter"))
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        # Not ours: the client and its messaging library.
        warnings.simplefilter("ignore")
        for name, value in {**environment(), "IPYTHONDIR": own, "JUPYTER_RUNTIME_DIR": own}.items():
            patch.setenv(name, value)
        notebook = jupytext.read(NOTEBOOK)
        notebook.cells = notebook.cells[
            : 2 + notebook.cells.index(next(c for c in notebook.cells if "save(" in c.source))
        ]
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def html(outputs: list[Any]) -> str:
    return "".join(str(each.data["text/html"]) for each in outputs if "data" in each and "text/html" in each.data)


def value(outputs: list[Any]) -> float:
    return float(outputs[0].data["text/plain"])


def test_ten_lines_are_enough() -> None:
    lines = "".join(CELLS[number] for number in (DATA, TRAIN, GUARANTEES)).splitlines()
    assert len([line for line in lines if line]) == 10
    assert max(map(len, lines)) <= 120


def test_the_bar_is_one_line_of_html_that_was_updated(outputs: list[list[Any]]) -> None:
    bar = outputs[TRAIN][0]
    assert '<progress value="10" max="10"' in bar.data["text/html"]
    assert re.search(r"training: accuracy \d+\.\d ?%, 10 of 10 rounds", bar.data["text/plain"])


def test_results_are_tables(outputs: list[list[Any]]) -> None:
    assert "mean accuracy" in html(outputs[TRAIN])
    assert "Not covered" in html(outputs[TRAIN])
    for number in (GUARANTEES, PREVIEW):
        assert re.findall(r"<td[^>]*>(north|south)</td>", html(outputs[number])) == ["north", "south"]
    assert "epsilon_spent" in html(outputs[GUARANTEES])
    assert "roc_auc" in html(outputs[METRICS])


def test_the_trained_model_predicts_and_so_does_the_saved_one(outputs: list[list[Any]], folder: Path) -> None:
    assert value(outputs[PREDICT]) > 0.85
    assert value(outputs[SAVE][-1:]) == value(outputs[PREDICT])
    assert [path.name for path in folder.iterdir()] == ["model"]


def test_nobody_is_warned(outputs: list[list[Any]]) -> None:
    assert [each for cell in outputs for each in cell if each.get("name") == "stderr"] == []
