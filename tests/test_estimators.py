"""Estimators: scikit-learn's own checks, its tools for composition, and what a fit says about privacy."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor, nn

import hush
from hush.models.validation import seeded
from hush.types import HushError

# None of scikit-learn's checks fails.
EXPECTED_FAILURES: dict[str, dict[str, str]] = {"FederatedClassifier": {}, "FederatedRegressor": {}}
QUICK: dict[str, Any] = {"rounds": 3, "epsilon": 8.0, "random_state": 0}


def blobs(rows: int = 240) -> tuple[Any, Any]:
    """Three groups in the plane, within [-15, 15], with texts as labels."""
    x, y = make_blobs(rows, centers=3, random_state=1)
    return x, np.array(["a", "b", "c"])[y]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FederatedClassifier", "FederatedRegressor"])
def test_scikit_learns_checks_pass(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = check_estimator(
            getattr(hush, kind)(epsilon=8.0, rounds=2), expected_failed_checks=EXPECTED_FAILURES[kind], on_skip=None
        )
    statuses = [each["status"] for each in found]
    assert statuses.count("passed") > 45
    assert {each["check_name"] for each in found if each["status"] != "passed"} <= {"check_array_api_input"}


def test_a_classifier_learns_and_tells_what_it_cost() -> None:
    x, y = blobs()
    model = hush.FederatedClassifier(epsilon=1.0, delta=1e-5, bounds=(-15, 15), random_state=0).fit(x, y)
    assert model.score(x, y) > 0.85
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert np.allclose(model.predict_proba(x).sum(1), 1.0)
    assert np.array_equal(model.predict(x), model.classes_[model.predict_proba(x).argmax(1)])
    assert len(model.guarantees_) == 3
    assert all(0.9 < spent <= 1.0 for spent in model.guarantees_["epsilon_spent"])
    assert "each fit spends these budgets anew" in repr(model.guarantees_)
    assert any("each fit spends these budgets anew" in text for text in model.result_.warnings)
    assert "numbers of rows: they determine batch_size, chosen automatically" in model.result_.not_covered
    assert any(text.startswith("classes: taken from the labels of the rows") for text in model.result_.not_covered)
    # Seeded noise can be computed again, and the card says so; without a number nobody can.
    assert {card.noise for card in model.result_.guarantees} == {"seeded (not private)"}


def test_without_a_number_noise_is_secure_and_fits_differ() -> None:
    x, y = blobs(120)
    one, other = (hush.FederatedClassifier(rounds=2).fit(x, y) for _ in range(2))
    assert {card.noise for card in one.result_.guarantees} == {"secure"}
    assert not np.allclose(one.decision_function(x), other.decision_function(x))
    again, repeated = (hush.FederatedClassifier(**QUICK).fit(x, y).decision_function(x) for _ in range(2))
    assert np.array_equal(again, repeated)


def test_clients_keep_their_names_rows_and_budgets() -> None:
    x, y = blobs()
    hospital = np.repeat(["north", "south", "west"], [40, 80, 120])
    budgets = {"north": 0.5, "south": 1.0, "west": 4.0}
    model = hush.FederatedClassifier(epsilon=budgets, rounds=4, random_state=0).fit(x, y, clients=hospital)
    assert model.clients_.tolist() == ["north", "south", "west"]
    cards = {card.name: card for card in model.result_.guarantees}
    assert {name: card.epsilon_budget for name, card in cards.items()} == budgets
    assert {name: card.samples for name, card in cards.items()} == {"north": 39, "south": 79, "west": 119}
    with pytest.raises(HushError, match="west"):
        hush.FederatedClassifier(epsilon={"north": 1.0, "south": 1.0}, rounds=2).fit(x, y, clients=hospital)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        hush.FederatedClassifier(rounds=2).fit(x, y, clients=hospital[:-1])
    with pytest.raises(HushError, match="client 'lone': 1 row"):
        hush.FederatedClassifier(rounds=2).fit(x, y, clients=["lone", *hospital[1:]])


def test_a_fitted_estimator_holds_none_of_the_rows() -> None:
    x, y = blobs()
    model = hush.FederatedClassifier(**QUICK).fit(x, y)
    pickled = pickle.dumps(model)
    assert len(pickled) < x.astype(np.float32).nbytes * 20
    rows = x.astype(np.float32)
    assert not any(row.tobytes() in pickled for row in rows)
    assert not any(row.tobytes() in pickled for row in x)
    assert np.array_equal(pickle.loads(pickled).predict(x), model.predict(x))


def test_nothing_is_scaled_by_the_rows() -> None:
    """A row more or less moves no other row's features: only bounds that the user declares do."""
    x, y = blobs(120)
    far = np.concatenate([x, [[1e4, -1e4]]])
    for bounds in (None, (-15, 15), {"x0": (-15, 15), "x1": (-20, 20)}, ([-15, -20], [15, 20])):
        model = hush.FederatedClassifier(bounds=bounds, **QUICK).fit(x, y)
        alone, together = model.decision_function(x), model.decision_function(far)[:-1]
        assert np.allclose(alone, together, atol=1e-6)
    inside = hush.FederatedClassifier(bounds=(-15, 15), **QUICK).fit(x, y)
    by_hand = hush.FederatedClassifier(**QUICK).fit(x.clip(-15, 15) / 15, y)
    assert np.allclose(inside.decision_function(x), by_hand.decision_function(x.clip(-15, 15) / 15), atol=1e-4)
    for wrong in ((1,), (15, -15), {"x0": (0, 1)}, "auto", ([1, 2, 3], 4)):
        with pytest.raises(HushError, match=r"bounds|low"):
            hush.FederatedClassifier(bounds=wrong, **QUICK).fit(x, y)


def test_a_table_with_texts_and_blanks_is_read_by_its_schema() -> None:
    draw = np.random.default_rng(0)
    age = draw.integers(18, 90, 200)
    table = pandas.DataFrame({"age": age, "sex": draw.choice(["f", "m", None], 200)})
    schema = {
        "scale": "signed", "encoding": "one-hot",
        "columns": {"age": {"low": 0, "high": 100}, "sex": {"categories": ["f", "m"], "missing": "indicator"}},
    }  # fmt: skip
    model = hush.FederatedClassifier(schema=schema, **QUICK).fit(table, age > 50)
    assert model.feature_names_in_.tolist() == ["age", "sex"]
    assert model.classes_.tolist() == [False, True]
    assert model.score(table, age > 50) > 0.9
    with pytest.raises(ValueError, match="accepted: a DataFrame"):
        model.predict(table.to_numpy())
    with pytest.raises(ValueError, match="could not convert string"):
        hush.FederatedClassifier(**QUICK).fit(table, age > 50)


def test_pipelines_searches_and_cross_validation() -> None:
    x, y = blobs()
    scaled = make_pipeline(FunctionTransformer(lambda rows: rows / 15), Normalizer(), hush.FederatedClassifier(**QUICK))
    assert scaled.fit(x, y).score(x, y) > 0.85
    site = np.arange(len(y)) % 4
    # Passed by name without routing, and cut to the rows of each fold.
    scores = cross_val_score(hush.FederatedClassifier(**QUICK), x, y, cv=3, params={"clients": site})
    assert scores.min() > 0.7 and scores.mean() > 0.8
    search = GridSearchCV(hush.FederatedClassifier(**QUICK), {"rounds": [1, 4], "recipe": ["hush", "dp-fedavg"]}, cv=2)
    search.fit(x, y, clients=site)
    assert search.best_estimator_.clients_.tolist() == ["0", "1", "2", "3"]
    assert search.best_score_ > 0.8


@pytest.fixture
def routing() -> Iterator[None]:
    """With scikit-learn's metadata routing."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_clients_are_routed_as_metadata(routing: None) -> None:
    x, y = blobs()
    site = np.arange(len(y)) % 4
    model = hush.FederatedClassifier(**QUICK).set_fit_request(clients=True)
    found = cross_validate(model, x, y, cv=2, params={"clients": site}, return_estimator=True)
    assert [each.clients_.tolist() for each in found["estimator"]] == [["0", "1", "2", "3"]] * 2
    line = make_pipeline(FunctionTransformer(), model).fit(x, y, clients=site)
    assert line[-1].clients_.tolist() == ["0", "1", "2", "3"]


class Net(nn.Module):
    """A hidden layer."""

    def __init__(self, width: int = 2, classes: int = 3) -> None:
        super().__init__()
        with seeded(0):
            self.first, self.last = nn.Linear(width, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        out: Tensor = self.last(torch.relu(self.first(x)))
        return out


@pytest.mark.parametrize("model", [Net(), lambda shape, classes: Net(shape[0], classes), "mlp"])
def test_models_of_any_kind(model: Any) -> None:
    x, y = blobs()
    made = hush.FederatedClassifier(
        model=model, recipe="dp-fedavg", bounds=(-15, 15), lr=2.0, settings={"local.epochs": 2}, epsilon=8.0,
        random_state=0,
    )  # fmt: skip
    fitted = clone(made).fit(x, y)
    assert fitted.score(x, y) > 0.7
    if isinstance(model, Net):
        assert type(fitted.trained_model_.module) is Net
        assert torch.equal(model.first.weight, Net().first.weight)


def test_images_keep_their_shape() -> None:
    digits = hush.data.load("digits", root=None)
    x, y = digits.x[:400], digits.y[:400]
    model = hush.FederatedClassifier(model="cnn", recipe="dp-fedavg", lr=0.5, epsilon=50.0, rounds=2, random_state=0)
    with pytest.warns(UserWarning, match="epsilon"):
        assert model.fit(x, y).predict(x).shape == (400,)


def test_the_model_behind_it_can_be_saved(tmp_path: Any) -> None:
    x, y = blobs()
    model = hush.FederatedClassifier(bounds=(-15, 15), **QUICK).fit(x, y)
    again = hush.load(model.trained_model_.save(tmp_path / "model"))
    table = pandas.DataFrame(x.astype(np.float32), columns=["x0", "x1"])
    assert np.array_equal(again.predict(table), model.predict(x))


def test_delta_follows_the_number_of_rows() -> None:
    from hush.estimators import _delta

    assert [_delta(rows) for rows in (10, 10_000, 10_001, 1_000_000)] == [1e-5, 1e-5, 1e-6, 1e-7]
    x, y = blobs(60)
    model = hush.FederatedClassifier(**QUICK).fit(x, y)
    assert {card.delta for card in model.result_.guarantees} == {1e-5}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"epsilon": -1.0}, HushError, "epsilon"),
        ({"recipe": "fedsgdx"}, HushError, "fedsgdx"),
        ({"n_clients": 0}, ValueError, "n_clients: found 0; accepted: an integer, 1 or more"),
        ({"n_clients": 100}, ValueError, "too few for n_clients=100"),
        ({"rounds": 0}, HushError, "rounds"),
        ({"model": 3}, HushError, "model"),
        ({"batch_size": 1000}, HushError, "batch_size"),
        ({"lr": "fast"}, HushError, "lr"),
        ({"settings": {"local.lrr": 1}}, HushError, "lrr"),
        ({"bounds": (0, 1), "schema": {"columns": {"a": {}}}}, ValueError, "accepted: a DataFrame"),
    ],
)
def test_mistakes(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    x, y = blobs(60)
    with pytest.raises(error, match=words) as found:
        hush.FederatedClassifier(**arguments).fit(x, y)
    assert "\n" not in str(found.value)
    with pytest.raises(NotFittedError):
        hush.FederatedClassifier(**arguments).predict(x)


def line(rows: int = 300) -> tuple[Any, Any]:
    """Targets from 0 to 100 that are nearly linear in the features, which are in [0, 1]."""
    draw = np.random.default_rng(0)
    x = draw.random((rows, 3))
    return x, 50 * x[:, 0] + 40 * x[:, 1] + 5 + draw.normal(size=rows)


def test_a_regressor_predicts_in_the_units_of_its_targets() -> None:
    x, y = line()
    model = hush.FederatedRegressor(epsilon=4.0, bounds=(0, 1), target_bounds=(0, 100), random_state=0).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.predict(x).shape == (300,)
    assert len(model.guarantees_) == 3
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    huber = clone(model).set_params(loss="huber", target_bounds=np.array([0.0, 100.0])).fit(x, y)
    assert huber.score(x, y) > 0.7
    assert cross_val_score(model, x, y, cv=2, params={"clients": np.arange(300) % 3}).min() > 0.6


def test_automatic_rates_of_regressors_do_not_diverge() -> None:
    x, y = line()
    for rounds in (1, 3, 30):
        model = hush.FederatedRegressor(
            epsilon=8.0, rounds=rounds, bounds=(0, 1), target_bounds=(0, 100), random_state=0
        )
        assert model.fit(x, y).score(x, y) > 0.0


def test_one_logit_for_two_classes() -> None:
    x, y = blobs()
    two = y != "c"
    model = hush.FederatedClassifier(model=nn.Linear(2, 1), recipe="dp-fedavg", bounds=(-15, 15), lr=1.0, **QUICK)
    model.fit(x[two], y[two])
    assert model.decision_function(x[two]).shape == (two.sum(),)
    assert np.array_equal(model.predict(x[two]), model.classes_[model.predict_proba(x[two]).argmax(1)])
    assert model.score(x[two], y[two]) > 0.8
