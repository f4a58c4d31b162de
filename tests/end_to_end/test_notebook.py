"""A notebook: ten lines give a trained model, its metrics and its guarantees, and a progress bar without widgets."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from tests.support.paths import environment

CELLS = (
    """\
import numpy as np, hush
from torch import nn
draw = np.random.default_rng(0)
x = draw.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype(int)
data = {"north": (x[:200], y[:200]), "south": (x[200:500], y[200:500])}
sim = hush.Simulation(data, nn.Linear(8, 2), epsilon={"north": 1.0, "south": 8.0}, recipe="dp-fedavg", rounds=8, lr=0.5)
result = sim.fit()""",
    "result",
    "result.guarantees",
    "print(float(np.mean(result.predict(x[500:]) == y[500:])))",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What each cell shows."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("notebook")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        # Not ours: the client and its messaging library.
        warnings.simplefilter("ignore")
        for name, value in {**environment(), "IPYTHONDIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder)}.items():
            patch.setenv(name, value)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def html(outputs: list[Any]) -> str:
    return "".join(str(each.data["text/html"]) for each in outputs if "data" in each and "text/html" in each.data)


def test_ten_lines_are_enough() -> None:
    assert sum(len(cell.splitlines()) for cell in CELLS) <= 12


def test_the_bar_is_one_line_of_html_that_was_updated(outputs: list[list[Any]]) -> None:
    (bar,) = outputs[0]
    assert '<progress value="8" max="8"' in bar.data["text/html"]
    assert re.search(r"training: accuracy \d+\.\d ?%, 8 of 8 rounds", bar.data["text/plain"])


def test_results_are_tables(outputs: list[list[Any]]) -> None:
    assert "mean accuracy" in html(outputs[1])
    assert "Not covered" in html(outputs[1])
    cards = html(outputs[2])
    assert re.findall(r"<td[^>]*>(north|south)</td>", cards) == ["north", "south"]
    assert "epsilon_spent" in cards


def test_the_trained_model_predicts(outputs: list[list[Any]]) -> None:
    assert float(outputs[3][0].text) > 0.85


def test_nothing_is_written_and_nobody_is_warned(outputs: list[list[Any]]) -> None:
    assert [each for cell in outputs for each in cell if each.get("name") == "stderr"] == []
