"""A run is resumed and measured with its own data, model and code, or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.config import parse
from hush.data import Dataset, from_arrays
from hush.engines.fingerprint import model_fingerprint
from hush.models import from_module

RAW: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 2},
    "privacy": {"budgets": 5.0},
    "local": {"batch_size": 8},
    "recipe": {"name": "dp-fedavg"},
}
FEATURES, CLASSES, ROWS = 64, 2, 60


class StopError(Exception):
    """What ends a run in the middle."""


def stop(record: Any) -> None:
    if record.round == 1:
        raise StopError


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, FEATURES)).astype(np.float32), np.arange(ROWS) % CLASSES


def datasets() -> dict[str, Dataset]:
    """Ten datasets of one shape."""
    x, y = arrays()
    ulp, label, swapped = x.copy(), y.copy(), x.copy()
    ulp[7, 3] = np.nextafter(ulp[7, 3], np.float32(9), dtype=np.float32)
    label[11] = 1 - label[11]
    swapped[[0, 2]] = swapped[[2, 0]]
    return {
        "base": from_arrays(x, y),
        "one number, by one unit in the last place": from_arrays(ulp, y),
        "one label": from_arrays(x, label),
        "labels exchanged": from_arrays(x, 1 - y),
        "two rows exchanged": from_arrays(swapped, y),
        "all rows in reverse": from_arrays(x[::-1], y[::-1]),
        "another class": from_arrays(x, y, classes=3),
        "scaled": from_arrays(2 * x, y),
        "negated": from_arrays(-x, y),
        "columns in reverse": from_arrays(x[:, ::-1], y),
    }


class Scaled(nn.Module):
    """A module whose code and settings are the user's own."""

    def __init__(self, seed: int = 1, scale: float = 1.0, act: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.inner = nn.Linear(FEATURES, 4)
        self.outer = nn.Linear(4, 3)
        for value in self.parameters():
            value.data = torch.rand(value.shape, generator=gen) - 0.5
        self.scale, self.act = scale, act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.act(self.scale * self.inner(x)))
        return out


class Edited(Scaled):
    """The same, after an edit of its code."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.act(self.scale * self.inner(x))) + 1.0
        return out


Edited.__qualname__ = Scaled.__qualname__
MODELS: dict[str, Callable[[], nn.Module]] = {
    "base": Scaled,
    "other weights": lambda: Scaled(seed=2),
    "another setting": lambda: Scaled(scale=2.0),
    "another function": lambda: Scaled(act=lambda x: x.clamp(min=0.0)),
    "edited code": Edited,
}


def test_every_pair_of_data_and_models_is_distinguished() -> None:
    from hush.engines.fingerprint import identity
    from hush.engines.setup import own_data, prepare
    from hush.server.run_directory import check_identity

    config = parse(RAW)
    rows, base = datasets(), own_data(datasets()["base"], config)
    data = {name: identity(prepare(config, dataset=own_data(rows[name], config)))["data"] for name in rows}
    models = {name: identity(prepare(config, dataset=base, module=make()))["model"] for name, make in MODELS.items()}
    found = {(a, b): {"data": data[a], "model": models[b]} for a in data for b in models}
    assert len(found) == 50
    for one, kept in found.items():
        for other, given in found.items():
            if one == other:
                check_identity(Path("run"), kept, given)
                continue
            words = "other data" if one[0] != other[0] else "another model"
            with pytest.raises(hush.HushError, match=words):
                check_identity(Path("run"), kept, given)


def test_a_resume_takes_the_same_data_and_model_alone(tmp_path: Path) -> None:
    rows, out = datasets(), tmp_path / "run"
    whole = hush.simulate(RAW, dataset=rows["base"], model=Scaled(), out=tmp_path / "whole")
    with pytest.raises(StopError):
        hush.simulate(RAW, dataset=rows["base"], model=Scaled(), out=out, progress=stop)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for name in [name for name in rows if name != "base"]:
        with pytest.raises(hush.HushError, match=r"other data \((inputs|labels|inputs, labels)[,)]"):
            hush.simulate(RAW, dataset=rows[name], model=Scaled(), out=out, resume=True)
    parts = {"other weights": "initial weights", "another setting": "structure", "edited code": "code"}
    for name, words in parts.items():
        with pytest.raises(hush.HushError, match=rf"another model \({words}"):
            hush.simulate(RAW, dataset=rows["base"], model=MODELS[name](), out=out, resume=True)
    with pytest.raises(hush.HushError, match=r"other data .*: it has own arrays, given is digits"):
        hush.simulate(RAW, out=out, resume=True)
    with pytest.raises(hush.HushError, match=r"another model .*: it has custom module \(Scaled\), given is logreg"):
        hush.simulate(RAW, dataset=rows["base"], out=out, resume=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    resumed = hush.simulate(RAW, dataset=datasets()["base"], model=Scaled(), out=out, resume=True)
    assert resumed.accuracy_per_client == whole.accuracy_per_client and resumed.loss == whole.loss
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    with pytest.raises(hush.HushError, match="other data"):
        hush.simulate(RAW, dataset=rows["scaled"], model=Scaled(), out=out, resume=True)


FACTORY = (
    "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))"
)


def test_a_factory_of_the_users_own_can_be_resumed_until_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_factory.py").write_text(FACTORY)
    raw = {**RAW, "rounds": 2, "model": {"name": "own_factory:make"}}
    with pytest.raises(StopError):
        hush.simulate(raw, out="run", progress=stop)
    torch.rand(3)  # whatever else the program draws
    hush.simulate(raw, out="run", resume=True)
    del sys.modules["own_factory"]
    (tmp_path / "own_factory.py").write_text(FACTORY.replace("nn.Flatten(),", "nn.Flatten(), nn.Identity(),"))
    with pytest.raises(hush.HushError, match=r"another model \(structure"):
        hush.simulate(raw, out="run", resume=True)
    del sys.modules["own_factory"]


def test_own_data_and_models_are_named_as_such(tmp_path: Path) -> None:
    x, y = arrays()
    rows = from_arrays(x, y, name="digits")
    result = hush.simulate(RAW, dataset=rows, model=Scaled(), out=tmp_path / "run")
    assert (result.dataset, result.model) == ("digits (own arrays)", "custom module (Scaled)")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["data"]["name"], manifest["data"]["own"]) == ("digits (own arrays)", True)
    assert (manifest["model"]["name"], manifest["model"]["own"]) == ("custom module (Scaled)", True)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "dp-fedavg on digits (own arrays)" in page
    assert "the config below reproduces the run with digits (own arrays) and custom module (Scaled)" in page
    assert "# not used: data.name, model.name" in page
    named = hush.simulate(RAW, out=tmp_path / "named")
    assert (named.dataset, named.model) == ("digits", "logreg")
    assert "# not used:" not in (tmp_path / "named" / "report.html").read_text()


def test_own_rows_are_scaled_as_the_config_says(tmp_path: Path) -> None:
    x, y = arrays()
    raw = {**RAW, "data": {"clients": 2, "rows": "unit-norm"}}
    scaled = x / np.linalg.norm(x, axis=1, keepdims=True)
    asked = hush.simulate(raw, dataset=from_arrays(x, y))
    assert asked.loss == pytest.approx(hush.simulate(RAW, dataset=from_arrays(scaled, y)).loss, rel=1e-4)
    assert asked.loss != pytest.approx(hush.simulate(RAW, dataset=from_arrays(x, y)).loss, rel=1e-2)


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")
def test_own_data_are_measured_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hush.cli.main import main

    x, y = arrays()
    out = tmp_path / "run"
    hush.simulate(RAW, dataset=from_arrays(x, y), model=Scaled(), out=out)
    monkeypatch.setattr(sys, "argv", ["hush", "measure", str(out)])
    with pytest.raises(SystemExit, match="2"):
        main()
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "was run with own arrays" in printed.err and "dataset=..." in printed.err
    with pytest.raises(hush.HushError, match=r"custom module \(Scaled\).*model=\.\.\."):
        hush.measure(out, dataset=from_arrays(x, y))
    with pytest.raises(hush.HushError, match="other data"):
        hush.measure(out, dataset=from_arrays(x + 1, y), model=Scaled())
    with pytest.raises(hush.HushError, match="another model"):
        hush.measure(out, dataset=from_arrays(x, y), model=Scaled(seed=3))
    assert hush.measure(out, dataset=from_arrays(x, y), model=Scaled())["train_loss"] > 0

    def partly_frozen() -> nn.Module:
        module = Scaled()
        module.inner.requires_grad_(False)
        return module

    hush.simulate(RAW, dataset=from_arrays(x, y), model=partly_frozen(), out=tmp_path / "frozen")
    found = hush.measure(tmp_path / "frozen", dataset=from_arrays(x, y), model=partly_frozen())
    assert found["train_loss"] > 0 and found["gradient_dissimilarity"] >= 0


def test_a_run_without_fingerprints_is_not_resumed(tmp_path: Path) -> None:
    hush.simulate(RAW, out=tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in manifest.items() if key != "data"}))
    with pytest.raises(hush.HushError, match="no fingerprint of its data"):
        hush.simulate(RAW, out=tmp_path / "run", resume=True)
    with pytest.raises(hush.HushError, match="does not name the data"):
        hush.measure(tmp_path / "run")


def test_functions_of_pytorch_in_a_module_are_distinguished() -> None:
    """They have no code of the user's that could be compared."""
    functions = (torch.tanh, torch.sigmoid, torch.nn.functional.relu, torch.nn.functional.elu)
    prints = [
        model_fingerprint(from_module(Scaled(act=function), (FEATURES,))) for function in (*functions, torch.tanh)
    ]
    assert len({found["structure"] for found in prints}) == len(functions)
    assert prints[0] == prints[-1]


def test_clients_that_were_renamed_are_noticed(tmp_path: Path) -> None:
    """Equal arrays under other names are another run: whose budget and whose result it was would be lost."""
    x, y = arrays()
    named = {name: (x[at::2], y[at::2]) for at, name in enumerate(("north", "south"))}
    raw = {name: table for name, table in RAW.items() if name != "data"}
    with pytest.raises(StopError):
        hush.simulate(raw, dataset=named, out=tmp_path / "run", progress=stop)
    for others in (("south", "north"), ("east", "west")):
        renamed = dict(zip(others, named.values(), strict=True))
        with pytest.raises(hush.HushError, match=r"holds a run with other data \(partition\)"):
            hush.simulate(raw, dataset=renamed, out=tmp_path / "run", resume=True)
    assert hush.simulate(raw, dataset=named, out=tmp_path / "run", resume=True).trained
