"""Trackers, read back by the packages themselves: TensorBoard's accumulator, MLflow's client, W&B's own records."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.fit_result import FitResult
from hush.live.follow import FollowedRun
from hush.simulation import Simulation
from hush.tracking import tracking_of
from hush.types import HushError
from tests.support.paths import ROOT

ROUNDS = 4
_BLOCK = 32768


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FitResult]]:
    """A run with all trackers that is stopped after two of its rounds and resumed."""
    for name in ("mlflow", "tensorboard", "wandb"):
        pytest.importorskip(name)
    place, before = tmp_path_factory.mktemp("tracked"), Path.cwd()
    os.chdir(place)
    try:
        sim = Simulation("digits", "logreg", clients=3, epsilon=[0.5, 1.0, 2.0], delta=1e-4, recipe="robust-hdp",
                         rounds=ROUNDS, batch_size=32, lr=0.1)  # fmt: skip
        every = ["mlflow", "tensorboard", "wandb"]
        assert sim.fit(place / "run", track=every, callbacks=lambda record: record.round == 2).run.stopped
        yield place, sim.fit(place / "run", track=every, resume=True)
    finally:
        os.chdir(before)


def curves(place: Path) -> dict[int, list[float]]:
    """The epsilon of each client after each round, from the run directory."""
    run = FollowedRun(place / "run")
    run.refresh()
    return {client: [run.epsilon_at(number)[client] for number in range(1, ROUNDS + 1)] for client in range(3)}


@pytest.mark.slow
def test_mlflow_has_the_curves_and_the_files(tracked: tuple[Path, FitResult]) -> None:
    from mlflow.tracking import MlflowClient

    place, done = tracked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
        (run,) = client.search_runs([client.get_experiment_by_name("hush").experiment_id])
        assert run.info.status == "FINISHED" and run.data.params["recipe.name"] == "robust-hdp"
        assert "held-out rows without noise" in run.data.tags["hush.not_covered_by_the_privacy_guarantee"]
        for number, curve in curves(place).items():
            found = client.get_metric_history(run.info.run_id, f"epsilon/{number}")
            assert [metric.step for metric in found] == [1, 2, 3, 4]
            assert [metric.value for metric in found] == pytest.approx(curve, rel=1e-9)
            assert found[-1].value == pytest.approx(done.run.guarantees[number].epsilon_spent, rel=1e-9)
        kept = {each.path for each in client.list_artifacts(run.info.run_id)}
        assert {"model.safetensors", "report.html", "result.json"} <= kept


@pytest.mark.slow
def test_tensorboard_has_the_curves(tracked: tuple[Path, FitResult]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place, _ = tracked
    found = EventAccumulator(str(place / "run" / "tensorboard"))
    found.Reload()
    for number, curve in curves(place).items():
        events = found.Scalars(f"epsilon/{number}")
        assert [event.step for event in events] == [1, 2, 3, 4]
        assert [event.value for event in events] == pytest.approx(curve, rel=1e-6)
    assert len(found.Scalars("accuracy mean")) == ROUNDS
    assert "config/text_summary" in found.Tags()["tensors"]


def stored(content: bytes) -> Iterator[bytes]:
    """The records of an offline file: LevelDB's log format behind a header of seven bytes."""
    assert content.startswith(b":W&B")
    at, part = 7, b""
    while at < len(content):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield part
            part = b""


@pytest.mark.slow
def test_wandb_has_the_curves_offline(tracked: tuple[Path, FitResult]) -> None:
    from wandb.proto import wandb_internal_pb2  # its classes are made as it is imported

    place, _ = tracked
    files = sorted(place.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2 and len({path.name for path in files}) == 1
    rows: list[dict[str, Any]] = []
    artifacts = 0
    for path in files:
        for data in stored(path.read_bytes()):
            record = vars(wandb_internal_pb2)["Record"]()
            record.ParseFromString(data)
            if record.HasField("history"):
                rows.append({".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
            artifacts += record.HasField("artifact")
    assert [row["_step"] for row in rows] == [1, 2, 3, 4]
    for number, curve in curves(place).items():
        assert [row[f"epsilon/{number}"] for row in rows] == pytest.approx(curve, rel=1e-9)
    assert artifacts >= 1


def test_a_tracker_that_is_unknown_or_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HushError, match=r"track: .*mlfow.*mlflow"):
        tracking_of("mlfow")
    monkeypatch.setattr("hush.tracking.names.find_spec", lambda name: None)
    with pytest.raises(HushError, match=r"track: wandb needs wandb; install it with: pip install 'hush\[track\]'"):
        tracking_of(["wandb"])


@pytest.mark.slow
def test_the_code_of_the_page_tracks_runs_of_a_comparison_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tracking.md").read_text(), re.DOTALL)
    exec(code, {})  # the page's own code
    assert len(list(tmp_path.glob("runs/tracked/tensorboard/events*"))) == 1
    found = {path.parent.name for path in tmp_path.glob("tensorboard/*/*/events*")}
    assert found == {"hush, seed 0", "fedavg, seed 0"}
    (plain,) = tmp_path.glob("tensorboard/*/fedavg*")
    events = EventAccumulator(str(plain))
    events.Reload()
    assert "epsilon/0" not in events.Tags()["scalars"] and "accuracy/1" in events.Tags()["scalars"]
    assert b"unbounded" in events.Tensors("epsilon/text_summary")[0].tensor_proto.string_val[0]
