"""The files of a trained model: the same after saving and loading, and refused where they were changed or mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hush
from hush.types import HushError
from tests.support.trained_models import CONFIG, PartlyFrozen, TokenNet, fitted, numbers, tokens


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved built-in model, and beside it a saved module of a user's own and the run that trained that."""
    path = tmp_path_factory.mktemp("saved")
    x, y = numbers()
    fitted(path / "run", hush.data.clients(x, y, clients=3, classes=3)).save(path / "model")
    own = fitted(path / "own-run", hush.data.clients(tokens(), tokens()["tokens"][:, 0] % 3, clients=3), TokenNet())
    own.save(path / "own")
    return path


def copy(source: Path, target: Path, edit: Callable[[Path], object]) -> Path:
    """A changed copy of a directory."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    edit(target)
    return target


def test_a_loaded_model_is_the_one_that_was_saved(saved: Path, tmp_path: Path) -> None:
    x, _ = numbers()
    run, model = hush.load(saved / "run"), hush.load(saved / "model")
    assert np.array_equal(model.raw_outputs(x), run.raw_outputs(x))
    for name in (
        "guarantees",
        "class_values",
        "clients",
        "placed",
        "recipe",
        "config_hash",
        "versions",
        "input_format",
    ):
        assert getattr(model, name) == getattr(run, name), name
    assert repr(model) == repr(run)
    # A model directory holds weights and JSON, and nothing of the run's rows, scores or config.
    assert {file.name for file in (saved / "model").iterdir()} == {"model.safetensors", "model.json"}
    text = (saved / "model" / "model.json").read_text()
    assert "accuracy_per_client" not in text
    assert "batch_size" in text  # of the guarantee cards
    again = hush.load(model.save(tmp_path / "again"))
    assert np.array_equal(again.raw_outputs(x), run.raw_outputs(x))
    assert (tmp_path / "again" / "model.json").read_bytes() == (saved / "model" / "model.json").read_bytes()
    with pytest.raises(HushError, match="not empty; accepted: a new or an empty directory"):
        model.save(tmp_path / "again")


def test_own_modules_need_their_class(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = hush.load(saved / "own-run", model=TokenNet()).raw_outputs(tokens())
    seen: list[Any] = []

    def factory(shape: Any, outputs: int) -> nn.Module:
        seen.append((shape, outputs))
        return TokenNet()

    (tmp_path / "mine.py").write_text(
        "from tests.support.trained_models import TokenNet\n\ndef make(shape, outputs):\n    return TokenNet()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = TokenNet()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    for model in (given, factory, "mine:make", TokenNet):
        assert np.array_equal(hush.load(saved / "own", model=model).raw_outputs(tokens()), wanted)
    assert seen == [({"tokens": (6,), "mask": (6,)}, 3)]
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


class Squared(TokenNet):
    """The same parameters, and another function of them."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The logits, squared."""
        return super().forward(tokens, mask).square()


class Wider(TokenNet):
    """Another shape of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 4)


class Longer(TokenNet):
    """A parameter more, which is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "holds the weights of custom module .TokenNet., not its code; accepted: model="),
        (Squared(), "computes something else with these weights"),
        (Wider(), r"last.weight has shape \(4, 8\), the trained one \(3, 8\)"),
        (Longer(), "differs in more"),
        (nn.Linear(6, 3), "fails on inputs of shape"),
        (nn.Linear, "Linear needs in_features, out_features|Linear fails"),
        (lambda shape, outputs: 3, "returns int"),
        ("nowhere:make", "No module named 'nowhere'"),
        (7, "found int"),
    ],
)
def test_other_architectures_are_refused(saved: Path, model: Any, words: str) -> None:
    with pytest.raises(HushError, match=words):
        hush.load(saved / "own", model=model)


def test_a_built_in_model_takes_no_module(saved: Path) -> None:
    with pytest.raises(HushError, match="holds the built-in logreg; accepted: none"):
        hush.load(saved / "model", model=TokenNet())


def flipped(path: Path) -> None:
    """One bit of the last weight changes."""
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(bytes(content))


def edited(key: str, value: object) -> Callable[[Path], None]:
    """A value of the description changes."""

    def edit(path: Path) -> None:
        raw = json.loads((path / "model.json").read_text())
        raw[key] = value(raw[key]) if callable(value) else value
        (path / "model.json").write_text(json.dumps(raw))

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (flipped, "is not the file that model.json describes"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "is not the file that model.json describes"),
        (lambda path: (path / "model.safetensors").unlink(), "cannot be read"),
        (edited("guarantees", lambda cards: [{**cards[0], "epsilon_spent": 0.1}, *cards[1:]]), "was changed"),
        (edited("class_values", lambda values: values[::-1]), "was changed"),
        (edited("files", {"../model/model.safetensors": "0"}), "was changed"),
        (edited("format", 2), "format 2; accepted: 1"),
        (lambda path: (path / "model.json").write_text("[]"), "expected a JSON object"),
        (lambda path: (path / "model.json").write_text("{"), "cannot be read"),
        (lambda path: (path / "model.json").unlink(), "holds no trained model"),
    ],
)
def test_changed_directories_are_refused(
    saved: Path, tmp_path: Path, edit: Callable[[Path], object], words: str
) -> None:
    with pytest.raises(HushError, match=words) as error:
        hush.load(copy(saved / "model", tmp_path / "copy", edit))
    assert "\n" not in str(error.value)


def test_files_outside_of_the_directory_are_not_read(saved: Path, tmp_path: Path) -> None:
    from hush.trained_model.files import _digest

    def edit(path: Path) -> None:
        raw = json.loads((path / "model.json").read_text())
        raw["files"] = {"../other": "0"}
        del raw["sha256"]
        (path / "model.json").write_text(json.dumps({**raw, "sha256": _digest(raw)}))

    with pytest.raises(HushError, match=r"names the file '../other'; accepted: model.safetensors, fixed.safetensors"):
        hush.load(copy(saved / "model", tmp_path / "copy", edit))


def test_weights_of_another_model_are_refused(saved: Path, tmp_path: Path) -> None:
    x, y = numbers()
    other = fitted(tmp_path / "other", hush.data.clients(x, y, clients=3), seed=4)
    other.save(tmp_path / "saved")
    swap = copy(
        saved / "model",
        tmp_path / "copy",
        lambda path: (path / "model.safetensors").write_bytes((tmp_path / "saved" / "model.safetensors").read_bytes()),
    )
    with pytest.raises(HushError, match=r"is not the file that model\.json describes"):
        hush.load(swap)


def test_runs_without_a_trained_model_are_refused(tmp_path: Path) -> None:
    x, y = numbers()
    with pytest.raises(hush.NothingTrainedError):
        hush.simulate(
            {**CONFIG, "privacy": {"budgets": 1.0, "lifetime": 1e-3}},
            dataset=hush.data.clients(x, y, clients=3), out=tmp_path / "spent", ledgers=tmp_path / "ledgers",
        )  # fmt: skip
    with pytest.raises(HushError, match="no client could afford a round of this run, so nothing was trained"):
        hush.load(tmp_path / "spent")
    (tmp_path / "spent" / "model.json").unlink()
    with pytest.raises(HushError, match="a run of an earlier version"):
        hush.load(tmp_path / "spent")
    (tmp_path / "spent" / "result.json").unlink()
    with pytest.raises(HushError, match="a run that has not finished"):
        hush.load(tmp_path / "spent")
    with pytest.raises(HushError, match="holds no trained model"):
        hush.load(tmp_path / "nowhere")


def test_fixed_parts_are_stored_once(tmp_path: Path) -> None:
    x, y = numbers()
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3), PartlyFrozen())
    from safetensors.torch import load_file

    trained, fixed = (
        load_file(tmp_path / "run" / "model.safetensors"),
        load_file(tmp_path / "run" / "fixed.safetensors"),
    )
    assert set(fixed) == {"first.weight", "first.bias", "scale"}
    assert (
        set(trained)
        == set(model.parameters)
        == {"second.weight", "second.bias", "last.weight", "last.bias", "third.bias"}
    )
