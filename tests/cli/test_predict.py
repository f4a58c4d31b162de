"""The command `hush predict`: from files to a model to predictions in a file."""

from __future__ import annotations

import csv
import importlib
import io
from pathlib import Path

import numpy as np
import pandas
import pytest

import hush
from tests.support.fork_server import command
from tests.support.trained_models import CONFIG, fitted, tokens


@pytest.fixture
def table(tmp_path: Path) -> pandas.DataFrame:
    """Rows with a text and blanks; a run on two files of them is in `run`."""
    draw = np.random.default_rng(0)
    age = draw.integers(0, 100, 240)
    made = pandas.DataFrame(
        {"age": age, "sex": draw.choice(["f", "m", None], 240), "ill": np.where(age > 50, "yes", "no")}
    )
    (tmp_path / "sites").mkdir()
    made[:120].to_csv(tmp_path / "sites" / "north.csv", index=False)
    made[120:].to_csv(tmp_path / "sites" / "south.csv", index=False)
    schema = {
        "label": "ill", "classes": ["no", "yes"], "scale": "signed", "encoding": "one-hot",
        "columns": {"age": {"low": 0, "high": 100}, "sex": {"categories": ["f", "m"], "missing": "indicator"}},
    }  # fmt: skip
    data = {"files": str(tmp_path / "sites" / "*.csv"), "label": "ill", "schema": schema}
    hush.simulate({**CONFIG, "rounds": 8, "data": data}, out=tmp_path / "run")
    return made


def test_predictions_for_a_file(tmp_path: Path, table: pandas.DataFrame) -> None:
    table[["sex", "age"]].to_csv(tmp_path / "new.csv", index=False)
    done = command("predict", "run", "new.csv", "--probabilities", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    model = hush.load(tmp_path / "run")
    assert [row["prediction"] for row in rows] == model.predict(table).tolist()
    assert np.mean([row["prediction"] == wanted for row, wanted in zip(rows, table["ill"], strict=True)]) > 0.8
    found = [[float(row[f"probability of {name}"]) for name in ("no", "yes")] for row in rows]
    assert np.allclose(found, model.predict_proba(table))
    table.to_parquet(tmp_path / "new.parquet")
    done = command("predict", "run", "new.parquet", "--out", "p.csv", cwd=tmp_path)
    assert done.stdout == "240 predictions in p.csv\n"
    assert pandas.read_csv(tmp_path / "p.csv")["prediction"].tolist() == model.predict(table).tolist()


def test_mistakes_are_one_line(tmp_path: Path, table: pandas.DataFrame) -> None:
    table.drop(columns="age").to_csv(tmp_path / "short.csv", index=False)
    table.to_csv(tmp_path / "new.csv", index=False)
    for arguments, words in (
        (("run", "short.csv"), "columns that it lacks: age"),
        (("nowhere", "new.csv"), "holds no trained model"),
        (("run", "none.csv"), "no such file"),
        (("run", "new.csv", "--client", "east"), "accepted: north, south"),
        (("run", "new.csv", "--out", "p.txt"), "ends in .csv"),
    ):
        done = command("predict", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.txt").exists()


MODULE = """
from torch import nn


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens, mask):
        return self.last((self.embedding(tokens) * mask[..., None]).sum(1))


def make(shape, outputs):
    return Mean()
"""


def test_a_users_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mean_net.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    net = importlib.import_module("mean_net").make(None, 3)
    model = fitted(tmp_path / "run", hush.data.clients(tokens(), tokens()["tokens"][:, 0] % 3, clients=3), net)
    np.savez(tmp_path / "rows.npz", **tokens())
    done = command("predict", "run", "rows.npz", "--model", "mean_net:make", "--client", "2", cwd=tmp_path)
    assert done.stdout.split()[1:] == list(map(str, model.predict(tokens()).tolist())), done.stderr
    assert "holds the weights of" in command("predict", "run", "rows.npz", cwd=tmp_path).stderr
