"""Federated learning in which every participant sets its own privacy budget."""

import importlib
from typing import TYPE_CHECKING, Any

from hush.api import audit, compare, measure, plan, preview, simulate, sweep
from hush.types import (
    Guarantee,
    HushError,
    Layout,
    NothingTrainedError,
    Policy,
    Release,
    RunInterrupted,
    RunResult,
    TaskExtras,
)

if TYPE_CHECKING:
    from hush import data as data
    from hush.callbacks import Callback, RunStart
    from hush.estimators import FederatedClassifier, FederatedRegressor
    from hush.fit_result import FitResult
    from hush.models.adapters import lora
    from hush.privacy.schedule import RoundSpec
    from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
    from hush.private_trainer import PrivateTrainer, TrainedRound
    from hush.recipes.context import RoundView, ServerRng, State, Weights
    from hush.recipes.interfaces import Assign, Extra, LocalRule, Project, Protect, ServerStep, TaskShape, Weight
    from hush.recipes.recipe import Recipe
    from hush.simulation import Simulation
    from hush.table import Table
    from hush.trained_model import TrainedModel, load

__version__ = "0.1.0"
__all__ = [
    "Assign",
    "Callback",
    "Extra",
    "FederatedClassifier",
    "FederatedRegressor",
    "FitResult",
    "Guarantee",
    "HushError",
    "Layout",
    "LocalRule",
    "NothingTrainedError",
    "Policy",
    "PrivateTrainer",
    "Project",
    "Protect",
    "Recipe",
    "Release",
    "ReleaseShape",
    "RoundSpec",
    "RoundView",
    "RowModel",
    "RunInterrupted",
    "RunResult",
    "RunStart",
    "ServerRng",
    "ServerStep",
    "SideRelease",
    "Simulation",
    "State",
    "Table",
    "TaskExtras",
    "TaskShape",
    "TrainedModel",
    "TrainedRound",
    "Weight",
    "Weights",
    "__version__",
    "audit",
    "compare",
    "load",
    "lora",
    "measure",
    "plan",
    "preview",
    "simulate",
    "sweep",
]

# Imported when they are first asked for, so that `import hush` stays quick.
_LAZY = {
    **dict.fromkeys(("FederatedClassifier", "FederatedRegressor"), "hush.estimators"),
    **dict.fromkeys(("PrivateTrainer", "TrainedRound"), "hush.private_trainer"),
    "RoundSpec": "hush.privacy.schedule",
    **dict.fromkeys(("ReleaseShape", "RowModel", "SideRelease"), "hush.privacy.side_release"),
    **dict.fromkeys(("RoundView", "ServerRng", "State", "Weights"), "hush.recipes.context"),
    **dict.fromkeys(
        ("Assign", "Extra", "LocalRule", "Project", "Protect", "ServerStep", "TaskShape", "Weight"),
        "hush.recipes.interfaces",
    ),
    **dict.fromkeys(("Callback", "RunStart"), "hush.callbacks"),
    "FitResult": "hush.fit_result",
    "lora": "hush.models.adapters",
    "Recipe": "hush.recipes.recipe",
    "Simulation": "hush.simulation",
    "Table": "hush.table",
    **dict.fromkeys(("TrainedModel", "load"), "hush.trained_model"),
}


def __getattr__(name: str) -> Any:
    """`hush.data`, and the names that a user's own option needs."""
    if name == "data":
        return importlib.import_module("hush.data")
    if name in _LAZY:
        return vars(importlib.import_module(_LAZY[name]))[name]
    raise AttributeError(f"module 'hush' has no attribute {name!r}")
