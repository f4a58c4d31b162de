"""Training behind frozen encoders: simulations, config files, saved models, second runs, and features on disk."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hush
from hush.engines import feature_cache
from hush.models.encoders import FrozenFeatures
from tests.support.encoders import wide

with warnings.catch_warnings():
    # Typer asks click for names that it will drop.
    warnings.simplefilter("ignore")
    from typer.testing import CliRunner

    from hush.cli.main import app

NAME = "tests.support.encoders:wide"
TABLE: dict[str, Any] = {"encoder": NAME, "head": "linear"}


def simulation(model: Any = TABLE, **settings: Any) -> hush.Simulation:
    return hush.Simulation(
        "digits", model, clients=4, epsilon=8.0, rounds=5, recipe="hush", batch_size=64, settings=settings
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows went through an encoder, call by call."""
    found: list[int] = []
    original = FrozenFeatures.__call__

    def call(self: FrozenFeatures, x: torch.Tensor) -> torch.Tensor:
        found.append(len(x))
        return original(self, x)

    monkeypatch.setattr(FrozenFeatures, "__call__", call)
    return found


def test_a_head_is_trained_on_the_features_of_an_encoder() -> None:
    run = simulation(**{"local.lr": 1.0}).fit()
    assert run.accuracy["mean"] > 0.8
    assert sum(value.numel() for value in run.module.parameters()) == 10 * 81
    # By hand: the same features as plain inputs train the same head.
    digits = hush.data.datasets.load("digits", root=None)
    with torch.no_grad():
        features = torch.nn.functional.layer_norm(wide()(torch.from_numpy(digits.x)), (80,))
    plain = hush.data.from_arrays(features.numpy(), digits.y)
    same = hush.Simulation(plain, clients=4, epsilon=8.0, rounds=5, recipe="hush", batch_size=64, lr=1.0).fit()
    assert np.allclose(run.weights, same.weights, atol=1e-4)


def test_a_saved_model_needs_its_encoder(tmp_path: Path) -> None:
    run = simulation().fit()
    x = hush.data.datasets.load("digits", root=None).x[:50]
    directory = run.trained.save(tmp_path / "model")
    assert not (directory / "fixed.safetensors").exists()
    # Loading runs no code that its user did not name.
    with pytest.raises(hush.HushError, match=f"encoder: missing; .* was trained behind '{NAME}', which is code"):
        hush.load(directory)
    loaded = hush.load(directory, encoder=NAME)
    assert np.array_equal(loaded.predict(x), run.trained.predict(x))
    with pytest.raises(hush.HushError, match=r"^model.fingerprint: the weights of .*:other here have"):
        hush.load(directory, encoder="tests.support.encoders:other")
    # Weights from a file are those of the fingerprint, too.
    module = wide()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    again = hush.load(directory, encoder=NAME, weights=tmp_path / "weights.safetensors")
    assert np.array_equal(again.predict(x), run.trained.predict(x))
    exported = run.trained.export("torch.export", tmp_path / "program.pt2")
    assert exported.exists()


def test_a_config_file_names_an_encoder(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(simulation().to_toml())
    text = path.read_text()
    assert f'encoder = "{NAME}"' in text and 'head = "linear"' in text
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=hush.data.datasets.load("digits", root=None).x[:20])
    predicted = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(rows), "--encoder", NAME])
    assert predicted.exit_code == 0 and len(predicted.output.splitlines()) == 21
    # A run resumes with the same encoder alone.
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert '"encoder"' in manifest


def test_a_second_run_finds_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
    first = simulation().fit()
    assert sum(counted) >= 1796
    counted.clear()
    again = simulation(**{"seed": 3}).fit()
    assert sum(counted) <= 2  # the probe of a saved model
    counted.clear()
    assert np.array_equal(first.weights, simulation().fit().weights) and sum(counted) <= 2
    simulation({**TABLE, "features": "unit-norm"}).fit()
    simulation({**TABLE, "encoder": "tests.support.encoders:other"}).fit()
    assert len(list((tmp_path / "features").glob("*.npy"))) == 3
    assert not np.array_equal(first.weights, again.weights)


@pytest.mark.parametrize("cache", ["off", "on"])
def test_large_features_are_files_mapped_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("HUSH_CACHE", "off")
    expected = simulation().fit().weights
    monkeypatch.setenv("HUSH_CACHE", "off" if cache == "off" else str(tmp_path))
    monkeypatch.setattr(feature_cache, "LARGE", 1000)
    allocated: list[int] = []
    original = torch.empty

    def empty(*sizes: Any, **settings: Any) -> torch.Tensor:
        made = original(*sizes, **settings)
        allocated.append(made.numel())
        return made

    monkeypatch.setattr(torch, "empty", empty)
    for _ in range(2):
        sim = simulation()
        assert np.array_equal(sim.fit().weights, expected)
    assert max(allocated) < 1797 * 80  # no tensor of all features was in memory
    assert not list(tmp_path.rglob("*.part"))


def test_an_encoder_beside_a_module_is_refused() -> None:
    for model, words in (
        ({**TABLE, "name": "cnn"}, r"^model.name: cnn with an encoder"),
        ({**TABLE, "encoder": "nowhere"}, r"^model.encoder: found .nowhere."),
    ):
        with pytest.raises(hush.HushError, match=words):
            simulation(model).fit()
    with pytest.raises(hush.HushError, match="given beside a module of your own"):
        hush.Simulation("digits", wide(), clients=2, settings={"model.encoder": NAME}).fit()
