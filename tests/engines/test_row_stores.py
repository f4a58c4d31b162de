"""Rounds of many numbers, whose updates wait in files, against rounds in memory: the same models for every recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hush
from hush.engines import simulator
from hush.engines.simulator import clients_at_once
from hush.recipes import RECIPES

BASE: dict[str, Any] = {
    "seed": 2,
    "data": {"name": "digits", "clients": 7},
    "privacy": {"budgets": [0.5, 0.6, 0.6, 1.0, 2.0, 6.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": 16, "lr": 0.1, "steps": 3},
}
pytestmark = pytest.mark.slow


def trained(recipe: str, device: str = "cpu") -> torch.Tensor:
    rounds = 6 if "warm" in recipe else 3
    simulation = hush.Simulation(config={**BASE, "rounds": rounds, "recipe": {"name": recipe}}, device=device)
    result = simulation.fit(progress=False)
    assert result.trained
    done = simulation._last
    assert done is not None
    return done.models


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_computes_the_same_in_blocks(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(recipe)
    monkeypatch.setattr(simulator, "SAMPLE", 1)
    monkeypatch.setattr(simulator, "_NUMBERS", {"cpu": 2 * 650, "cuda": 2 * 650})
    blocks = trained(recipe)
    torch.testing.assert_close(blocks, whole, rtol=1e-6, atol=1e-6 * float(whole.abs().max()))


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_computes_the_same_from_rows_of_a_device(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the device is the host: the sums and samples are formed by the same functions."""
    whole = trained(recipe)
    monkeypatch.setattr(simulator, "_fits", lambda *_: True)
    monkeypatch.setattr(simulator, "SAMPLE", 1)
    monkeypatch.setattr(simulator, "_NUMBERS", {"cpu": 2 * 650, "cuda": 2 * 650})
    rows = trained(recipe)
    torch.testing.assert_close(rows, whole, rtol=1e-6, atol=1e-6 * float(whole.abs().max()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("recipe", ["hush", "robust-hdp", "pfa", "dp-scaffold", "rc-dpfl"])
def test_updates_that_stay_on_a_gpu_give_the_models_of_those_that_travel(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    travelled = trained(recipe, device="cuda")
    monkeypatch.setattr(simulator, "_WORTH", 1)
    stayed = trained(recipe, device="cuda")
    torch.testing.assert_close(stayed, travelled, rtol=1e-5, atol=1e-5 * float(travelled.abs().max()))


def test_files_of_a_round_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simulator, "SAMPLE", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trained("dp-fedavg")
    assert list(tmp_path.iterdir()) == []


def test_how_many_clients_train_at_a_time() -> None:
    assert clients_at_once(20, 28_938, "cpu") == 20
    assert clients_at_once(100_000, 84, "cpu") == 2048
    assert clients_at_once(200, 11_181_642, "cpu") == 1
    assert clients_at_once(2_000, 1_000_000, "cpu") == 16
