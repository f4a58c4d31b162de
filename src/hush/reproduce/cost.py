"""What it costs to run an entry: training examples, and hours of a GPU and minutes of a CPU at measured rates.

An example is one row in one step of one client, forward and backward. The rates are those of this package on one H200
and on one core, for the kinds of models that the tables have; they leave out evaluation and what a recipe asks besides
training, so they are lower limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.config import Config
from hush.reproduce.entry import Cell, Entry
from hush.reproduce.first_round import FIRST_ROUND, UNTRAINED

ROWS: Mapping[str, Mapping[str, int]] = {
    "digits": {"train": 1797, "all": 1797},
    "mnist": {"train": 60000, "all": 70000},
    "fashion-mnist": {"train": 60000, "all": 70000},
    "cifar10": {"train": 50000, "all": 60000},
    "cifar100": {"train": 50000, "all": 60000},
    "emnist47": {"train": 36000, "all": 42000},
    "imdb": {"train": 25000, "all": 50000},
}


@dataclass(frozen=True)
class Rate:
    """Examples per second: on an H200, and on one core."""

    gpu: float
    cpu: float


RATES: Mapping[str, Rate] = {
    "linear": Rate(5e6, 5e5),
    "scattering-linear": Rate(5.5e5, 4e4),
    "mlp": Rate(1e6, 3e4),
    "cnn": Rate(1e6, 6e3),
    "pfa_cnn": Rate(1e5, 4e3),
    "resnet18-gn": Rate(2e4, 40),
    "resnet34-gn": Rate(1e4, 20),
}


@dataclass(frozen=True)
class Cost:
    """Training examples of some runs, and how long they take on one GPU or on one core."""

    examples: float = 0.0
    gpu_hours: float = 0.0
    cpu_minutes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.examples + other.examples, self.gpu_hours + other.gpu_hours, self.cpu_minutes + other.cpu_minutes
        )


def cost(entry: Entry, seeds: int | None = None, cells: Sequence[Cell] | None = None) -> Cost:
    """Return the cost of an entry over its seeds, or over `seeds` of them; of all its cells if none are given."""
    total = Cost()
    for cell in entry.cells if cells is None else cells:
        config = entry.configured(cell, entry.modes[0])
        found, rate = examples(config, entry.metric), RATES[kind(config)]
        total += Cost(found, found / rate.gpu / 3600, found / rate.cpu / 60)
    runs = entry.seeds if seeds is None else seeds
    return Cost(runs * total.examples, runs * total.gpu_hours, runs * total.cpu_minutes)


def examples(config: Config, metric: str) -> float:
    """Return the training examples of one run."""
    rounds = (0 if metric in UNTRAINED else 1) if metric in FIRST_ROUND else config.rounds
    clients, local = config.data.clients, config.local
    everyone = rows(config)
    if local.steps is None:
        return rounds * config.participation * local.epochs * everyone
    batch = local.batch_size if isinstance(local.batch_size, int) else 32
    return rounds * config.participation * clients * local.steps * min(batch, everyone / clients)


def rows(config: Config) -> float:
    """Return the training rows of all clients together."""
    data = config.data
    kept = 1 - data.test_fraction
    if data.name in ("synthetic", "dp-scaffold-users"):
        return kept * data.clients * data.samples
    if isinstance(data.sizes, list):
        return kept * sum(data.sizes)
    if isinstance(data.sizes, int):
        return kept * data.clients * data.sizes
    return kept * ROWS[data.name][data.part]


def kind(config: Config) -> str:
    """Return the kind of model of a config, a key of `RATES`."""
    name: Any = config.model.name.rpartition(":")[2]
    return name if name in RATES else "linear"
