"""The evaluation of a finished run: all metrics, pooled over the clients' test rows, per client, and of the worst."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from hush.objective.metrics import BASELINES, Answers, baseline, value_of
from hush.objective.objective import Objective


def evaluate_metrics(
    objective: Objective, outputs: Tensor, targets: Tensor, counts: Sequence[int], names: Sequence[str]
) -> dict[str, Any]:
    """Return all metrics of a run.

    Args:
        objective: What was trained for.
        outputs: The outputs for the test rows of all clients, one client after the other.
        targets: Their targets as training sees them.
        counts: The test rows of each client.
        names: What the clients are called in the result.

    Returns:
        `primary` (the name of the score that runs are compared by), `pooled` (name to value over all rows),
        `per_client` (client to name to value), `worst` (the value of the client that fares worst), `mean` (over the
        clients for which a metric is defined), `baseline` (the primary score of the best constant prediction) and
        `notes` (for how many clients, and why, a metric is undefined).
    """
    together = _answers(objective, outputs, targets)
    ends = list(accumulate(counts))
    parts = [
        Answers(
            together.truth[end - count : end],
            together.predicted[end - count : end],
            None if together.probability is None else together.probability[end - count : end],
        )
        for end, count in zip(ends, counts, strict=True)
    ]
    pooled: dict[str, float] = {}
    per_client: dict[str, dict[str, float]] = {name: {} for name in names}
    worst: dict[str, float] = {}
    mean: dict[str, float] = {}
    notes: list[str] = []
    for metric in objective.reported:
        pooled[metric.name], why = value_of(metric, together)
        if why:
            notes.append(f"{metric.label}: undefined ({why})")
        found = [value_of(metric, part) for part in parts]
        for name, (value, _) in zip(names, found, strict=True):
            per_client[name][metric.name] = value
        values = [value for value, _ in found if math.isfinite(value)]
        mean[metric.name] = math.fsum(values) / len(values) if values else math.nan
        if metric.higher_is_better is not None:
            worst[metric.name] = (min if metric.higher_is_better else max)(values, default=math.nan)
        reasons = Counter(reason for _, reason in found if reason)
        if reasons and not why:
            words = "; ".join(f"{number} of {len(parts)} clients: {reason}" for reason, number in reasons.items())
            notes.append(f"{metric.label}: left out of the mean for {words}")
    return {
        "task": objective.task,
        "primary": objective.primary.name,
        "pooled": pooled,
        "mean": mean,
        "worst": worst,
        "per_client": per_client,
        "baseline": {"what": BASELINES[objective.task], "value": baseline(together)},
        "notes": notes,
    }


def _answers(objective: Objective, outputs: Tensor, targets: Tensor) -> Answers:
    probability = objective.probabilities(outputs)
    truth, predicted = objective.truth(targets), objective.predictions(outputs)
    if objective.task == "multilabel":
        truth = truth.long()
    if objective.task == "regression" and truth.ndim == 2 and truth.shape[1] == 1:
        truth = truth[:, 0]
    return Answers(
        truth.cpu().numpy(), predicted.cpu().numpy(), None if probability is None else probability.cpu().numpy()
    )
