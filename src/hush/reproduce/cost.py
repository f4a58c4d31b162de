"""What it costs to run an entry: training examples, and hours of a GPU and minutes of a CPU at measured rates.

An example is one row in one step of one client, forward and backward. The rates are those of this package on one H200
and on one core, for the kinds of models that the tables have; they leave out evaluation and what a recipe asks besides
training, so they are lower limits.

Linear models and multilayer perceptrons take time for each step of a client as well, in proportion to their parameters,
which are clipped, noised and moved: with batches of 8 rows that is most of it. `Steps` has both parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hush.config import Config
from hush.data.imdb import FEATURES
from hush.reproduce.entry import Cell, Entry
from hush.reproduce.first_round import FIRST_ROUND, UNTRAINED
from hush.reproduce.measures import CLASSES

ROWS: Mapping[str, Mapping[str, int]] = {
    "digits": {"train": 1797, "all": 1797},
    "mnist": {"train": 60000, "all": 70000},
    "fashion-mnist": {"train": 60000, "all": 70000},
    "cifar10": {"train": 50000, "all": 60000},
    "cifar100": {"train": 50000, "all": 60000},
    "emnist47": {"train": 36000, "all": 42000},
    "imdb": {"train": 25000, "all": 50000},
}


WIDTH: Mapping[str, int] = {
    "digits": 64, "mnist": 784, "fashion-mnist": 784, "emnist47": 784, "cifar10": 3072, "cifar100": 3072,
    "imdb": FEATURES, "synthetic": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Rate:
    """Examples per second: on an H200, and on one core."""

    gpu: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds on one core: of a step of a client for each parameter, of an example, and of it for each parameter.

    Fitted on 19 November 2026 to the first rounds of pfa/figure-3 (7,850 parameters, batches of 8: 57,000 examples/s),
    dp-scaffold/figure-1 (410, 800: 3.3 M/s), figure-2 (36,895 and 159,010, 168 and 160: 183,000 and 51,000 /s) and
    padpfl/scenario-1 (25,450, 10: 25,000 /s): within 1.5 times of each; dp-scaffold/figure-10 takes 2.6 times as long.
    """

    parameter: float = 12e-9
    example: float = 3e-7
    product: float = 8e-11

    def seconds(self, steps: float, examples: float, parameters: int) -> float:
        """Return the seconds of that many steps with that many examples in all."""
        return steps * self.parameter * parameters + examples * (self.example + self.product * parameters)


STEPS = Steps()
# 45 runs in lockstep on one H200 train 612 million examples/s of a model of 410 parameters in batches of 800 rows
# (results/bench/h200-linear.json). Larger models: in proportion. One step takes 80 microseconds at least.
LOCKSTEP, LATENCY = 6.1e8 * 410, 8e-5

# A GPU rate for linear models, and CPU rates for these and for perceptrons, follow from steps and parameters instead.
RATES: Mapping[str, Rate] = {
    "linear": Rate(LOCKSTEP, 0),
    "scattering-linear": Rate(5.5e5, 4.8e4),
    "mlp": Rate(1e6, 0),
    "cnn": Rate(1e6, 3.6e3),
    "pfa_cnn": Rate(1e5, 4.6e3),
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
        found = examples(config, entry.metric)
        gpu, cpu = seconds(config, entry.metric)
        total += Cost(found, gpu / 3600, cpu / 60)
    runs = entry.seeds if seeds is None else seeds
    return Cost(runs * total.examples, runs * total.gpu_hours, runs * total.cpu_minutes)


def seconds(config: Config, metric: str) -> tuple[float, float]:
    """Return how long one run takes on a GPU, and on one core."""
    found, rate = examples(config, metric), RATES[kind(config)]
    if rate.cpu:
        return found / rate.gpu, found / rate.cpu
    size, taken = parameters(config), steps(config, metric)
    on_cpu = STEPS.seconds(taken, found, size)
    if kind(config) != "linear":
        return found / rate.gpu, on_cpu
    together = config.participation * config.data.clients
    return found * size / rate.gpu + LATENCY * taken / together, on_cpu


def examples(config: Config, metric: str) -> float:
    """Return the training examples of one run."""
    clients, local = config.data.clients, config.local
    everyone = rows(config)
    if metric == "first-round-clusters":
        # A full batch, with all copies of each row.
        assign = config.recipe.get("assign")
        return everyone * (assign.get("copies", 1) if isinstance(assign, Mapping) else 1)
    if local.steps is None:
        return _rounds(config, metric) * config.participation * local.epochs * everyone
    return steps(config, metric) * min(_batch(config), everyone / clients)


def steps(config: Config, metric: str) -> float:
    """Return the steps of all clients in one run."""
    clients, local = config.data.clients, config.local
    taken = _rounds(config, metric) * config.participation * clients
    if metric == "first-round-clusters":
        return taken
    if local.steps is not None:
        return taken * local.steps
    return taken * local.epochs * max(1.0, rows(config) / clients / _batch(config))


def _rounds(config: Config, metric: str) -> int:
    return (0 if metric in UNTRAINED else 1) if metric in FIRST_ROUND else config.rounds


def _batch(config: Config) -> int:
    return config.local.batch_size if isinstance(config.local.batch_size, int) else 32


def parameters(config: Config) -> int:
    """Return the parameters of a linear model or a perceptron on the rows of a config."""
    width = WIDTH.get(config.data.name, WIDTH["synthetic"])
    classes = CLASSES.get(config.data.name, CLASSES["synthetic"])
    if kind(config) != "mlp":
        return (width + 1) * classes
    hidden = config.model.hidden
    return (width + 1) * hidden + (hidden + 1) * classes


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
