"""Metrics of the papers, from finished runs: each is a function from a run to numbers by name.

The empty name is the measure of a table that has only one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hush.config import Config
from hush.reproduce.first_round import FIRST_ROUND, Numbers, matched_share
from hush.server.run_directory import RunDir
from hush.types import HushError, RoundRecord, RunResult, unknown


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its result, its rounds, its directory, and the data directory."""

    config: Config
    result: RunResult
    rounds: Sequence[RoundRecord]
    path: Path
    data: str | None


def accuracy(done: FinishedRun) -> Numbers:
    """Return the mean over clients, each on its own test rows, after the last round, in percent."""
    return {"": 100 * done.result.accuracy["mean"]}


def tail_accuracy(done: FinishedRun) -> Numbers:
    """Return the same, averaged over the last tenth of the rounds."""
    last = done.rounds[-max(1, len(done.rounds) // 10) :]
    return {"": 100 * statistics.fmean(statistics.fmean(record.accuracy_per_client) for record in last)}


def client_spread(done: FinishedRun) -> Numbers:
    """Return the sample standard deviation of the clients' accuracies, and the accuracy at the least data."""
    result = done.result
    least = min(result.guarantees, key=lambda card: card.samples).client
    return {
        "": 100 * statistics.stdev(result.accuracy_per_client),
        "accuracy of the smallest client": 100 * result.accuracy_per_client[least],
    }


def groups(done: FinishedRun) -> Numbers:
    """Return the accuracy of all clients, of those in the larger clusters, and of those in the smallest."""
    found = done.result.accuracy
    return {
        "accuracy all": 100 * found["mean"],
        "accuracy majority": 100 * found["majority"],
        "accuracy minority": 100 * found["minority"],
    }


def fairness(done: FinishedRun) -> Numbers:
    """Return RC-DPFL's four: how unevenly privacy costs, the worst client, and the gap between best and worst."""
    from hush.reproduce.central import costs

    lost, gained = costs(done.config, done.path, done.data)
    each = done.result.accuracy_per_client
    return {
        "F_acc": 100 * (max(lost) - min(lost)),
        "F_loss": max(gained) - min(gained),
        "worst client accuracy": 100 * min(each),
        "max accuracy gap": 100 * (max(each) - min(each)),
    }


def clustering(done: FinishedRun) -> Numbers:
    """Return RC-DPFL's success rate of clustering in percent: of the last round, and its mean from round 2 on."""
    from hush.engines.setup import prepare

    truth = {member.client: member.group for member in prepare(done.config, root=done.data).members}
    found = [100 * matched_share(record.placed, truth) for record in done.rounds[1:] if record.placed]
    if not found:
        raise HushError(
            "metric: clustering needs a recipe with several models and two rounds; accepted: another metric"
        )
    return {"": found[-1], "mean over rounds": statistics.fmean(found)}


def loss(done: FinishedRun) -> Numbers:
    """Return the mean test loss after the last round, and after each tenth of the rounds."""
    return {"": done.result.loss, **{f"round {r.round}": r.loss for r in _tenths(done.rounds)}}


def clean_loss(done: FinishedRun) -> Numbers:
    """Return the final model's loss on clean rows that no client trained on, and PADPFL's global loss (equation 1).

    Equation 1 weighs each client's loss on its own training rows, noisy as they are, by its impact factor.
    """
    import numpy as np
    import torch
    from torch.nn import functional

    from hush.data.client_rows import divide
    from hush.engines.metrics import rows_of
    from hush.engines.setup import load, prepare

    kept = RunDir(done.path).restore()
    if kept is None:
        raise HushError(f"{done.path}: no round has finished yet; nothing to measure")
    config, data = done.config, load(done.config, done.data)
    clients = divide(data.dataset, config.data, config.seed)
    fresh = np.setdiff1d(np.arange(len(data.dataset.y)), np.concatenate(clients.train))
    x, y = torch.from_numpy(data.dataset.x[fresh]), torch.from_numpy(data.dataset.y[fresh])
    federation, vector = prepare(config, dataset=data), kept[0].released[0]
    logits = torch.cat([federation.model.logits(vector, part) for part in x.split(4096)])
    rows, weights = rows_of(federation, config.rounds), done.rounds[-1].weights
    own = [functional.cross_entropy(federation.model.logits(vector.double(), each.x), each.y) for each in rows]
    return {
        "": float(functional.cross_entropy(logits, y)),
        "accuracy (%)": 100 * float((logits.argmax(1) == y).double().mean()),
        "loss of equation 1": sum(weight * float(own[client]) for client, weight in weights.items()),
    }


def accuracies(done: FinishedRun) -> Numbers:
    """Return the mean accuracy in percent after the last round, and after each tenth of the rounds."""
    return {"": 100 * done.result.accuracy["mean"], **course(done.rounds)}


def course(rounds: Sequence[RoundRecord]) -> Numbers:
    """Return the mean accuracy after each tenth of the rounds, in percent."""
    return {f"round {r.round}": 100 * statistics.fmean(r.accuracy_per_client) for r in _tenths(rounds)}


def loss_gap(done: FinishedRun) -> Numbers:
    """Return DP-SCAFFOLD's figures: the logarithm of the training loss above its minimum."""
    import torch

    from hush.engines.metrics import Rows, optimum, rows_of
    from hush.engines.setup import prepare
    from hush.reproduce.cache import cached, table_file

    kept = RunDir(done.path).restore()
    if kept is None:
        raise HushError(f"{done.path}: no round has finished yet; nothing to measure")
    federation, decay = prepare(done.config, root=done.data), done.config.local.weight_decay
    rows = rows_of(federation, done.config.rounds)

    def objective(vector: torch.Tensor) -> float:
        logits = [federation.model.logits(vector.double(), each.x) for each in rows]
        losses = [torch.nn.functional.cross_entropy(out, each.y) for out, each in zip(logits, rows, strict=True)]
        return float(torch.stack(losses).mean() + 0.5 * decay * vector.double().square().sum())

    def least() -> float:
        # If all clients have equally many rows, the mean over clients is the mean over rows: one batch instead of a
        # hundred.
        alike = len({len(each.y) for each in rows}) == 1
        parts = zip(*((r.x, r.y, r.test_x, r.test_y) for r in rows), strict=True)
        return objective(optimum(federation.model, [Rows(*map(torch.cat, parts))] if alike else rows, decay))

    best = cached(table_file(done.path, "least-loss.json"), done.config, compute=least)
    gap = objective(kept[0].released[0]) - best
    return {
        "": math.log10(gap) if gap > 0 else -math.inf,
        "test accuracy": 100 * done.result.accuracy["mean"],
    }


def bytes_up(done: FinishedRun) -> Numbers:
    """Return accuracy, and the total uplink of all clients in MiB."""
    sent = sum(record.bytes_up for record in done.rounds) / 2**20
    return {"": 100 * done.result.accuracy["mean"], "uplink MiB": sent}


def _tenths(rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    step = math.ceil(len(rounds) / 10)
    return rounds[step - 1 :: step]


METRICS: Mapping[str, Callable[[FinishedRun], Numbers]] = {
    "accuracy": accuracy,
    "tail-accuracy": tail_accuracy,
    "client-spread": client_spread,
    "groups": groups,
    "fairness": fairness,
    "clustering": clustering,
    "loss": loss,
    "clean-loss": clean_loss,
    "accuracy-curve": accuracies,
    "loss-gap": loss_gap,
    "bytes": bytes_up,
}


def metric(name: str) -> Callable[[FinishedRun], Numbers]:
    """Return a metric by name."""
    if name not in METRICS:
        raise unknown("metric", "metric", name, [*METRICS, *FIRST_ROUND])
    return METRICS[name]


FIRST = "first-round-noise"
