"""The names that a config can use, each with a hint in one line."""

from __future__ import annotations

import inspect
from typing import Any

from hush import models
from hush.config import LOSSES
from hush.data import budgets, datasets, partition
from hush.data.distributions import DISTRIBUTIONS, ROBUST_HDP, in_words
from hush.objective import METRICS, TARGETS
from hush.recipes import SLOTS, SUMMARIES

MODELS = {
    "cnn": "two convolutions with pooling, two linear layers; for images",
    "logreg": "one linear layer: the fastest, and often the best at strict budgets",
    "mlp": "one hidden layer of model.hidden units",
    "resnet18-gn": "ResNet-18 with group normalisation, for colour images",
    "resnet34-gn": "ResNet-34 with group normalisation, for colour images",
    "scattering-linear": "fixed scattering features of images, and one linear layer",
}
TASKS = {
    "binary": "one of two classes",
    "multiclass": "one of several classes",
    "multilabel": "any of several labels",
    "regression": "real numbers",
}
LOSS_HINTS = {
    "cross-entropy": "of classes or labels",
    "mse": "squared error of real numbers",
    "huber": "squared for small errors and linear for large ones",
}
DATASETS = {
    "digits": "1,797 images of digits, 8 x 8; built in",
    "synthetic": "classes that differ between clients by alpha and beta; made",
    "dp-scaffold-users": "the synthetic users of the DP-SCAFFOLD paper; made",
    "mnist": "70,000 images of digits, 28 x 28",
    "fashion-mnist": "70,000 images of clothes, 28 x 28",
    "cifar10": "60,000 colour images of ten classes, 32 x 32",
    "cifar100": "60,000 colour images of a hundred classes, 32 x 32",
    "emnist47": "131,600 images of letters and digits, 28 x 28",
    "imdb": "50,000 film reviews, good or bad",
}
PARTITIONS = {
    "iid": "rows at random",
    "dirichlet": "shares of each class by a Dirichlet distribution: small alpha, few classes per client",
    "shards": "a few shards of rows sorted by class",
    "similarity": "a part of the rows at random, the others sorted by class",
    "owner": "the natural clients of the dataset",
    "rotation": "images of each cluster of clients turned by another angle",
    "label-flip": "labels of each cluster of clients shifted",
    "quality": "noise, blur or wrong labels at some clients",
}


def catalogue() -> dict[str, dict[str, Any]]:
    """Return recipes, options of slots, models, tasks, losses, metrics, datasets, partitions, budgets, with hints."""
    return {
        "recipes": dict(SUMMARIES),
        "slots": {slot: {rule: hint(option) for rule, option in rules.items()} for slot, rules in SLOTS.items()},
        "models": {name: MODELS.get(name, "") for name in models.names()},
        "tasks": {name: TASKS[name] for name in TARGETS},
        "losses": {name: LOSS_HINTS[name] for name in LOSSES if name != "auto"},
        "metrics": {name: f"{metric.label}, for {', '.join(metric.tasks)}" for name, metric in METRICS.items()},
        "datasets": {name: DATASETS[name] for name in datasets.NAMES},
        "partitions": {name: PARTITIONS[name] for name in partition.NAMES},
        "budgets": {name: _budget(name) for name in budgets.distribution_names()},
    }


def hint(option: object) -> str:
    """Return the first sentence of an option's documentation."""
    return (inspect.getdoc(option) or "").split("\n\n", 1)[0].replace("\n", " ").strip()


def _budget(name: str) -> str:
    if name in DISTRIBUTIONS:
        return in_words(DISTRIBUTIONS[name])
    return f"the values that the Robust-HDP paper drew from {in_words(ROBUST_HDP[name.partition(':')[2]])}"
