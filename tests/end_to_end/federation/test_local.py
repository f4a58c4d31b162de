"""`hush federation local`: processes, TLS, node authentication, and the model of the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import numpy as np
import torch
from safetensors.torch import load_file

from hush.api import simulate
from hush.data import load
from hush.privacy.ledger.statement import describe
from hush.trained_model import load as load_model

CONFIG = """
seed = 3
max_weight = 1.0
rounds = 3
[data]
name = "digits"
clients = 3
[privacy]
budgets = [1.0, 2.0, 4.0]
noise = "seeded"
[local]
batch_size = 32
lr = 0.5
[recipe]
name = "{recipe}"
"""


def hush(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from hush.cli.main import main; main()", *arguments]
    return subprocess.run(program, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def run(recipe: str, path: Path) -> list[int]:
    """How many messages each member has sent on a charge, once model, cards and ledgers agree with a simulation."""
    (path / "run.toml").write_text(CONFIG.format(recipe=recipe))
    done = hush("federation", "local", "run.toml", "--members", "3", "--dir", "fed", cwd=path)
    assert done.returncode == 0, done.stderr
    assert "round 3: updates from m000, m001, m002" in done.stderr
    log = (path / "fed" / "kits" / "m000" / "join.log").read_text()
    assert "one run may spend the whole lifetime budget (epsilon 1, lifetime 1)" in log
    simulate(path / "run.toml", out=path / "simulated")
    ours = load_file(path / "fed" / "runs" / "run" / "model.safetensors")
    theirs = load_file(path / "simulated" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-5, atol=1e-7), name
    # The coordinator's run is a trained model, like that of the simulation.
    rows = load("digits", root=None).x
    trained, simulated = (load_model(place) for place in (path / "fed" / "runs" / "run", path / "simulated"))
    assert trained.clients == ("m000", "m001", "m002")
    for member in range(3):
        ours_raw = trained.raw_outputs(rows, client=member)
        assert np.allclose(ours_raw, simulated.raw_outputs(rows, client=member), atol=1e-4)
    result = json.loads((path / "fed" / "runs" / "run" / "result.json").read_text())
    sent = []
    for number, card in enumerate(result["guarantees"]):
        described = describe(path / "fed" / "kits" / f"m{number:03d}" / "ledger.db")
        assert described["chain_ok"]
        sent.append(described["charges"]["SENT"])
        assert described["spent"] == pytest.approx(card["epsilon_spent"], rel=1e-6)
        assert described["spent"] <= card["epsilon_budget"] + 1e-9
    page = path / "fed" / "runs" / "run" / "report.html"
    page.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of typer about click
        from typer.testing import CliRunner

        from hush.cli.main import app

    assert CliRunner().invoke(app, ["report", str(page.parent)]).exit_code == 0
    assert page.stat().st_size > 10_000
    return sent


def test_three_members_give_the_model_of_the_simulation(tmp_path: Path) -> None:
    assert run("robust-hdp", tmp_path) == [3, 3, 3]


@pytest.mark.soak
@pytest.mark.parametrize("recipe", ["dp-scaffold", "pfa-plus", "rc-dpfl", "hush"])
def test_every_kind_of_recipe_runs_between_processes(recipe: str, tmp_path: Path) -> None:
    assert run(recipe, tmp_path) == [3 + (recipe == "hush")] * 3
