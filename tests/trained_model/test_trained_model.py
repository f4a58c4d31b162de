"""Predictions of a trained model: what was evaluated in the run, for rows like those of the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hush
from hush.config import parse
from hush.engines.setup import prepare
from hush.types import HushError
from tests.support.trained_models import CONFIG, PartlyFrozen, TokenNet, fitted, numbers, tokens


@pytest.mark.parametrize(
    ("recipe", "rows"), [("dp-fedavg", "as-given"), ("hush", "as-given"), ("robust-hdp", "unit-norm")]
)
def test_predictions_are_those_that_the_run_evaluated(tmp_path: Path, recipe: str, rows: str) -> None:
    config = {"data": {"name": "digits", "clients": 4, "rows": rows, "test_fraction": 0.5}, "recipe": {"name": recipe}}
    result = hush.simulate({**CONFIG, **config}, out=tmp_path / "run")
    model, data = hush.load(tmp_path / "run"), hush.data.load("digits", root=None)
    federation = prepare(parse(result.config))
    for client, test in enumerate(federation.data.test):
        right = (model.predict(data.x[test]) == data.y[test]).mean()
        assert right == pytest.approx(result.accuracy_per_client[client], abs=1e-12)


def test_module_is_of_the_users_class_with_the_trained_weights(tmp_path: Path) -> None:
    mine = TokenNet()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    labels = np.array(["low", "mid", "high"])[tokens()["tokens"][:, 0] // 7]
    model = fitted(tmp_path / "run", hush.data.clients(tokens(), labels, clients=3), mine)
    assert type(model.module) is TokenNet
    assert not model.module.training
    assert all(value.requires_grad for value in model.module.parameters())
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in model.module.named_parameters():
        assert torch.equal(value, weights[name]), name
        assert not torch.equal(value, before[name]), name
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    given = {name: torch.from_numpy(value) for name, value in tokens().items()}
    logits = model.module(**given).detach()
    assert model.class_values == ("high", "low", "mid")
    assert model.predict(tokens()).tolist() == [model.class_values[at] for at in logits.argmax(1).tolist()]
    assert np.allclose(model.predict_proba(tokens()), torch.softmax(logits, 1).numpy(), atol=1e-6)
    assert np.allclose(model.raw_outputs(given), logits.numpy(), atol=1e-6)


@pytest.mark.parametrize("labels", [["no", "yes", "maybe"], [3, 5, 9], [True, False, True], [0, 1, 2], ["0", "1", "2"]])
def test_labels_come_back_as_they_were_given(tmp_path: Path, labels: list[Any]) -> None:
    x, y = numbers()
    given = np.array(labels)[y]
    found = fitted(tmp_path / "run", hush.data.clients(x, given, clients=3)).predict(x)
    # Texts that are numbers are read as numbers, as in a CSV file.
    assert found.dtype.kind == ("i" if labels == ["0", "1", "2"] else given.dtype.kind)
    assert set(found.tolist()) <= {type(found.tolist()[0])(value) for value in labels}
    with_list = fitted(tmp_path / "b", hush.data.clients(x, given, clients=3, classes=sorted(set(labels))))
    assert np.array_equal(with_list.predict(x), found)


def frame() -> pandas.DataFrame:
    """A table with numbers, texts, blanks and dates."""
    draw = np.random.default_rng(2)
    age = draw.integers(18, 90, 300).astype(float)
    return pandas.DataFrame(
        {
            "age": np.where(draw.random(300) < 0.1, np.nan, age),
            "sex": draw.choice(["f", "m", None], 300),
            "since": pandas.to_datetime("2020-01-01") + pandas.to_timedelta(draw.integers(0, 900, 300), "D"),
            "outcome": np.where(age > 50, "ill", "well"),
            "site": draw.choice(["north", "south"], 300),
        }
    )


SCHEMA = {
    "label": "outcome",
    "scale": "signed",
    "encoding": "one-hot",
    "classes": ["well", "ill"],
    "columns": {
        "age": {"low": 0, "high": 100, "missing": "indicator"},
        "sex": {"categories": ["f", "m"], "missing": "indicator", "unknown": True},
        "since": {"kind": "date", "low": "2020-01-01", "high": "2023-01-01"},
    },
}


def test_tables_are_preprocessed_as_in_training_and_matched_by_name(tmp_path: Path) -> None:
    table = frame()
    data = hush.data.clients(table, label="outcome", client="site", schema=SCHEMA)
    model = fitted(tmp_path / "run", data)
    with torch.no_grad():
        wanted = model.module(torch.from_numpy(data.dataset.x)).numpy()
    shuffled = table[["site", "sex", "outcome", "since", "age"]]
    columns = {name: table[name].to_numpy() for name in ("since", "age", "sex")}
    table.to_csv(tmp_path / "rows.csv", index=False)
    table.to_parquet(tmp_path / "rows.parquet")
    for given in (table, shuffled, columns, tmp_path / "rows.csv", str(tmp_path / "rows.parquet")):
        assert np.array_equal(model.raw_outputs(given), wanted)
    assert set(model.predict(table).tolist()) <= {"ill", "well"}
    unseen = table.assign(sex="x", age=1e6).head(2)  # an unknown category, and a number beyond the bounds
    assert np.isfinite(model.predict_proba(unseen)).all()
    assert model.schema is not None
    assert model.schema.names == ("age", "sex", "since")
    for wrong, words in (
        (table.drop(columns="age"), "columns that it lacks: age"),
        (table.assign(extra=1), "columns that the model does not know: extra"),
        (np.zeros((2, 3)), "accepted: a DataFrame, a CSV or Parquet file, or a dict of columns, with the columns age"),
        ({"age": [1.0], "sex": ["f", "m"], "since": [2]}, "columns of different lengths"),
        (table.assign(since="soon"), "since: found 'soon'"),
    ):
        with pytest.raises(HushError, match=words):
            model.predict(wrong)


def test_a_table_without_a_schema_is_matched_by_name(tmp_path: Path) -> None:
    x, y = numbers()
    table = pandas.DataFrame(x, columns=list("abcd")).assign(label=y)
    model = fitted(tmp_path / "run", hush.data.clients(table, clients=3))
    wanted = model.raw_outputs(table)
    assert np.array_equal(model.raw_outputs(table[["d", "b", "a", "c"]]), wanted)
    assert np.array_equal(model.raw_outputs(x), wanted)  # arrays in the order of training
    assert model.predict(table.head(0)).shape == (0,)


def test_arrays_of_every_kind(tmp_path: Path) -> None:
    x, y = numbers()
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3))
    wanted = model.predict(x)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    for given in (torch.from_numpy(x), x.tolist(), x.astype(float), tmp_path / "rows.npz", hush.data.from_arrays(x, y)):
        assert np.array_equal(model.predict(given), wanted)
    assert model.predict(x[5]).tolist() == [wanted[5]]  # a single row
    assert model.predict(x[:0]).tolist() == []
    assert model.predict(np.ones((2, 4), int)).shape == (2,)  # integers for real numbers
    for wrong, words in (
        (x[:, :3], r"found an array of float32 of shape \(240, 3\); accepted: an array of numbers of shape \(n, 4\)"),
        (np.full((2, 4), np.nan), "NaN"),
        ({"a": x}, "found a dict with a"),
        (pandas.DataFrame(x), "accepted: an array"),
        (np.array([["a"] * 4]), "accepted: rows of numbers"),
        ("nowhere.csv", "no such file"),
    ):
        with pytest.raises(HushError, match=words):
            model.predict(wrong)


def test_several_inputs_must_have_their_names_and_types(tmp_path: Path) -> None:
    data = hush.data.clients(tokens(), tokens()["tokens"][:, 0] % 3, clients=3)
    model = fitted(tmp_path / "run", data, TokenNet())
    for wrong in (
        {"tokens": tokens()["tokens"]},
        {**tokens(), "mask": tokens()["mask"] * 0.5},
        {**tokens(), "tokens": tokens()["tokens"][:, :5]},
        (tokens()["tokens"], tokens()["mask"]),
        tokens()["tokens"],
    ):
        with pytest.raises(
            HushError, match=r"accepted: a dict of arrays: tokens int64 \(n, ...\) of \(6,\), mask bool"
        ):
            model.predict(wrong)


def test_one_model_per_cluster(tmp_path: Path) -> None:
    x, y = numbers()
    owner = np.repeat(["north", "south", "west"], 80)
    table = pandas.DataFrame(x, columns=list("abcd")).assign(label=y, site=owner)
    data = hush.data.clients(table, client="site")
    model = fitted(
        tmp_path / "run",
        data,
        rounds=4,
        recipe={"name": "km-cdpfl", "assign": {"rule": "kmeans-each-round", "clusters": 2}},
    )
    assert len(model.modules) == 2
    assert model.clients == ("north", "south", "west")
    outputs = [module(torch.from_numpy(x)).detach().numpy() for module in model.modules]
    assert not np.allclose(*outputs)
    for number, name in enumerate(model.clients):
        wanted = outputs[model.placed[number]]
        assert np.array_equal(model.raw_outputs(x, client=name), wanted)
        assert np.array_equal(model.raw_outputs(x, client=number), wanted)
        assert model.module_of(name) is model.modules[model.placed[number]]
        mine = owner == name
        assert np.array_equal(model.raw_outputs(table)[mine], wanted[mine])  # the client of each row
    for use in (lambda: model.predict(x), lambda: model.predict(x, client="east"), lambda: model.module):
        with pytest.raises(HushError, match="accepted: "):
            use()
    again = hush.load(model.save(tmp_path / "saved"))
    assert again.placed == model.placed
    assert np.array_equal(again.predict(table), model.predict(table))


def test_a_module_with_fixed_parts(tmp_path: Path) -> None:
    x, y = numbers()
    mine = PartlyFrozen()
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3), mine)
    assert isinstance(model.module, PartlyFrozen)
    assert model.module.second.weight is model.module.third.weight
    assert not model.module.first.weight.requires_grad
    assert torch.equal(model.module.first.weight, mine.first.weight)
    # Frozen parts and buffers are those of the training, whatever the loaded instance holds.
    again = hush.load(tmp_path / "run", model=PartlyFrozen(seed=9))
    assert np.array_equal(again.raw_outputs(x), model.raw_outputs(x))


def test_fixed_features_are_part_of_the_module(tmp_path: Path) -> None:
    data, architecture = {"name": "digits", "clients": 3}, {"name": "scattering-linear"}
    model = fitted(tmp_path / "run", data=data, model=architecture)
    images = torch.from_numpy(hush.data.load("digits", root=None).x[:20])
    assert isinstance(model.module, nn.Module)
    assert np.array_equal(model.module(images).detach().numpy(), model.raw_outputs(images))


def test_what_it_says_about_itself(tmp_path: Path) -> None:
    x, y = numbers()
    result = hush.simulate(CONFIG, dataset=hush.data.clients(x, y, clients=3), out=tmp_path / "run")
    model = hush.load(tmp_path / "run")
    assert model.guarantees == result.guarantees
    assert (model.recipe, model.rounds, model.config_hash) == ("dp-fedavg", 2, result.config_hash)
    assert model.versions == result.versions
    assert "recipe dp-fedavg, 2 rounds, 3 clients, epsilon spent 7.9" in repr(model)


def test_several_labels_per_row(tmp_path: Path) -> None:
    x, _ = numbers()
    y = (x[:, :2] > 0).astype(int)
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3), rounds=6, local={"batch_size": 32, "lr": 2.0})
    found = model.predict(x)
    assert found.shape == (240, 2)
    assert (found == y).mean() > 0.8
    assert np.array_equal(found, (model.predict_proba(x) > 0.5).astype(int))
    assert list(model.prediction_table(model.raw_outputs(x), True)) == [
        "prediction of 0", "prediction of 1", "probability of 0", "probability of 1",
    ]  # fmt: skip


@pytest.mark.parametrize("targets", [1, 2])
def test_real_numbers_come_in_the_units_of_the_targets(tmp_path: Path, targets: int) -> None:
    x, _ = numbers()
    y = 50 + 10 * x[:, :targets].astype(np.float32)
    y = y[:, 0] if targets == 1 else y
    out = tmp_path / "run"
    model = fitted(
        out, hush.data.clients(x, y, clients=3), rounds=8, local={"batch_size": 64, "lr": 0.3},
        objective={"target_bounds": [0.0, 100.0]},
    )  # fmt: skip
    found = model.predict(x)
    assert found.shape == y.shape
    assert np.abs(found - y).mean() < 6.0 < np.abs(50 - y).mean()
    assert np.array_equal(hush.load(model.save(tmp_path / "saved")).predict(x), found)
    with pytest.raises(HushError, match="real numbers have no probabilities"):
        model.predict_proba(x)


def test_two_classes_with_one_logit(tmp_path: Path) -> None:
    x, _ = numbers()
    y = np.where(x[:, 0] > 0, "yes", "no")
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3), nn.Linear(4, 1), rounds=6)
    assert model.class_values == ("no", "yes")
    found, probability = model.predict(x), model.predict_proba(x)
    assert probability.shape == (240, 2)
    assert np.array_equal(found == "yes", probability[:, 1] > 0.5)
    assert (found == y).mean() > 0.8
