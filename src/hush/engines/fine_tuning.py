"""Fine-tuning: how far the released weights of a pretrained model moved, and whether they beat the frozen model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hush.engines.setup import Federation
from hush.objective.metrics import shown


def frozen_score(
    federation: Federation, models: Tensor, scores: Sequence[float], before: Sequence[float]
) -> dict[str, Any]:
    """Return what a fine-tuned model has to be seen beside.

    Args:
        federation: As it was planned.
        models: The released models, models x p.
        scores: The primary score of each client under them.
        before: The same under the model before training.

    Returns:
        `value` (the mean primary score of the model before training), `trained` (that of the released one), `moved`
        (the norm of the change of the trained parameters, the least over several models), `start` (their norm before
        training), `parameters` (how many are trained) and `frozen` (how many are not).
    """
    start = federation.starts().double()
    trained = set(federation.model.layout.names)
    module = federation.model.module if federation.model.source is None else federation.model.source
    return {
        "what": "the model before training",
        "value": sum(before) / len(before),
        "trained": sum(scores) / len(scores),
        "moved": float(torch.linalg.vector_norm(models.double().cpu() - start, dim=1).min()),
        "start": float(torch.linalg.vector_norm(start, dim=1).max()),
        "parameters": federation.model.layout.size,
        "frozen": sum(value.numel() for name, value in module.named_parameters() if name not in trained),
    }


def fine_tuning_warnings(federation: Federation, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is wrong with a fine-tuned model, in words: it did not move, or it is no better than before."""
    if found["moved"] == 0.0:
        return ("fine-tuning: the released weights are those before training",)
    metric = federation.model.objective.primary
    gain = found["trained"] - found["value"]
    if (gain if metric.higher_is_better else -gain) > 0:
        return ()
    return (
        f"fine-tuning: {metric.label} {shown(metric, found['trained'])} after training and "
        f"{shown(metric, found['value'])} before, so training did not help",
    )
