"""Whole runs through the Python API."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hush
from hush.data import from_arrays
from hush.types import HushError, RoundRecord

Raw = dict[str, Any]


def numbers(path: Path) -> Raw:
    """result.json without what may differ between two equal runs."""
    result = json.loads((path / "result.json").read_text())
    result.pop("seconds")
    return dict(result)


def changed(raw: Raw, **tables: Raw) -> Raw:
    return {**raw, **{name: {**raw.get(name, {}), **values} for name, values in tables.items()}}


def test_result_and_run_directory(small: Raw, tmp_path: Path) -> None:
    result = hush.simulate(small, out=tmp_path / "run", command="hush run x.toml")
    assert (result.recipe, result.dataset, result.model, result.rounds, result.seed) == (
        "robust-hdp", "digits", "logreg", 4, 1,
    )  # fmt: skip
    assert set(result.accuracy) == {"mean", "min", "max", "std"}
    assert result.accuracy["mean"] == pytest.approx(np.mean(result.accuracy_per_client))
    assert all(0 <= a <= 1 for a in result.accuracy_per_client)
    assert len(result.guarantees) == 6
    for card, budget in zip(result.guarantees, small["privacy"]["budgets"], strict=True):
        assert card.epsilon_budget == budget
        assert 0.97 * budget < card.epsilon_spent <= budget
        assert (card.sampler, card.accountant, card.relation) == ("poisson", "pld", "add-remove")
        assert card.noise.startswith("seeded")
        assert any("reproducible from the seed" in gap for gap in card.not_covered)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"manifest.json", "rounds.jsonl", "result.json", "model.safetensors", "report.html"} <= names
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config_hash"] == result.config_hash
    assert manifest["command"] == "hush run x.toml"
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in model.items()} == {"1.weight": (10, 64), "1.bias": (10,)}
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]


def test_same_file_and_seed_same_bits(small: Raw, tmp_path: Path) -> None:
    for name in ("a", "b"):
        hush.simulate(small, out=tmp_path / name)
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    other = hush.simulate({**small, "seed": 2})
    assert other.loss != numbers(tmp_path / "a")["loss"]


class _StopError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_resume_is_bit_identical(small: Raw, tmp_path: Path, after: int) -> None:
    raw = changed(small, recipe={"step": {"rule": "ema", "inner": {"rule": "momentum"}}})

    def stop(record: RoundRecord) -> None:
        if record.round == after:
            raise _StopError

    hush.simulate(raw, out=tmp_path / "whole")
    with pytest.raises(_StopError):
        hush.simulate(raw, out=tmp_path / "cut", progress=stop)
    assert not (tmp_path / "cut" / "result.json").exists()
    hush.simulate(raw, out=tmp_path / "cut", resume=True)
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "cut")
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "cut" / "model.safetensors"
    ).read_bytes()


def test_resume_of_a_finished_run_changes_nothing(small: Raw, tmp_path: Path) -> None:
    first = hush.simulate(small, out=tmp_path / "run")
    before = numbers(tmp_path / "run")
    again = hush.simulate(small, out=tmp_path / "run", resume=True)
    assert again == first
    assert numbers(tmp_path / "run") == before
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 4


def test_what_has_no_bound_has_none_after_a_resume_either(small: Raw, tmp_path: Path) -> None:
    open_end = {**small, "recipe": {"name": "fedavg"}}
    first = hush.simulate(open_end, out=tmp_path / "run")
    assert all(card.epsilon_spent == math.inf for card in first.guarantees)
    assert hush.simulate(open_end, out=tmp_path / "run", resume=True) == first
    compared = hush.compare(small, ["fedavg"], seeds=1, out=tmp_path / "cmp")
    again = hush.compare(small, ["fedavg"], seeds=1, out=tmp_path / "cmp", resume=True)
    assert again["recipes"] == compared["recipes"]


def test_a_result_of_another_version_is_named(small: Raw, tmp_path: Path) -> None:
    hush.simulate(small, out=tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text('{"recipe": "robust-hdp"}')
    with pytest.raises(HushError, match=r"result\.json: not written by this version"):
        hush.simulate(small, out=tmp_path / "run", resume=True)


def test_resume_with_another_config_is_refused(small: Raw, tmp_path: Path) -> None:
    hush.simulate(small, out=tmp_path / "run")
    with pytest.raises(hush.HushError, match="a different config"):
        hush.simulate(changed(small, local={"lr": 0.2}), out=tmp_path / "run", resume=True)


def test_a_client_is_the_same_among_others(small: Raw) -> None:
    """Its updates depend on (seed, client, round) alone, so who trains beside it moves nothing but rounding."""
    from hush.config import parse
    from hush.engines.run_ledgers import RunLedgers
    from hush.engines.setup import prepare
    from hush.engines.simulator import Simulator
    from hush.types import Task

    federation = prepare(parse(small))
    start, layout = federation.model.start[None], federation.model.layout
    tasks = [Task(client=c, round=2, models=start, layout=layout, answer=layout) for c in range(6)]
    together = Simulator(federation, RunLedgers(federation.ledgers())).answer(tasks)
    for client in range(6):
        (alone,) = Simulator(federation, RunLedgers(federation.ledgers())).answer(
            [Task(client=client, round=2, models=start, layout=layout, answer=layout)]
        )
        torch.testing.assert_close(alone.vector, together[client].vector, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]


def test_partial_participation_spends_only_what_is_trained(small: Raw) -> None:
    result = hush.simulate({**small, "participation": 0.5})
    assert sum(card.rounds for card in result.guarantees) == 4 * 3
    for card in result.guarantees:
        assert card.epsilon_spent <= card.epsilon_budget
        assert (card.epsilon_spent > 0.9 * card.epsilon_budget) == (card.rounds > 0)


@pytest.mark.parametrize("recipe", ["fedavg", "dp-fedavg", "weiavg", "minimum", "maximum", "robust-hdp"])
def test_every_recipe_runs(small: Raw, recipe: str) -> None:
    result = hush.simulate({**small, "recipe": {"name": recipe}})
    spent = [card.epsilon_spent for card in result.guarantees]
    budgets = small["privacy"]["budgets"]
    if recipe == "fedavg":
        assert all(math.isinf(e) for e in spent)
        assert result.accuracy["mean"] > 0.5
        assert any("no privacy" in gap for gap in result.not_covered)
    elif recipe == "maximum":
        assert all(0.97 * 8 < e <= 8 for e in spent)
        assert any("largest budget" in gap for gap in result.not_covered)
    elif recipe == "minimum":
        assert all(0.97 * 0.3 < e <= 0.3 for e in spent)
    else:
        assert all(0.97 * b < e <= b for e, b in zip(spent, budgets, strict=True))


def test_equal_noise_and_quorum(small: Raw) -> None:
    recipe = {"name": "weiavg", "protect": {"rule": "dp-sgd", "spread": "equal-noise"}}
    result = hush.simulate({**small, "rounds": 8, "recipe": recipe})
    rounds = [card.rounds for card in result.guarantees]
    assert rounds[-1] == 8
    assert rounds == sorted(rounds)
    assert rounds[0] < 8
    assert all(card.epsilon_spent <= card.epsilon_budget for card in result.guarantees)
    assert result.ended == "all rounds are done"
    short = hush.simulate({**small, "rounds": 8, "recipe": recipe, "quorum": 6})
    assert short.rounds == min(rounds) + 1
    assert "quorum 6" in short.ended
    with pytest.raises(hush.HushError, match="quorum: 7 is more than the 6 clients"):
        hush.simulate({**small, "quorum": 7})


@pytest.mark.parametrize(
    ("tables", "options"),
    [
        ({"data": {"partition": {"name": "dirichlet", "alpha": 0.5}}}, {}),
        ({"data": {"partition": {"name": "rotation", "clusters": [2, 4]}}, "model": {"name": "cnn"}}, {}),
        ({"data": {"partition": {"name": "quality", "groups": [3, 3], "density": [0.0, 0.3], "change_at": 3,
                                 "density_after": [0.3, 0.0]}}}, {}),
        ({"data": {"name": "synthetic", "partition": "auto", "samples": 100, "alpha": 1.0, "beta": 1.0}}, {}),
        ({"model": {"name": "scattering-linear"}}, {}),
        ({"model": {"name": "mlp", "hidden": 8}, "privacy": {"relation": "replace-one"}}, {}),
        ({"privacy": {"accountant": "rdp", "budgets": 2.0}}, {}),
        ({"privacy": {"noise": "secure", "budgets": "dist2"}}, {}),
        ({"privacy": {"discrete": True}}, {}),
        ({"privacy": {"discrete": True, "noise": "secure"}}, {}),
        ({"data": {"sizes": {"name": "lognormal", "sigma": 0.3}}, "local": {"batch_size": 8, "epochs": 2}}, {}),
        ({}, {"recipe": {"weight": {"rule": "estimated-noise", "estimator": "pairwise"}}}),
        ({}, {"recipe": {"weight": {"rule": "estimated-noise", "estimator": "declared"}}}),
        ({}, {"recipe": {"weight": "uniform", "step": {"rule": "tail", "start_round": 2}}}),
    ],
)  # fmt: skip
def test_combinations_run(small: Raw, tables: dict[str, Raw], options: Raw) -> None:
    result = hush.simulate({**changed(small, **tables), "rounds": 3, **options})
    assert math.isfinite(result.loss)
    assert all(card.epsilon_spent <= card.epsilon_budget for card in result.guarantees)


def test_own_arrays_and_module(small: Raw) -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    x[np.arange(300), y] += 4
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    raw = changed(small, data={"name": "mine"}, privacy={"budgets": 50.0}, local={"lr": 0.5, "epochs": 3})
    result = hush.simulate(raw, dataset=from_arrays(x, y), model=module)
    assert (result.dataset, result.model) == ("own arrays", "custom module (Sequential)")
    assert result.accuracy["mean"] > 0.7
    with pytest.raises(hush.HushError, match="BatchNorm1d"):
        hush.simulate(raw, dataset=from_arrays(x, y), model=nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)))
    x[7, 2] = np.nan
    with pytest.raises(hush.HushError, match=r"(?i)nan"):
        from_arrays(x, y)


def test_compare(small: Raw, tmp_path: Path) -> None:
    summary = hush.compare(small, ["dp-fedavg", "robust-hdp"], seeds=2, out=tmp_path / "cmp")
    assert summary["seeds"] == [1, 2]
    assert list(summary["recipes"]) == ["dp-fedavg", "robust-hdp"]
    alone = hush.simulate({**small, "seed": 2, "recipe": {"name": "dp-fedavg"}})
    assert summary["recipes"]["dp-fedavg"]["runs"][1]["accuracy"] == dict(alone.accuracy)
    assert json.loads((tmp_path / "cmp" / "comparison.json").read_text())["recipes"].keys() == summary["recipes"].keys()
    assert (tmp_path / "cmp" / "report.html").exists()
    again = hush.compare(small, ["dp-fedavg", "robust-hdp"], seeds=2, out=tmp_path / "cmp", resume=True)
    assert again["recipes"]["robust-hdp"]["accuracy"] == summary["recipes"]["robust-hdp"]["accuracy"]


def test_the_deviation_is_that_of_a_sample(small: Raw, tmp_path: Path) -> None:
    two = hush.compare({**small, "rounds": 1}, ["dp-fedavg"], seeds=2)["recipes"]["dp-fedavg"]
    assert two["accuracy"]["std"] == pytest.approx(statistics.stdev(run["accuracy"]["mean"] for run in two["runs"]))
    result = hush.simulate({**small, "rounds": 1})
    assert result.accuracy["std"] == pytest.approx(statistics.stdev(result.accuracy_per_client))
    one = hush.compare({**small, "rounds": 1}, ["dp-fedavg"], seeds=1, out=tmp_path / "one")
    assert math.isnan(one["recipes"]["dp-fedavg"]["accuracy"]["std"])
    written = json.loads((tmp_path / "one" / "comparison.json").read_text())
    assert written["recipes"]["dp-fedavg"]["accuracy"]["std"] is None
    alone = changed({**small, "rounds": 1}, data={"clients": 1}, privacy={"budgets": 1.0})
    hush.simulate(alone, out=tmp_path / "alone")
    assert math.isnan(hush.simulate(alone, out=tmp_path / "alone", resume=True).accuracy["std"])


def test_plan() -> None:
    answer = hush.plan(epsilon=1.0, delta=1e-5, samples=1000, batch=10, rounds=10)
    assert set(answer) >= {
        "noise_multiplier", "epsilon", "delta", "relation", "accountant", "steps", "sample_rate",
    }  # fmt: skip
    assert (answer["steps"], answer["sample_rate"]) == (1000, 0.01)
    assert 0.99 < answer["epsilon"] <= 1.0
    assert answer["epsilon_by_round"]["10"] == answer["epsilon"]
    assert answer["affordable_rounds"] == 10
    louder = hush.plan(epsilon=1.0, delta=1e-5, samples=1000, batch=10, rounds=10, noise_multiplier=5.0)
    assert louder["epsilon"] < answer["epsilon"]
    assert louder["affordable_rounds"] > 10
    with pytest.raises(hush.HushError, match="batch: 2000 is more than"):
        hush.plan(epsilon=1.0, delta=1e-5, samples=1000, batch=2000, rounds=10)


def test_preview_foresees_noise_and_weights(small: Raw, tmp_path: Path) -> None:
    found = hush.preview(small, plot=tmp_path / "plan.html")
    weights = [each["weight"] for each in found["clients"]]
    variances = [each["noise_variance"] for each in found["clients"]]
    assert sum(weights) == pytest.approx(1.0)
    assert weights == pytest.approx([(1 / v) / sum(1 / u for u in variances) for v in variances])
    assert all(each["epsilon_planned"] <= each["epsilon_budget"] for each in found["clients"])
    assert "noise in an update" in (tmp_path / "plan.html").read_text()
    run = hush.simulate(small)
    assert [card.noise_multiplier for card in run.guarantees] == [each["noise_multiplier"] for each in found["clients"]]
    open_ended = hush.preview({**small, "recipe": {"name": "fedavg"}})
    assert all(each["epsilon_planned"] is None for each in open_ended["clients"])


def test_faithful_mode_adds_the_papers_noise(small: Raw) -> None:
    sound, faithful = (hush.simulate({**small, "rounds": 2, "mode": mode}) for mode in ("sound", "faithful"))
    assert {card.accountant for card in faithful.guarantees} == {"rdp-64"}
    for ours, theirs in zip(sound.guarantees, faithful.guarantees, strict=True):
        assert theirs.noise_multiplier > ours.noise_multiplier
        assert theirs.epsilon_spent <= theirs.epsilon_budget


def test_cards_say_what_is_left_and_toward_whom(small: Raw) -> None:
    for card in hush.simulate({**small, "rounds": 2}).guarantees:
        assert card.epsilon_left == pytest.approx(card.epsilon_budget - card.epsilon_spent)
        assert card.epsilon_third_party == card.epsilon_spent
        assert "no smaller epsilon is guaranteed" in card.third_party
