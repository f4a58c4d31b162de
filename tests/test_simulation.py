"""hush.Simulation: your data and model, every setting as an argument, results as tables."""

from __future__ import annotations

import json
import logging
import math
import statistics
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.config import Config, parse
from hush.recipes.slots.weight import Uniform
from hush.simulation import KEYWORDS
from hush.types import RoundRecord, RunInterrupted, RunResult


def hospital(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 6)).astype(np.float32)
    return x, np.where(x[:, 0] + x[:, 1] > 0, "ill", "well")


DATA = hush.data.clients({"north": hospital(200, 1), "south": hospital(300, 2)}, classes=["ill", "well"])
EASY: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "recipe": "dp-fedavg", "rounds": 4, "lr": 0.5, "seed": 1}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def simulation(**more: Any) -> hush.Simulation:
    return hush.Simulation(more.pop("data", DATA), more.pop("model", None), **{**EASY, **more})


def numbers(path: Path) -> dict[str, Any]:
    """result.json without what may differ between two equal runs."""
    result = json.loads((path / "result.json").read_text())
    result.pop("seconds")
    return dict(result)


def test_ten_lines_give_a_trained_model_its_metrics_and_its_guarantees() -> None:
    sim = hush.Simulation(
        DATA, Net(), epsilon={"north": 2.0, "south": 8.0}, delta=1e-5, recipe="dp-fedavg", rounds=6, lr=0.5
    )
    result = sim.fit()
    x, y = hospital(500, 3)
    assert np.mean(result.predict(x) == y) > 0.85
    assert np.allclose(result.predict_proba(x).sum(axis=1), 1)
    assert isinstance(result.module, Net)
    assert result.accuracy["mean"] > 0.85
    assert set(result.accuracy_per_client) == {"north", "south"}
    assert result.guarantees["client"] == ("north", "south")
    assert result.guarantees["epsilon_budget"] == (2.0, 8.0)
    assert all(s <= b for s, b in zip(result.guarantees["epsilon_spent"], (2.0, 8.0), strict=True))
    assert result.history["round"] == (1, 2, 3, 4, 5, 6)
    assert result.history["accuracy"][-1] == pytest.approx(result.accuracy["mean"])
    assert any("reproducible from the seed" in text for text in result.not_covered)
    assert "Not covered" in repr(result)
    assert "<table>" in result._repr_html_()
    assert set(result.not_covered) == {
        note.removeprefix("Not covered: ") for note in result.guarantees.notes if note.startswith("Not covered: ")
    }


def test_the_weights_in_memory_are_those_that_are_saved(tmp_path: Path) -> None:
    result = simulation(model=Net()).fit(tmp_path / "run")
    loaded = hush.load(tmp_path / "run", Net())
    x, _ = hospital(50, 4)
    assert (loaded.predict(x) == result.predict(x)).all()
    result.save(tmp_path / "model")
    assert (hush.load(tmp_path / "model", Net()).predict_proba(x) == result.predict_proba(x)).all()


def test_simulate_is_the_same_run() -> None:
    raw = {"seed": 1, "rounds": 4, "privacy": {"budgets": 8.0, "delta": 1e-5}, "local": {"lr": 0.5}}
    one, other = simulation().fit().run, hush.simulate({**raw, "recipe": {"name": "dp-fedavg"}}, dataset=DATA)
    assert one.accuracy_per_client == other.accuracy_per_client
    assert one.config_hash == other.config_hash
    assert one.loss == other.loss


def test_clusters_have_a_module_each() -> None:
    data = hush.data.clients({f"c{number}": hospital(120, number) for number in range(4)}, classes=["ill", "well"])
    result = simulation(data=data, recipe="o-cdpfl", rounds=2).fit()
    assert len(result.modules) == len(result.weights)


# Every keyword reaches its key.
VALUES: dict[str, Any] = {
    "epsilon": {"north": 1.0, "south": 2.0}, "delta": 1e-6, "lifetime": 9.0, "clip": 2.0, "noise": "secure",
    "relation": "replace-one", "accountant": "rdp", "rounds": 7, "seed": 5, "participation": 0.5, "quorum": 2,
    "max_weight": 0.7, "mode": "faithful", "clients": 2, "partition": "iid", "label": "y", "client": "site",
    "schema": "schema.toml", "test_fraction": 0.3, "task": "multiclass", "loss": "cross-entropy",
    "metrics": ["f1"], "batch_size": [8, 16], "epochs": 3, "steps": 4, "lr": "auto",
    "adapters": "lora", "weights": "model.safetensors",
    "weight_decay": 0.1, "device": "auto", "precision": "tf32", "person": "patient", "rows_per_person": 2,
    "unit": "client", "row_budgets": "budget", "engine": "ray", "address": "auto", "secure_aggregation": True,
}  # fmt: skip


def at(config: Config, key: str) -> Any:
    found: Any = config.model_dump()
    for part in key.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize("name", KEYWORDS)
def test_every_keyword_is_a_key_of_the_config_and_back(name: str) -> None:
    sim = hush.Simulation("digits", "mlp", **{name: VALUES[name]})
    assert at(sim.config, KEYWORDS[name]) == VALUES[name]
    assert (sim.config.data.name, sim.config.model.name) == ("digits", "mlp")
    assert parse(tomllib.loads(sim.to_toml())) == sim.config
    assert hush.Simulation("digits", "mlp", settings={KEYWORDS[name]: VALUES[name]}).config == sim.config


def test_every_other_key_is_reached_by_settings() -> None:
    dump = Config().model_dump()
    keys = {f"{table}.{key}" for table, values in dump.items() if isinstance(values, dict) for key in values}
    keys |= {key for key, values in dump.items() if not isinstance(values, dict)}
    for key in keys - set(KEYWORDS.values()):
        value = at(Config(), key)
        if value is not None:
            assert at(hush.Simulation(settings={key: value}).config, key) == value


def test_arrays_of_numpy_are_numbers_and_lists() -> None:
    sim = hush.Simulation(epsilon=np.array([1.0, 2.0]), rounds=np.int64(3), lr=np.float64(0.2))  # type: ignore[arg-type]
    assert (sim.config.privacy.budgets, sim.config.rounds, sim.config.local.lr) == ([1.0, 2.0], 3, 0.2)
    assert hush.Simulation(delta={1: 1e-5, 0: 1e-6}).config.privacy.delta == {"1": 1e-5, "0": 1e-6}


def test_toml_goes_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    sim = simulation(settings={"privacy.sampler": "fixed", "privacy.relation": "replace-one"}, accountant="rdp")
    text = sim.to_toml(path)
    assert path.read_text() == text
    again = hush.Simulation.from_toml(path, data=DATA)
    assert again.config == sim.config
    assert again.fit().run.loss == sim.fit().run.loss
    assert hush.Simulation.from_toml(path, data=DATA, rounds=2).config.rounds == 2
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert hush.Simulation.from_toml(path, data=DATA).config == sim.config, "a byte-order mark is no part of the text"


@dataclass(frozen=True, kw_only=True)
class Halves(Uniform):
    """An option that no module defines by this name."""

    rule = "halves"


def test_what_toml_cannot_hold_is_a_comment(tmp_path: Path) -> None:
    text = simulation(model=Net(), recipe={"name": "dp-fedavg", "weight": Uniform(), "step": "adam"}).to_toml()
    assert "# data: ClientData(500 rows, 2 clients (north: 200, south: 300)" in text
    assert "# model: an nn.Module (Net); pass model=" in text
    assert "recipe.weight" not in text
    assert parse(tomllib.loads(text)).recipe["weight"]["rule"] == "hush.recipes.slots.weight:Uniform"

    @dataclass(frozen=True, kw_only=True)
    class Local(Uniform):
        rule = "local"

    text = simulation(recipe=hush.Recipe(weight=Local())).to_toml()
    assert "# recipe.weight: Local" in text
    assert "weight" not in tomllib.loads(text)["recipe"]
    assert "# model: made by Net" in simulation(model=Net).to_toml()


def test_a_factory_makes_the_same_weights_for_the_same_seed() -> None:
    def of_shape(shape: tuple[int, ...], classes: int) -> nn.Module:
        assert (shape, classes) == ((6,), 2)
        return Net()

    runs = [simulation(model=model, rounds=1, seed=seed).fit() for model, seed in ((Net, 3), (of_shape, 3), (Net, 4))]
    assert torch.equal(runs[0].weights, runs[1].weights)
    assert not torch.equal(runs[0].weights, runs[2].weights)
    assert isinstance(runs[0].module, Net)


def test_preview_takes_own_data_and_model() -> None:
    table = simulation(model=Net(), epsilon=[1.0, 4.0]).preview()
    assert table["client"] == ("north", "south")
    assert table["noise_multiplier"][0] > table["noise_multiplier"][1] > 0
    assert sum(table["weight"]) == pytest.approx(1.0)
    assert all(0.97 * b < e <= b for e, b in zip(table["epsilon_planned"], (1.0, 4.0), strict=True))
    assert table.facts["recipe"] == "dp-fedavg"
    assert hush.preview({"privacy": {"delta": 1e-5}}, dataset=DATA, model=Net())["clients"][1]["name"] == "south"


def test_compare_and_sweep_take_own_data_and_model(tmp_path: Path) -> None:
    sim = simulation(model=Net(), rounds=2)
    table = sim.compare(["dp-fedavg", "weiavg"], seeds=3, out=tmp_path / "cmp")
    assert set(table["recipe"]) == {"dp-fedavg", "weiavg"}
    for row in table:
        runs = [run["accuracy"]["mean"] for run in table.facts["recipes"][row["recipe"]]["runs"]]
        assert row["accuracy"] == pytest.approx(statistics.fmean(runs))
        assert row["std"] == pytest.approx(statistics.stdev(runs))
    assert (tmp_path / "cmp" / "report.html").exists()
    grid = sim.sweep({"lr": [0.1, 0.5], "recipe": ["dp-fedavg", {"name": "weiavg", "step": "momentum"}]})
    assert grid.columns[:2] == ("lr", "recipe")
    assert sorted(set(grid["lr"])) == [0.1, 0.5]
    assert len(grid) == 4
    assert grid["accuracy"] == tuple(sorted(grid["accuracy"], reverse=True))
    assert grid["std"] == (None,) * 4
    same = sim.sweep(["local.lr=0.1,0.5"])
    expected = {row["lr"]: row["loss"] for row in grid if row["recipe"] == "dp-fedavg"}
    assert {row["local.lr"]: row["loss"] for row in same} == pytest.approx(expected, rel=1e-5)


def test_compare_takes_one_name_and_recipes_of_your_own() -> None:
    sim = simulation(rounds=1)
    assert sim.compare("weiavg", seeds=1)["recipe"] == ("weiavg",)
    mine = hush.Recipe(weight=Uniform())
    table = sim.compare({"mine": mine, "equal": {"weight": "uniform"}, "plain": "dp-fedavg"}, seeds=1)
    by = {row["recipe"]: row["loss"] for row in table}
    assert by["mine"] == pytest.approx(by["equal"], rel=1e-5)
    assert by["mine"] != pytest.approx(by["plain"], rel=1e-5)
    assert list(hush.compare({"rounds": 1}, "weiavg", dataset=DATA)["recipes"]) == ["weiavg"]
    with pytest.raises(hush.HushError, match="a mapping from labels to recipes"):
        sim.compare([mine])  # type: ignore[list-item]


def test_audit_takes_own_data_and_model() -> None:
    table = simulation(model=Net(), rounds=1).audit(client="north", runs=200, kind="two-datasets")
    assert table.facts["client"] == 0
    assert table["release"] == ("model update",)
    assert 0 <= table.facts["epsilon_lower"] <= table.facts["epsilon_claimed"]
    assert "not refuted" in repr(table)


def test_measure_is_of_the_last_fit_or_of_a_directory(tmp_path: Path) -> None:
    module = Net()
    sim = simulation(model=module)
    sim.fit(tmp_path / "run")
    fitted, kept = dict(sim.measure().facts), dict(sim.measure(tmp_path / "run").facts)
    assert fitted == pytest.approx(kept)
    assert set(sim.measure()["measure"]) >= {"train loss", "gradient dissimilarity"}
    with pytest.raises(hush.HushError, match="call fit first"):
        simulation().measure()


class Heard(hush.Callback):
    """Notes what it hears, and stops after a round."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.events = stop, list[str]()

    def on_run_start(self, start: hush.RunStart) -> None:
        assert (start.recipe, start.clients, start.rounds) == ("dp-fedavg", ("north", "south"), 4)
        assert start.not_covered
        self.events.append("start")

    def on_round_end(self, record: RoundRecord) -> bool:
        self.events.append(f"round {record.round}")
        return record.round == self.stop

    def on_run_end(self, result: RunResult) -> None:
        self.events.append(result.ended)


def test_a_callback_hears_of_everything_and_stops_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    whole = simulation().fit(tmp_path / "whole", callbacks=(all_of := Heard()))
    assert all_of.events == ["start", "round 1", "round 2", "round 3", "round 4", "all rounds are done"]
    cut, after = Heard(stop=2), list[int]()
    stopped = simulation().fit(tmp_path / "cut", callbacks=[cut, lambda record: after.append(record.round)])
    assert cut.events == ["start", "round 1", "round 2", "stopped after round 2"]
    assert after == [1, 2], "every callback hears of the round"
    assert (stopped.ended, stopped.run.rounds, len(stopped.history)) == ("stopped after round 2", 2, 2)
    assert stopped.guarantees["epsilon_spent"][0] < whole.guarantees["epsilon_spent"][0]
    assert not (tmp_path / "cut" / "result.json").exists()
    assert "not finished" in (tmp_path / "cut" / "report.html").read_text()
    resumed = simulation().fit(tmp_path / "cut", resume=True, callbacks=(more := Heard()))
    assert more.events == ["start", "round 3", "round 4", "all rounds are done"]
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")
    assert torch.equal(resumed.weights, whole.weights)
    assert len(resumed.history) == 4


def test_a_function_stops_a_run_by_returning_true() -> None:
    assert simulation().fit(callbacks=lambda record: record.round >= 3).run.rounds == 3


def test_a_finished_run_that_is_resumed_has_its_model(tmp_path: Path) -> None:
    first = simulation().fit(tmp_path / "run")
    again = simulation().fit(tmp_path / "run", resume=True)
    assert again.run == first.run
    assert torch.equal(again.weights, first.weights)
    assert again.history["loss"] == first.history["loss"]


def test_ctrl_c_says_after_which_round_and_how_to_go_on(tmp_path: Path) -> None:
    def interrupt(record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match=r"^stopped after round 2; continue with resume=True$") as caught:
        simulation().fit(tmp_path / "run", callbacks=interrupt)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.words("--resume") == "stopped after round 2; continue with --resume"
    with pytest.raises(RunInterrupted, match="stopped after round 2; nothing is saved, because out is not set"):
        simulation().fit(callbacks=interrupt)
    simulation().fit(tmp_path / "run", resume=True)
    simulation().fit(tmp_path / "whole")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_resuming_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hush"):
        simulation(rounds=1).fit(tmp_path / "new", resume=True)
    assert "nothing to resume there; starting a new run" in caplog.text
    with pytest.raises(hush.HushError, match="resume: requires out"):
        simulation().fit(resume=True)


def test_settings_without_effect_are_said() -> None:
    run = simulation(rounds=1, steps=3, epochs=5).fit().run
    assert "local.epochs = 5 has no effect, because local.steps = 3 is given" in run.warnings
    preview = simulation(rounds=1, steps=3, recipe={"protect": {"rule": "dp-sgd", "steps": 2}}).preview()
    assert any("local.steps = 3 has no effect, because the recipe takes 2 steps" in note for note in preview.notes)
    assert not simulation(rounds=1).fit().warnings


def test_nothing_is_shown_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    simulation(rounds=1).fit()
    simulation(rounds=1).compare("weiavg", seeds=1)
    assert capfd.readouterr() == ("", "")


def test_a_run_that_nobody_can_afford_is_an_error(tmp_path: Path) -> None:
    books = tmp_path / "books"
    simulation(lifetime=8.0).fit(ledgers=books)
    with pytest.raises(hush.NothingTrainedError) as caught:
        simulation(lifetime=8.0).fit(ledgers=books)
    assert not caught.value.result.trained


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "budget lacking": (lambda: simulation(epsilon={"north": 1.0}).preview(), r"^epsilon: nothing for south"),
    "budget of nobody": (lambda: simulation(epsilon={"nort": 1.0}).preview(), "no client is called nort"),
    "too many budgets": (lambda: simulation(epsilon=[1, 2, 3]).preview(), r"^epsilon: 3 numbers for 2 clients"),
    "negative budget": (lambda: simulation(epsilon=-1).preview(), r"^epsilon: found -1"),
    "delta": (lambda: simulation(delta=2), r"^delta: expected a number between 0 and 1"),
    "delta list": (lambda: simulation(delta=[1e-5]).preview(), r"^delta: a list of 1 numbers for 2 clients"),
    "other library's key": (lambda: simulation(settings={"local.learning_rate": 1}), "did you mean local.lr"),
    "key of another table": (lambda: hush.Simulation(config={"clip": 1.0}), "did you mean privacy.clip"),
    "given twice": (lambda: simulation(settings={"local.lr": 0.1}), "settings: lr also given as an argument"),
    "settings": (lambda: simulation(settings="local.lr=1"), "settings: found 'local.lr=1'"),
    "fedadam": (lambda: simulation(recipe="fedadam").preview(), 'did you mean step = "adam"'),
    "recipe": (lambda: simulation(recipe=3), "recipe: found int"),
    "dataset": (lambda: hush.Simulation("digit").preview(), r"^data: unknown dataset 'digit'; did you mean digits"),
    "file": (lambda: hush.Simulation("none.csv").preview(), r"none\.csv: no such file"),
    "object": (lambda: hush.Simulation(object()), "found object; accepted: arrays x and y"),
    "model": (lambda: simulation(model="mpl").preview(), r"^model: unknown model 'mpl'; did you mean mlp"),
    "number for a model": (lambda: simulation(model=3), "model: found int"),
    "factory": (lambda: simulation(model=lambda: 3).preview(), "returns int; accepted: an nn.Module"),
    "factory of one": (lambda: simulation(model=lambda a: a).preview(), "needs a; accepted: a function of nothing"),
    "failing factory": (lambda: simulation(model=lambda: 1 / 0).preview(), "fails: ZeroDivisionError"),
    "callback": (lambda: simulation().fit(callbacks=[3]), "callbacks: found int"),  # type: ignore[list-item]
    "callback class": (lambda: simulation().fit(callbacks=hush.Callback), "callbacks: found Callback"),  # type: ignore[arg-type]
    "seeds": (lambda: simulation().compare(["weiavg"], seeds=0), "seeds: found 0"),
    "recipes": (lambda: simulation().compare([]), "recipes: none given"),
    "recipe twice": (lambda: simulation().compare(["weiavg"] * 2), "recipes: duplicate names: weiavg"),
    "recipe's name": (lambda: simulation().compare("weiag"), "did you mean weiavg"),
    "grid value": (lambda: simulation().sweep({"lr": 0.1}), "grid: found 0.1 for lr"),  # type: ignore[dict-item]
    "grid empty": (lambda: simulation().sweep({}), "grid: empty"),
    "grid without values": (lambda: simulation().sweep({"lr": []}), "grid: no values for lr"),
    "grid twice": (lambda: simulation().sweep({"lr": [1, 1]}), "grid: duplicate values for lr"),
    "grid key": (lambda: simulation().sweep({"lrr": [1]}), "grid: unknown setting 'lrr'; did you mean lr"),
    "grid's type": (lambda: simulation().sweep({"rounds": ["x"]}), r"^grid: rounds: expected a valid integer"),
    "audit of nobody": (lambda: simulation().audit(client="zed"), "client: unknown client 'zed'"),
    "classes alone": (lambda: hush.Simulation(classes=3), "classes: given without data"),
    "number of clients": (lambda: simulation(clients=3).preview(), r"^clients: found 3, the data has 2"),
    "config": (lambda: hush.Simulation(config=3), "config: found int"),  # type: ignore[arg-type]
    "missing config": (lambda: hush.Simulation.from_toml("none.toml"), r"none\.toml: no such file"),
    "no argument": (
        lambda: hush.compare({"rounds": 1}, "weiavg", overrides="a=1"),
        "overrides: found 'a=1'; accepted: a list",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, words = MISTAKES[name]
    with pytest.raises(hush.HushError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_errors_cite_the_file_for_what_stands_in_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("rounds = 2\n[local]\nlr = -1\n")
    with pytest.raises(hush.HushError, match=r"run\.toml:3: local\.lr: expected a number above 0"):
        hush.Simulation.from_toml(path)
    with pytest.raises(hush.HushError, match=r"^lr: expected a number above 0"):
        hush.Simulation.from_toml(path, lr=-2.0)
    with pytest.raises(hush.HushError, match=r"^--set local\.lr: expected a number above 0"):
        hush.Simulation.from_toml(path, settings=["local.lr=-2"])
    path.write_text('[recipe]\nname = "dp-fedavg"\n')
    with pytest.raises(hush.HushError, match=r"^--set recipe\.name: unknown recipe"):
        hush.Simulation.from_toml(path, settings=["recipe={name='dp-fedav'}"]).preview()


def test_a_budget_without_guarantee_has_none_in_the_table() -> None:
    result = simulation(recipe="fedavg", rounds=1).fit()
    assert result.guarantees["epsilon_spent"] == (math.inf, math.inf)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum()


def within_one(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float((np.abs(truth - predicted) < 1).mean())


def test_regression_with_a_loss_and_a_metric_of_your_own() -> None:
    def site(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        x, _ = hospital(rows, seed)
        return x, (x @ np.arange(6) / 4).astype(np.float32)

    data = {"north": site(300, 1), "south": site(300, 2)}
    options = {
        "task": "regression",
        "settings": {"objective.target_bounds": [-8.0, 8.0]},
        "metrics": ["mae", within_one],
    }
    sim = simulation(data=data, model=nn.Linear(6, 1), loss=squared, lr=0.05, rounds=12, **options)
    result = sim.fit()
    assert result.metrics["primary"] == "rmse"
    assert result.history.columns[1] == "rmse"
    assert result.history["rmse"][-1] < 0.7 * result.metrics["baseline"]["value"]
    assert result.accuracy_per_client == {}
    assert "within_one" in repr(result.metrics_table)
    assert result.metrics_table["north"][0] == result.metrics["per_client"]["north"]["rmse"]
    assert "mean RMSE" in repr(result)
    table = sim.sweep({"lr": [0.05, 0.0001]})
    assert table["lr"] == (0.05, 0.0001), "best first: the least error"
    text = sim.to_toml()
    assert tomllib.loads(text)["objective"]["loss"] == f"{__name__}:squared"
    assert "# metrics:" in simulation(metrics=[lambda truth, predicted: 1.0]).to_toml()
