"""The result of a fit: the trained models, and the rounds, metrics and guarantees of the run that trained them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import Tensor, nn

from hush.engines.driver import CompletedRun
from hush.engines.trained import trained_model
from hush.result_tables import guarantee_table, history_table, metrics_table, summary_table
from hush.table import Table
from hush.trained_model import TrainedModel
from hush.types import RoundRecord, RunResult

Array = npt.NDArray[Any]

_SHOWN = 3  # gaps and warnings of the short form


@dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """What `Simulation.fit` returns.

    Attributes:
        completed: The run in memory.
        path: The run directory, if there is one.
    """

    completed: CompletedRun
    path: Path | None = None

    @property
    def run(self) -> RunResult:
        """The facts of the run, as in `result.json`."""
        return self.completed.result

    @property
    def accuracy(self) -> Mapping[str, float]:
        """Mean, smallest, largest and sample standard deviation over the clients; empty in regression."""
        return self.run.accuracy

    @property
    def accuracy_per_client(self) -> Mapping[str, float]:
        """Test accuracy by the client's name, or by its number as text."""
        scores = self.run.accuracy_per_client
        return dict(zip(self.run.clients or map(str, range(len(scores))), scores, strict=bool(scores)))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """All metrics: `pooled`, `mean`, `worst` and `per_client`, by name; `metrics_table` shows them."""
        return self.run.metrics

    @cached_property
    def metrics_table(self) -> Table:
        """One row per metric."""
        return metrics_table(self.run)

    @property
    def evaluation(self) -> tuple[Mapping[str, Any], ...]:
        """Figures of noised counts on held-out rows, with standard errors, of each round that evaluated."""
        return self.run.evaluation

    @property
    def loss(self) -> float:
        """Mean test loss."""
        return self.run.loss

    @property
    def ended(self) -> str:
        """Why the run stopped where it did."""
        return self.run.ended

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What no epsilon covers."""
        return self.run.not_covered

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before trusting the result."""
        return self.run.warnings

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        """What is recorded of each round."""
        return self.completed.records

    @property
    def weights(self) -> Tensor:
        """The released models as flat vectors, models x p."""
        return self.completed.models

    @cached_property
    def trained(self) -> TrainedModel:
        """The trained model, to predict with, to save and to export."""
        done = self.completed
        return trained_model(done.federation, done.models, done.assignments, done.result)

    @property
    def module(self) -> nn.Module:
        """The module with the trained weights: of your own class, or the built-in architecture."""
        return self.trained.module

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """One module for each model that was trained, where there are clusters."""
        return self.trained.modules

    def predict(self, x: object, *, client: str | int | None = None) -> Array:
        """Return the predicted label of each row, given as the training data were (`TrainedModel.predict`).

        Args:
            x: Arrays, a DataFrame, a tuple or dict of arrays, or the path of a CSV, Parquet or NPZ file.
            client: Whose model to use, by name or number, where several were trained.
        """
        return self.trained.predict(x, client=client)

    def predict_proba(self, x: object, *, client: str | int | None = None) -> Array:
        """Return the probability of each class (n, classes); arguments as for `predict`."""
        return self.trained.predict_proba(x, client=client)

    def save(self, directory: str | Path) -> Path:
        """Write the trained model to an empty or new directory, for `hush.load`."""
        return self.trained.save(directory)

    @cached_property
    def history(self) -> Table:
        """One row per round."""
        return history_table(self.records)

    @cached_property
    def guarantees(self) -> Table:
        """One row per client."""
        return guarantee_table(self.run.guarantees, self.not_covered, self.warnings)

    def __repr__(self) -> str:
        return repr(self._summary())

    def _repr_html_(self) -> str:
        return self._summary()._repr_html_()

    def _summary(self) -> Table:
        return summary_table(self.run, _SHOWN, self.path)
