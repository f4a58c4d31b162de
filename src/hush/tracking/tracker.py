"""The base of trackers: what is logged of a run, whatever it is logged with.

Logged are the config, what the guarantee does not cover, after each round the scores, the loss, and for each client
score, weight, noise and the epsilon spent; at the end all metrics, and the files of the run directory. Numbers that are
not finite are left out, since trackers keep them in different ways; that epsilon is unbounded is a tag of its own.
"""

from __future__ import annotations

import json
import logging
import math
import re
import statistics
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.callbacks import Callback, RunStart
from hush.privacy.round_costs import RoundCosts, SpendingMeter
from hush.server.run_directory import write_atomically

if TYPE_CHECKING:
    from hush.types import RoundRecord, RunResult

FILES = (
    "manifest.json", "result.json", "rounds.jsonl", "privacy.json", "report.html", "model.safetensors", "model.json",
    "certificate.json", "certificate.html", "certificate.pdf",
)  # fmt: skip
_MOST = 200  # clients with curves of their own
_KEPT = "tracking.json"
_log = logging.getLogger("hush")


class Tracker(Callback):
    """Logs one run. Subclasses say how."""

    name = ""
    permanent: Path | None

    def __init__(self, label: str = "", group: str = "") -> None:
        """`label` names the run, and `group` what it is part of; both may be empty."""
        self.label, self.group = label, group
        self._names: tuple[str, ...] = ()
        self._meter: SpendingMeter | None = None
        self._directory: Path | None = None
        self._open = self._resumed = False
        self.permanent: Path | None = None

    @abstractmethod
    def begin(self, start: RunStart, config: Mapping[str, str], kept: str) -> str:
        """Begin a run, or go on with the one that was kept, and return the id to keep for resuming."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one round."""

    @abstractmethod
    def tell(self, facts: Mapping[str, str]) -> None:
        """Log texts about the run."""

    @abstractmethod
    def keep(self, files: Sequence[Path]) -> None:
        """Keep files with the run, as far as the tracker can."""

    @abstractmethod
    def end(self, state: str) -> None:
        """End the run: `finished`, `stopped` (it can be resumed) or `failed`."""

    def on_run_start(self, start: RunStart) -> None:
        """Begin the run with its config."""
        self._names, self._directory = _distinct(start.clients), start.directory
        known = self._kept()
        kept = self.begin(start, dict(_flat(start.config)), known.get(self.name, ""))
        self._open = True
        if start.directory is not None:
            write_atomically(start.directory / _KEPT, json.dumps({**known, self.name: kept}).encode())
        self._resumed = self.name in known
        self.tell({
            "recipe": start.recipe, "seed": str(start.seed),
            "not covered by the privacy guarantee": "; ".join(start.not_covered),
            "warnings": "; ".join(start.warnings) or "none",
        })  # fmt: skip

    def on_enrolled(self, costs: RoundCosts, records: Sequence[RoundRecord]) -> None:
        """Take note of what rounds cost; rounds that this tracker has not heard of are logged first."""
        self._meter = SpendingMeter(costs)
        if len(costs.clients) > _MOST:
            _log.warning("%s: curves of the first %d of %d clients", self.name, _MOST, len(costs.clients))
        for record in records:
            if self._resumed:
                self._meter.add(record.charged, record.stage)
            else:
                self.on_round_end(record)

    def on_round_end(self, record: RoundRecord) -> None:
        """Log the numbers of the round."""
        assert self._meter is not None
        self._meter.add(record.charged, record.stage)
        shown = range(min(_MOST, len(self._names)))
        spent = self._meter.epsilon(shown)
        scores = [score for score in record.scores if math.isfinite(score)]
        values: dict[str, float] = {"loss": record.loss, "seconds": record.seconds, "updates used": len(record.weights)}
        if scores:
            values |= {f"{record.primary} mean": statistics.fmean(scores), f"{record.primary} lowest": min(scores),
                       f"{record.primary} highest": max(scores)}  # fmt: skip
        if spent:
            values["epsilon largest"] = max(spent.values())
        for client in shown:
            name = self._names[client]
            values[f"epsilon/{name}"] = spent[client]
            if client < len(record.scores):
                values[f"{record.primary}/{name}"] = record.scores[client]
            for what, mapping in (
                ("weight", record.weights), ("noise estimated", record.noise_estimated),
                ("noise planned", record.noise_planned),
            ):  # fmt: skip
                if client in mapping:
                    values[f"{what}/{name}"] = mapping[client]
        if record.round == 1 and any(map(math.isinf, spent.values())):
            self.tell({"epsilon": "unbounded: updates without noise"})
        self.log({name: float(value) for name, value in values.items() if math.isfinite(value)}, record.round)

    def on_run_end(self, result: RunResult) -> None:
        """Log all metrics and keep the files."""
        found = {f"final {kind}/{name}": value for kind in ("pooled", "mean", "worst")
                 for name, value in result.metrics.get(kind, {}).items()}  # fmt: skip
        values = {_plain(name): float(value) for name, value in found.items() if _finite(value)}
        self.log(values, result.rounds)
        self.tell({"ended": result.ended, "config hash": result.config_hash})
        if self._directory is not None:
            self.keep([path for name in FILES if (path := self._directory / name).exists()])
        self._finish("stopped" if result.stopped else "finished")

    def abort(self) -> None:
        """End a run that an error or Ctrl-C has ended."""
        self._finish("failed")

    def _finish(self, state: str) -> None:
        if self._open:
            self._open = False
            self.end(state)

    def _kept(self) -> dict[str, str]:
        try:
            assert self._directory is not None
            found = json.loads((self._directory / _KEPT).read_bytes())
        except (AssertionError, OSError, ValueError):
            return {}
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings by dotted key, as texts."""
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found.append((f"{prefix}{key}", str(value)))
    return found


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of clients with letters that every tracker takes, all different."""
    made: dict[str, None] = {}
    for number, name in enumerate(names):
        plain = _plain(name).replace("/", "_")
        made[plain if plain and plain not in made else f"{plain} {number}".strip()] = None
    return tuple(made)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)[:200]


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
