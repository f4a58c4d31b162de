"""Estimators with scikit-learn's conventions: federated training behind `fit`, `predict` and `score`.

Guarantees:
    - No statistic of the rows is used without being charged: features are scaled by bounds that the user declares, or
      used as they are. What follows from the rows beside the training (the classes, how many rows there are) is public,
      as `guarantees_` says.
    - A fitted estimator holds the trained model and the facts of the run, and none of the rows.

Edge cases:
    - Each `fit` spends the budgets anew: k fits on the same rows, as in cross-validation or a grid search, spend up to
      k times as much.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from hush.data import ClientData
from hush.data import clients as client_data
from hush.data.schema import Column, Schema
from hush.data.sizes import LEAST, held_out
from hush.data.tables import Columns, is_frame
from hush.fit_result import FitResult
from hush.result_tables import guarantee_table
from hush.seeds import rng
from hush.simulation import Simulation
from hush.types import HushError, TargetKind

Array = npt.NDArray[Any]
BUDGETS_PER_FIT = (
    "each fit spends these budgets anew: fits on the same rows, as in cross-validation or a grid search, add up to at "
    "most epsilon times their number"
)
_LABEL = "target of the estimator"
_LEAST_HELD_OUT = 1e-9  # of the rows of each client: one row
_DELTA = 1e-5
_BATCH = 64  # rows that are predicted at a time


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common; `_targets` is how Hush reads what they predict."""

    _targets: ClassVar[TargetKind]

    def __init__(
        self,
        epsilon: object = 1.0,
        *,
        delta: object = None,
        recipe: object = "hush",
        model: object = "auto",
        n_clients: int = 3,
        rounds: int = 20,
        lr: object = "auto",
        batch_size: object = "auto",
        clip: float = 1.0,
        bounds: object = None,
        schema: object = None,
        settings: Mapping[str, Any] | None = None,
        random_state: object = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.recipe = recipe
        self.model = model
        self.n_clients = n_clients
        self.rounds = rounds
        self.lr = lr
        self.batch_size = batch_size
        self.clip = clip
        self.bounds = bounds
        self.schema = schema
        self.settings = settings
        self.random_state = random_state

    def _fit(self, X: Any, y: Array, clients: Any, task: Mapping[str, Any]) -> FitResult:
        """Train on checked rows; `y` is as Hush reads it."""
        seed = self._seed()
        rows = len(y)
        owners = self._owners(clients, rows, seed)
        data = self._data(X, y, owners)
        names, counts = np.unique(owners.astype(str), return_counts=True)
        trained = {name: int(n) - held_out(int(n), _LEAST_HELD_OUT) for name, n in zip(names, counts, strict=True)}
        batches: Any = self.batch_size
        if _is_automatic(batches):
            batches = {name: min(n, max(16, n // 8)) for name, n in trained.items()}
        simulation = Simulation(
            data,
            "logreg" if _is_automatic(self.model) else self.model,  # type: ignore[arg-type]
            epsilon=self.epsilon,
            delta=_delta(rows) if self.delta is None else self.delta,
            recipe=self.recipe,  # type: ignore[arg-type]
            rounds=self.rounds,
            batch_size=batches,
            clip=self.clip,
            seed=seed,
            noise="secure" if self.random_state is None else "seeded",
            test_fraction=_LEAST_HELD_OUT,
            **{"lr": self.lr, "settings": {} if self.settings is None else dict(self.settings), **task},
        )
        done = simulation.fit(progress=False)
        for text in done.run.warnings:
            warnings.warn(text, UserWarning, stacklevel=4)
        self.trained_model_ = done.trained
        chosen = [name for name in ("batch_size", "delta") if _is_automatic(getattr(self, name))]
        gaps = (f"numbers of rows: they determine {' and '.join(chosen)}, chosen automatically",) if chosen else ()
        self.result_ = replace(
            done.run, warnings=(*done.run.warnings, BUDGETS_PER_FIT), not_covered=(*done.run.not_covered, *gaps)
        )
        self.history_ = done.history
        self.guarantees_ = guarantee_table(self.result_.guarantees, self.result_.not_covered, self.result_.warnings)
        self.clients_ = np.array(self.trained_model_.clients)
        return done

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool) -> tuple[Any, Any]:
        """Return rows and targets as scikit-learn checks them; a table stays one where a schema reads it."""
        given = {} if isinstance(y, str) else {"y": y}
        if self.schema is not None and is_frame(X):
            found = validate_data(self, X, **given, reset=reset, skip_check_array=True)
            return (found[0], column_or_1d(found[1], warn=True)) if given else (found, None)
        if self.schema is not None:
            raise ValueError(f"schema: names columns, and X is {type(X).__name__}; accepted: a DataFrame")
        extra = {"y_numeric": self._targets == "continuous"} if given else {}
        found = validate_data(self, X, **given, **extra, reset=reset, dtype=np.float32, allow_nd=True)
        return found if given else (found, None)

    def _raw(self, X: Any, client: object) -> Array:
        """Return the outputs of the trained model for rows."""
        check_is_fitted(self)
        X, _ = self._checked(X, reset=False)
        # How a product of matrices is rounded depends on their sizes. Batches of one size make a row's output
        # independent of how many rows are predicted with it.
        rows = np.arange(-(-len(X) // _BATCH) * _BATCH).reshape(-1, _BATCH) % len(X)
        parts = (X.iloc[part] if hasattr(X, "iloc") else X[part] for part in rows)
        raw = [self.trained_model_.raw_outputs(self._columns(part), client=client) for part in parts]  # type: ignore[arg-type]
        outputs: Array = np.concatenate(raw)[: len(X)]
        return outputs

    def _seed(self) -> int:
        """Return a number from `random_state`, or one that nobody can guess."""
        if self.random_state is None:
            return int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _owners(self, clients: Any, rows: int, seed: int) -> Array:
        """Return the client of each row: as given, or drawn at random for `n_clients` of nearly equal size."""
        if clients is not None:
            found = np.asarray(clients)
            check_consistent_length(found, np.empty(rows))
            return found
        number: object = self.n_clients
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
            raise ValueError(f"n_clients: found {number!r:.80}; accepted: an integer, 1 or more")
        if rows < LEAST * number:
            raise ValueError(
                f"n_samples={rows} is too few for n_clients={number}; accepted: at least {LEAST} rows per client"
            )
        return rng(seed, "clients of an estimator").permutation(rows) % int(number)

    def _data(self, X: Any, y: Array, owners: Array) -> ClientData:
        table = self._columns(X)
        if isinstance(table, Columns):
            return client_data(
                table.joined(_LABEL, y),
                label=_LABEL,
                clients=owners,
                schema=self._schema_of(table),
                targets=self._targets,
            )
        return client_data(table, y, clients=owners, targets=self._targets)

    def _columns(self, X: Any) -> Any:
        """Return rows as columns by name where a schema reads them; arrays as they are."""
        if self.schema is None and self.bounds is None:
            return X
        if is_frame(X):
            return Columns({str(name): X[name] for name in X.columns})
        if X.ndim != 2:
            raise ValueError(f"bounds: for columns of a table, and X has shape {X.shape}; accepted: a matrix")
        names = getattr(self, "feature_names_in_", [f"x{at}" for at in range(X.shape[1])])
        return Columns({str(name): X[:, at] for at, name in enumerate(names)})

    def _schema_of(self, table: Columns) -> Any:
        if self.schema is not None:
            if self.bounds is not None:
                raise ValueError("bounds, schema: accepted: one of them; a schema has bounds of its own")
            return self.schema
        names = table.column_names
        low, high = _bounds(self.bounds, names)
        columns = tuple(
            Column(name=name, kind="number", low=a, high=b) for name, a, b in zip(names, low, high, strict=True)
        )
        return Schema(shape=(len(names),), columns=columns, label=_LABEL, scale="signed")


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """A classifier that is trained in a federation, in which every client keeps its own privacy budget.

    Every `fit` spends the budgets anew, so that cross-validation and grid searches add up.

    Args:
        epsilon: The budget of each client: a number, a list, or a mapping from clients' names.
        delta: By default 1e-5, or for large data a power of ten below a tenth of a row.
        recipe: The algorithm: a name, a mapping of slots, or a `hush.Recipe`.
        model: "auto" (logistic regression), the name of a model, an `nn.Module`, or a function of the shape of a row
            and the number of classes that makes one.
        n_clients: How many clients share the rows at random, where `fit` is given none.
        rounds: How many there are.
        lr: The learning rate, or "auto".
        batch_size: Expected rows in a step; "auto" is an eighth of a client's rows, and at least 16.
        clip: The clipping norm.
        bounds: The least and the largest value of every feature, by which features are moved to [-1, 1] and clipped: a
            pair of numbers or of arrays, or a mapping from columns to pairs. They must be public, not taken from `X`.
            By default features are used as they are.
        schema: What the columns of a DataFrame may hold (`hush.data.Schema`, a table, or the path of a TOML file), in
            place of bounds; `X` may then hold texts, dates and blanks.
        settings: Any other keys of a config: {"local.epochs": 2}.
        random_state: None draws noise and batches from the operating system's secure source, so that fits differ. With
            a number fits repeat, and the noise can be computed again by whoever knows it: for experiments only.

    Attributes:
        classes_: The classes, in order.
        clients_: The clients, in order.
        guarantees_: A table with what each client spent.
        result_: The facts of the run (`hush.RunResult`).
        history_: A table with one row per round.
        trained_model_: The `hush.TrainedModel`, to save and export.
        n_features_in_: How many features there are.
        feature_names_in_: Their names, where `X` is a DataFrame.
    """

    _targets = "classes"

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train. `clients` is the client of each row, a name or a number (n,)."""
        X, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        classes, encoded = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError("y holds one class alone; accepted: samples of at least 2 classes")
        self.classes_ = classes
        self._fit(X, encoded, clients, {})
        self.trained_model_ = replace(self.trained_model_, class_values=tuple(classes.tolist()))
        return self

    def predict(self, X: Any, *, client: str | int | None = None) -> Array:
        """Return the class of each row; `client` says whose model to use, where the recipe trains several."""
        scores = self.decision_function(X, client=client)
        at = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        found: Array = self.classes_[at]
        return found

    def predict_proba(self, X: Any, *, client: str | int | None = None) -> Array:
        """Return the probability of each class (n, classes)."""
        raw = self._raw(X, client)
        return self.trained_model_.probabilities(raw)

    def decision_function(self, X: Any, *, client: str | int | None = None) -> Array:
        """Return the logits of the classes (n, classes); for two classes their difference (n,)."""
        raw = self._raw(X, client)[:, : len(self.classes_)].astype(np.float64)
        if raw.shape[1] > 2:
            return raw
        return raw[:, 0] if raw.shape[1] == 1 else raw[:, 1] - raw[:, 0]


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """A regressor that is trained in a federation, in which every client keeps its own privacy budget.

    Every `fit` spends the budgets anew, so that cross-validation and grid searches add up.

    Args:
        epsilon: As for `FederatedClassifier`, like all that is not listed here.
        target_bounds: The least and the largest target, a pair of numbers or a list of pairs for several targets, by
            which targets are moved to [-1, 1] for training. They must be public, not taken from `y`. By default targets
            are used as they are, and then should be small: the clipping norm bounds what one row adds.
        loss: "mse" or "huber", or a function of the output and the target of one example.
        lr: The learning rate, or "auto".

    Attributes:
        guarantees_: As for `FederatedClassifier`, like the others.
    """

    _targets = "continuous"

    def __init__(
        self,
        epsilon: object = 1.0,
        *,
        delta: object = None,
        recipe: object = "hush",
        model: object = "auto",
        n_clients: int = 3,
        rounds: int = 20,
        lr: object = "auto",
        batch_size: object = "auto",
        clip: float = 1.0,
        bounds: object = None,
        target_bounds: object = None,
        loss: object = "mse",
        schema: object = None,
        settings: Mapping[str, Any] | None = None,
        random_state: object = None,
    ) -> None:
        super().__init__(
            epsilon, delta=delta, recipe=recipe, model=model, n_clients=n_clients, rounds=rounds, lr=lr,
            batch_size=batch_size, clip=clip, bounds=bounds, schema=schema, settings=settings,
            random_state=random_state,
        )  # fmt: skip
        self.target_bounds = target_bounds
        self.loss = loss

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train. `clients` is the client of each row, a name or a number (n,)."""
        X, y = self._checked(X, y, reset=True)
        objective = {} if self.target_bounds is None else {"objective.target_bounds": _pairs(self.target_bounds)}
        settings = {**objective, **({} if self.settings is None else dict(self.settings))}
        self._fit(X, y.astype(np.float32), clients, {"task": "regression", "loss": self.loss, "settings": settings})
        return self

    def predict(self, X: Any, *, client: str | int | None = None) -> Array:
        """Return the number that is predicted for each row, in the units of `y`."""
        raw = self._raw(X, client)
        return self.trained_model_.labels(raw)


def _pairs(bounds: Any) -> Any:
    """Return bounds as lists, as a config has them."""
    return (
        bounds.tolist() if hasattr(bounds, "tolist") else [_pairs(each) if np.ndim(each) else each for each in bounds]
    )


def _is_automatic(value: object) -> bool:
    return value is None or (isinstance(value, str) and value == "auto")


def _delta(rows: int) -> float:
    """Return a power of ten that is at most a tenth of a row, and at most the usual 1e-5."""
    return min(_DELTA, 10.0 ** -math.ceil(math.log10(10 * rows)))


def _bounds(given: object, names: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the least and the largest value of each column."""
    wanted = "accepted: (low, high), numbers or one for each feature, or a mapping from columns to such pairs"
    if isinstance(given, Mapping):
        if {str(name) for name in given} != set(names):
            raise HushError(f"bounds: for {', '.join(map(str, given))[:200]}; the columns are {', '.join(names)[:200]}")
        pairs = [given[name] for name in names]
    else:
        try:
            ends: Any = given
            low, high = (np.broadcast_to(np.asarray(end, float), (len(names),)) for end in ends)
            pairs = list(zip(low, high, strict=True))
        except (TypeError, ValueError):
            raise HushError(f"bounds: found {given!r:.80} for {len(names)} features; {wanted}") from None
    try:
        return [float(low) for low, _ in pairs], [float(high) for _, high in pairs]
    except (TypeError, ValueError):
        raise HushError(f"bounds: found {given!r:.80}; {wanted}") from None
