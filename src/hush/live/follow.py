"""Follow a run: read its directory as it grows, without loading anything that trains.

Each round is read once. What only charts need is kept in arrays, so that thousands of rounds take few megabytes.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.privacy.round_costs import RoundCosts, SpendingMeter
from hush.text import printable
from hush.types import HushError

MANIFEST, ROUNDS, RESULT, COSTS, FEDERATION, REPORT = (
    "manifest.json", "rounds.jsonl", "result.json", "privacy.json", "federation.json", "report.html",
)  # fmt: skip
_RECENT = 20  # rounds from which the time left is estimated
_COLUMNS = ("round", "mean", "low", "high", "loss", "seconds")


@dataclass(frozen=True)
class Metric:
    """How the score of clients is shown."""

    label: str
    percent: bool
    higher_is_better: bool

    def shown(self, value: float) -> str:
        """Return a value as it is printed."""
        if not math.isfinite(value):
            return "–"
        return f"{100 * value:.1f}%" if self.percent else f"{value:.4g}"


class FollowedRun:
    """A run directory, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Mapping[str, Any] = {}
        self.finished = False
        self.ended = ""
        self._agreed: tuple[str, ...] = ()
        self._clear()

    def _clear(self) -> None:
        self.columns = {name: array("d") for name in _COLUMNS}
        self.weight_sums: dict[int, float] = {}
        self.weight_counts: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        self.reasons: dict[int, str] = {}
        self.used: Counter[int] = Counter()
        self.scores: tuple[float, ...] = ()
        self.last: Mapping[str, Any] = {}
        self.evaluations: list[Mapping[str, Any]] = []
        self.costs: RoundCosts | None = None
        self._charges: list[tuple[array[int], int]] = []
        self._offset = 0
        self._file: tuple[int, int] | None = None
        self._known: dict[int, dict[int, float]] = {}
        self.read_at = 0.0

    @property
    def started(self) -> bool:
        """Whether the run has begun."""
        return bool(self.manifest)

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        return int(self.columns["round"][-1]) if self.columns["round"] else 0

    @property
    def planned(self) -> int:
        """Rounds as configured."""
        return int(self.manifest["config"]["rounds"]) if self.manifest else 0

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.manifest["config"]["data"]["clients"]) if self.manifest else 0

    @property
    def federation(self) -> bool:
        """Whether members train on machines of their own."""
        return (self.path / FEDERATION).exists()

    @property
    def metric(self) -> Metric:
        """The score of clients."""
        described = self.manifest.get("metric", {})
        name = str(self.manifest.get("primary", "accuracy"))
        higher = described.get("higher_is_better", name == "accuracy")
        return Metric(
            str(described.get("label", name)), bool(described.get("percent", name == "accuracy")), bool(higher)
        )

    def name(self, client: int) -> str:
        """What a client is called."""
        names = self.manifest.get("clients") or self._members()
        return printable(names[client]) if client < len(names) else str(client)

    def _members(self) -> tuple[str, ...]:
        """The members of a federation's run; they have agreed to it before its first round."""
        if not self._agreed and self.federation:
            self._agreed = tuple(str(fact.get("name")) for fact in _object(self.path / FEDERATION).get("facts", ()))
        return self._agreed

    def refresh(self) -> bool:
        """Read what is new, and return whether anything is."""
        news = False
        if not self.manifest:
            self.manifest = _object(self.path / MANIFEST)
            news = bool(self.manifest)
        if self.manifest:
            if self.costs is None:
                self.costs = _costs(self.path / COSTS)
            news = self._read_rounds() or news
        finished = (self.path / RESULT).exists()
        if finished != self.finished:
            self.finished = news = True
            self.ended = str(_object(self.path / RESULT).get("ended", ""))
        return news

    def seconds_left(self) -> float:
        """Return about how long the remaining rounds take, from the latest ones; NaN before there are any."""
        seconds, left = self.columns["seconds"], self.planned - self.rounds
        if self.finished or left <= 0:
            return 0.0
        recent = seconds[-_RECENT - 1 :]
        if len(recent) > 1:
            return left * max(recent[-1] - recent[0], 0.0) / (len(recent) - 1)
        return left * recent[0] if recent else math.nan

    def silent(self) -> float:
        """Return for how many seconds an unfinished run has written nothing."""
        return 0.0 if self.finished or not self.read_at else time.time() - self.read_at

    def mean_weights(self) -> dict[int, float]:
        """Return the mean weight of each client whose update was used."""
        return {client: total / self.weight_counts[client] for client, total in sorted(self.weight_sums.items())}

    def epsilon_at(self, number: int) -> dict[int, float]:
        """Return the epsilon that each client has spent after so many of the rounds; empty where it is not known."""
        if self.costs is None:
            return {}
        if number not in self._known:
            meter = SpendingMeter(self.costs)
            for charged, stage in self._charges[:number]:
                meter.add(charged, stage)
            self._known[number] = meter.epsilon()
        return self._known[number]

    def _read_rounds(self) -> bool:
        try:
            found = (self.path / ROUNDS).stat()
        except OSError:
            return False
        if self._file is not None and (self._file[0] != found.st_ino or found.st_size < self._offset):
            # A resumed run has rewritten its rounds, and knows anew what was charged before.
            self._clear()
            self.costs = _costs(self.path / COSTS)
        self._file = (found.st_ino, found.st_size)
        if found.st_size == self._offset:
            return False
        with (self.path / ROUNDS).open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        # A line that is still being written is read next time.
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._count(json.loads(line))
        self.read_at = found.st_mtime
        return bool(whole)

    def _count(self, raw: Mapping[str, Any]) -> None:
        listed = raw.get("score_per_client") or raw.get("accuracy_per_client") or ()
        self.scores = tuple(map(_number, listed)) or self.scores
        known = [score for score in map(_number, listed) if math.isfinite(score)]
        low, high = (min(known), max(known)) if known else (math.nan, math.nan)
        row = (raw["round"], statistics.fmean(known) if known else math.nan, low, high, _number(raw.get("loss")),
               raw.get("seconds", 0.0))  # fmt: skip
        for name, value in zip(_COLUMNS, row, strict=True):
            self.columns[name].append(float(value))
        for client, weight in raw["weights"].items():
            self.used[int(client)] += 1
            if math.isfinite(_number(weight)):
                self.weight_sums[int(client)] = self.weight_sums.get(int(client), 0.0) + float(weight)
                self.weight_counts[int(client)] += 1
        for client, reason in raw.get("refused", {}).items():
            self.refusals[int(client)] += 1
            self.reasons[int(client)] = printable(reason)
        self._charges.append((array("l", raw.get("charged", ())), int(raw.get("stage", 0))))
        if raw.get("evaluation"):
            self.evaluations.append(raw["evaluation"])
        self.last = {key: raw.get(key, {}) for key in ("weights", "noise_estimated", "noise_planned")}


def _object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file, or nothing while there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _costs(path: Path) -> RoundCosts | None:
    try:
        return RoundCosts.from_json(path.read_bytes())
    except (OSError, HushError):
        return None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
