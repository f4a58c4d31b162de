"""What the papers measure, from finished runs: each a function from a run to numbers by name.

The empty name is the measure of a table that has only one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hush.config import Config
from hush.recipes.weigh import Balanced, EstimatedNoise
from hush.server.loop import enrolled
from hush.types import HushError, RoundRecord, RunResult, unknown

if TYPE_CHECKING:
    from hush.engines.federation import Federation

Numbers = dict[str, float]


@dataclass(frozen=True)
class Done:
    """A finished run: its outcome, its rounds, where it lies, and where the data do."""

    config: Config
    result: RunResult
    rounds: Sequence[RoundRecord]
    path: Path
    data: str | None


def accuracy(done: Done) -> Numbers:
    """Mean over clients, each on its own test rows, after the last round, in per cent."""
    return {"": 100 * done.result.accuracy["mean"]}


def tail_accuracy(done: Done) -> Numbers:
    """The same, averaged over the last tenth of the rounds."""
    last = done.rounds[-max(1, len(done.rounds) // 10) :]
    return {"": 100 * statistics.fmean(statistics.fmean(record.accuracy_per_client) for record in last)}


def client_spread(done: Done) -> Numbers:
    """Standard deviation of the clients' accuracies, and the accuracy of the one with the least data."""
    result = done.result
    least = min(result.guarantees, key=lambda card: card.samples).client
    return {
        "": 100 * statistics.pstdev(result.accuracy_per_client),
        "accuracy of the smallest client": 100 * result.accuracy_per_client[least],
    }


def groups(done: Done) -> Numbers:
    """Accuracy of all clients, of those in the larger clusters, and of those in the smallest."""
    found = done.result.accuracy
    return {
        "accuracy all": 100 * found["mean"],
        "accuracy majority": 100 * found["majority"],
        "accuracy minority": 100 * found["minority"],
    }


def fairness(done: Done) -> Numbers:
    """RC-DPFL's four: how unevenly privacy costs, the worst client, and the gap between the best and the worst."""
    from hush.engines.measures import measure_run

    found = measure_run(done.path, done.data)
    return {
        "F_acc": 100 * found["F_acc"],
        "F_loss": found["F_loss"],
        "worst client accuracy": 100 * found["worst"],
        "max accuracy gap": 100 * found["disparity"],
    }


def loss(done: Done) -> Numbers:
    """The mean test loss after the last round, and after each tenth of them."""
    return {"": done.result.loss, **{f"round {r.round}": r.loss for r in _tenths(done.rounds)}}


def accuracies(done: Done) -> Numbers:
    """The mean accuracy after the last round in per cent, and after each tenth of them: a curve."""
    means = {f"round {r.round}": 100 * statistics.fmean(r.accuracy_per_client) for r in _tenths(done.rounds)}
    return {"": 100 * done.result.accuracy["mean"], **means}


def loss_gap(done: Done) -> Numbers:
    """DP-SCAFFOLD's figures: the logarithm of how far the training loss is above the least there is."""
    from hush.engines.measures import measure_run

    found = measure_run(done.path, done.data)
    return {
        "": found["log10_train_loss_gap"],
        "test accuracy": 100 * done.result.accuracy["mean"],
        "gradient dissimilarity": found["gradient_log_dissimilarity"],
    }


def bytes_up(done: Done) -> Numbers:
    """Accuracy, and what all clients sent in all rounds, in MiB."""
    sent = sum(record.bytes_up for record in done.rounds) / 2**20
    return {"": 100 * done.result.accuracy["mean"], "uplink MiB": sent}


def _tenths(rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    step = math.ceil(len(rounds) / 10)
    return rounds[step - 1 :: step]


METRICS: Mapping[str, Callable[[Done], Numbers]] = {
    "accuracy": accuracy,
    "tail-accuracy": tail_accuracy,
    "client-spread": client_spread,
    "groups": groups,
    "fairness": fairness,
    "loss": loss,
    "accuracy-curve": accuracies,
    "loss-gap": loss_gap,
    "bytes": bytes_up,
}


def metric(name: str) -> Callable[[Done], Numbers]:
    """One of them by name."""
    if name not in METRICS:
        raise unknown("metric", "metric", name, [*METRICS, FIRST])
    return METRICS[name]


FIRST = "first-round-noise"


def first_round_noise(config: Config, data: str | None) -> Numbers:
    """Robust-HDP's table 3: the noise variance in one parameter of the first round's aggregate, over lr squared."""
    from hush.engines.federation import prepare

    federation = prepare(config, root=data)
    weights, noise = _heard(federation) if _listens(federation.recipe.weigh) else _foreseen(federation)
    energy = sum(weight**2 * each for weight, each in zip(weights, noise, strict=True))
    return {"": energy / (federation.model.layout.size * federation.config.local.lr**2)}


def _listens(weigh: object) -> bool:
    """Whether weights depend on the updates, so that a round must be trained to know them."""
    return isinstance(weigh, Balanced) or (isinstance(weigh, EstimatedNoise) and weigh.estimator != "declared")


def _foreseen(federation: Federation) -> tuple[list[float], list[float]]:
    view = enrolled(federation.terms)
    return federation.recipe.weigh.foreseen(view).tolist(), view.planned_noise.tolist()


def _heard(federation: Federation) -> tuple[list[float], list[float]]:
    """The weights of the first round, trained, and the noise that was planned in each update."""
    from hush.engines import cohort
    from hush.engines.together import train_together

    kept: list[RoundRecord] = []
    one = cohort.execution(federation, progress=kept.append)
    asked = next(one)
    try:
        one.send(train_together([asked])[0])
    except StopIteration:
        pass
    finally:
        one.close()
    if not kept:
        raise HushError("the first round brought nothing")
    weights = kept[0].weights
    return list(weights.values()), [kept[0].noise_planned[client] for client in weights]
