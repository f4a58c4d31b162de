"""The objective of a run, from its config, its data and the number of outputs of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hush.config import Config, ObjectiveConfig, code_name
from hush.data.datasets import Dataset
from hush.models import Model
from hush.models.user_loss import user_loss
from hush.objective import (
    METRICS,
    TARGETS,
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    Loss,
    MeanSquaredError,
    Metric,
    Objective,
    TargetBounds,
    TaskName,
    metric_named,
)
from hush.objective.metrics import user_metric
from hush.types import HushError, TargetKind
from hush.user_code import user_code

_KINDS = {"classes": "one class per row", "multilabel": "several labels per row", "continuous": "real numbers"}
_CLASS_LOSSES = ("cross-entropy",)
_REAL_LOSSES = {"mse": MeanSquaredError, "huber": Huber}


def targets_of(config: Config) -> TargetKind | None:
    """Return how the targets of data that the user gave are to be read; none if the values say it."""
    task = config.objective.task
    return None if task == "auto" else TARGETS[task]


def task_of(config: Config, dataset: Dataset) -> TaskName:
    """Return the task that the config names, or that follows from the targets of the data."""
    asked, kind, classes = config.objective.task, dataset.targets, dataset.classes
    if asked == "auto":
        if kind != "classes":
            return "multilabel" if kind == "multilabel" else "regression"
        return "binary" if classes == 2 else "multiclass"
    if TARGETS[asked] != kind:
        raise HushError(
            f'objective.task: "{asked}" needs {_KINDS[TARGETS[asked]]} as targets, the data has {_KINDS[kind]}; '
            f'accepted: another task, or hush.data.clients(..., targets="{TARGETS[asked]}")',
            "objective.task",
        )
    if asked == "binary" and classes != 2:
        raise HushError(
            f'objective.task: "binary" needs two classes, the data has {classes}; accepted: multiclass, auto',
            "objective.task",
        )
    return asked


def outputs_of(task: TaskName, dataset: Dataset) -> int:
    """Return how many numbers a model by name returns for an example: one for each class, label or target."""
    if task == "regression":
        return 1 if dataset.y.ndim == 1 else int(dataset.y.shape[1])
    return dataset.classes


def least_outputs(task: TaskName, dataset: Dataset) -> int:
    """Return how many a user's module must return: two classes may have one logit."""
    return dataset.classes if task == "multiclass" else 1


def with_objective(config: Config, model: Model, dataset: Dataset, task: TaskName) -> Model:
    """Return the model with the objective of the run, or an error that says how both do not fit."""
    asked, expected = config.objective, outputs_of(task, dataset)
    found = _outputs(model, dataset)
    exact = task in ("multilabel", "regression")
    if (exact and found != expected) or (not exact and found < expected and not (task == "binary" and found == 1)):
        wanted = {
            "binary": "1 (one logit) or 2",
            "multilabel": f"{expected}, one for each label",
            "regression": f"{expected}, one for each target",
        }.get(task, f"at least {expected}")
        raise HushError(f"model {model.name}: returns {found} numbers per row for task {task}; accepted: {wanted}")
    bounds = _bounds(asked, task, expected)
    loss = _loss(asked, task, found, dataset.classes)
    metrics = tuple(_metric(each, task) for each in asked.metrics)
    names = [each.name for each in metrics]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise HushError(f"objective.metrics: several are called {twice[0]}; accepted: different names")
    objective = Objective(
        task=task, loss=loss, outputs=found, classes=dataset.classes, bounds=bounds, metrics=metrics,
        class_names=dataset.class_names,
    )  # fmt: skip
    return replace(model, objective=objective)


def own_code(config: ObjectiveConfig) -> dict[str, Any]:
    """Return the user's own functions among loss and metrics, by what they are called in results."""
    given = [config.loss, *config.metrics]
    return {code_name(each): resolve_function(each, "objective") for each in given if callable(each) or ":" in each}


def resolve_function(given: object, key: str) -> Callable[..., Any]:
    """Return a function as it was given, or what `module:function` stands for."""
    if not isinstance(given, str):
        return given  # type: ignore[return-value]
    try:
        found = user_code(given)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HushError(f"{key}: {given!r} cannot be used: {reason}; expected module:function", key) from None
    if not callable(found):
        raise HushError(f"{key}: {given!r} is {type(found).__name__}; expected module:function", key)
    return found  # type: ignore[no-any-return]


@torch.no_grad()
def _outputs(model: Model, dataset: Dataset) -> int:
    """Return the numbers that the model returns for an example."""
    inputs = model.behind(tuple(dataset.x.shape[1:]))
    rows = torch.zeros(1, *inputs) if model.probes is None else model.probes[:1]
    return int(model.logits(model.start, rows).shape[1])


def _loss(asked: ObjectiveConfig, task: TaskName, outputs: int, classes: int) -> Loss:
    name = asked.loss
    if callable(name) or ":" in name:
        function = resolve_function(name, "objective.loss")
        if isinstance(function, type):
            function = function()
        return user_loss(function, code_name(name), task, outputs, classes)
    accepted = tuple(_REAL_LOSSES) if task == "regression" else _CLASS_LOSSES
    if name == "auto":
        name = accepted[0]
    if name not in accepted:
        raise HushError(
            f"objective.loss: found {name!r} for task {task}; accepted: {', '.join(accepted)}, module:function, or a "
            "function in Python",
            "objective.loss",
        )
    if task == "regression":
        return _REAL_LOSSES[name]()
    return BinaryCrossEntropy() if task == "multilabel" or outputs == 1 else CrossEntropy()


def _metric(given: object, task: TaskName) -> Metric:
    if callable(given) or ":" in str(given):
        name = code_name(given).rpartition(":")[2].rpartition(".")[2]
        return user_metric(resolve_function(given, "objective.metrics"), name)
    found = metric_named(str(given))
    if task not in found.tasks:
        accepted = ", ".join(each.name for each in METRICS.values() if task in each.tasks)
        raise HushError(
            f"objective.metrics: {found.name} is not defined for task {task}; accepted: {accepted}",
            "objective.metrics",
        )
    return found


def _bounds(asked: ObjectiveConfig, task: TaskName, targets: int) -> TargetBounds | None:
    given, key = asked.target_bounds, "objective.target_bounds"
    if given is None:
        return None
    if task != "regression":
        raise HushError(f"{key}: given for task {task}; accepted: for regression only", key)
    pairs = [tuple(each) for each in given] if isinstance(given[0], list | tuple) else [tuple(given)] * targets
    if len(pairs) != targets:
        raise HushError(f"{key}: found {len(pairs)} pairs for {targets} targets; accepted: one pair for each", key)
    return TargetBounds(tuple(float(low) for low, _ in pairs), tuple(float(high) for _, high in pairs))
