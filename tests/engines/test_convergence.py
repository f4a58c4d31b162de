"""Convergence bounds of runs: constants of the data, bounds that hold where their conditions do, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hush
from hush.config import parse
from hush.engines.convergence import bound_of
from hush.engines.metrics import rows_of
from hush.engines.setup import prepare
from hush.server.run_directory import RunDir
from hush.types import HushError


def config(recipe: str, lr: float, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 10,
        "data": {"name": "digits", "clients": 4, "rows": "unit-norm"},
        "privacy": {"budgets": 2.0, "clip": 2.1},
        "local": {"lr": lr, "batch_size": 64},
        "recipe": {"name": recipe},
        **more,
    }


def measured(path: Path, setting: dict[str, Any]) -> dict[str, Any]:
    hush.simulate(setting, out=str(path))
    return hush.measure(path, bound=True)["bound"]


def test_constants_are_those_of_the_data(tmp_path: Path) -> None:
    setting = config("fedavg", 0.1)
    hush.simulate(setting, out=str(tmp_path))
    federation = prepare(parse(setting))
    (state, records) = RunDir(tmp_path).restore()
    _, known = bound_of(federation, state.released, records)
    for rows in rows_of(federation, 10):
        vector = torch.from_numpy(np.random.default_rng(0).normal(size=federation.model.layout.size))

        def loss(v: torch.Tensor, rows: Any = rows) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(federation.model.logits(v, rows.x), rows.y)

        curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, vector))[-1]
        assert curvature <= known.smoothness
        assert torch.autograd.functional.jacobian(loss, vector).norm() <= known.lipschitz <= known.row
    assert 0 < known.left < known.gap and known.distance > 0


@pytest.mark.parametrize(
    ("recipe", "lr"), [("scaffold-warm", 5e-3), ("fedavg", 1e-6), ("weiavg", 1e-6), ("dp-scaffold-warm", 5e-3)]
)
def test_where_its_conditions_are_met_the_bound_holds(recipe: str, lr: float, tmp_path: Path) -> None:
    found = measured(tmp_path, config(recipe, lr))
    assert found["applies"], found["conditions"]
    gradient = found["quantity"].startswith("least squared norm")
    reached = found["squared_gradient_at_the_end" if gradient else "train_loss_gap_at_the_end"]
    assert reached <= found["bound"][-1]
    assert found["rounds"][-1] == 10 and len(found["held_out_loss"]) == len(found["bound"])
    assert found["bound"] == sorted(found["bound"], reverse=True)


def test_rates_as_they_are_used_are_beyond_the_theorems(tmp_path: Path) -> None:
    found = measured(tmp_path, config("robust-hdp", 0.1))
    assert not found["applies"]
    broken = next(each for each in found["conditions"] if not each["met"])
    assert broken["what"] == "local step size" and broken["value"] == 0.1


@pytest.mark.parametrize("recipe", ["pfa", "padpfl"])
def test_bounds_with_slips_say_so(recipe: str, tmp_path: Path) -> None:
    mode = {"mode": "faithful"} if recipe == "padpfl" else {}
    found = measured(tmp_path, config(recipe, 0.05, **mode))
    assert ("no bound" in found["caveat"]) == (recipe == "padpfl")
    assert found["theorem"].endswith("last term" if recipe == "pfa" else "theorem 2")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (config("fedavg", 0.1, model={"name": "mlp", "hidden": 4}), r"--bound: mlp with 1 models; accepted: logreg"),
        (config("padpfl", 0.1), r"--bound: the theorem is about weights cut to a norm"),
    ],
)
def test_what_has_no_bound(setting: dict[str, Any], message: str, tmp_path: Path) -> None:
    hush.simulate({**setting, "rounds": 1}, out=str(tmp_path))
    with pytest.raises(HushError, match=message):
        hush.measure(tmp_path, bound=True)
    assert "bound" not in hush.measure(tmp_path)


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")
def test_the_command_shows_bound_and_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hush.cli.main import main

    hush.simulate(config("robust-hdp", 0.1), out=str(tmp_path / "run"))
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["hush", "measure", str(tmp_path / "run"), "--bound", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        shown = capsys.readouterr().out
        if more:
            assert json.loads(shown)["bound"]["rounds"] == list(range(1, 11))
        else:
            assert "theorem 3.2" in shown and "Condition not met" in shown and "loss on held-out rows" in shown
