"""The MLflow tracker: a database file `mlflow.db` in the working directory, or what MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.tracking.tracker import Tracker

if TYPE_CHECKING:
    from hush.callbacks import RunStart

EXPERIMENT = "hush"
_AT_ONCE = 100  # parameters, and 1000 metrics, that one request may hold
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_LONGEST = 500


class MLflowTracker(Tracker):
    """Logs a run with MLflow; the runs of a comparison have a tag with its name in common."""

    name = "mlflow"

    def begin(self, start: RunStart, config: Mapping[str, str], kept: str) -> str:
        """Create a run in the experiment `hush`, or the one that MLFLOW_EXPERIMENT_NAME names."""
        from mlflow.entities import Param, RunTag

        with _quiet():
            self._client = _client()
            if kept and self._exists(kept):
                self._run = kept
                self._client.update_run(kept, status="RUNNING")
                return kept
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
            label = self.label or f"{start.recipe}, seed {start.seed}"
            run = self._client.create_run(experiment, run_name=label)
            self._run = str(run.info.run_id)
            params = [Param(key, value[:_LONGEST]) for key, value in config.items()]
            tags = [RunTag("hush.group", self.group)] if self.group else []
            for first in range(0, len(params), _AT_ONCE):
                self._client.log_batch(self._run, params=params[first : first + _AT_ONCE], tags=tags)
        return self._run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log one batch."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        listed = [Metric(name, value, now, step) for name, value in values.items()]
        with _quiet():
            for first in range(0, len(listed), 10 * _AT_ONCE):
                self._client.log_batch(self._run, metrics=listed[first : first + 10 * _AT_ONCE])

    def tell(self, facts: Mapping[str, str]) -> None:
        """Set tags."""
        with _quiet():
            for name, text in facts.items():
                self._client.set_tag(self._run, f"hush.{name.replace(' ', '_')}", text[: 10 * _LONGEST])

    def keep(self, files: Sequence[Path]) -> None:
        """Copy the files to the run's artifacts."""
        with _quiet():
            for path in files:
                self._client.log_artifact(self._run, str(path))

    def end(self, state: str) -> None:
        """Set the run's status."""
        with _quiet():
            self._client.set_terminated(self._run, _STATES[state])

    def _exists(self, run: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._client.get_run(run)
        except MlflowException:
            return False
        return True


def _client() -> Any:
    from mlflow.tracking import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').resolve()}"
    return MlflowClient(uri)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from reporting its use, and its packages from printing about themselves."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
