"""Evaluation on the server's side: figures with standard errors from noised counts, early stopping, choice of a round.

Everything here is computed from what clients released with noise, so it costs no privacy. Counts are unbiased. A
figure is a ratio of them; its standard error is that of the noise alone, by the derivative of the figure, and not that
of sampling the held-out rows. Counts that the noise hides give no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hush.recipes.context import State
from hush.recipes.evaluation import ENTRIES, EVALUATION, Evaluation
from hush.types import Update

_CLEAR = 4.0  # standard deviations of noise that a count must have for a ratio by it
SLOT = "evaluation"
Figures = dict[str, Any]


def evaluated(
    asked: Evaluation, number: int, updates: Sequence[Update], deviations: Tensor, classes: int, loss_clip: float
) -> Figures:
    """Return the figures of a round that evaluated, over all clients and for each; empty if nobody answered.

    `deviations` has the standard deviation of the noise in each entry of a client's counts, by client.
    """
    counted = {u.client: u.side.releases[EVALUATION] for u in updates if EVALUATION in u.side.releases}
    if number not in asked.at or not counted:
        return {}
    spread = {client: float(deviations[client]) for client in counted}
    whole = torch.stack(list(counted.values())).sum(0)
    deviation = math.sqrt(sum(each**2 for each in spread.values()))
    return {
        "model_of_round": number - 1,
        "clients": len(counted),
        **figures(whole, deviation, classes, loss_clip),
        "calibration": _calibration(whole, deviation),
        "per_client": {str(c): figures(counts, spread[c], classes, loss_clip) for c, counts in sorted(counted.items())},
    }


def figures(counts: Tensor, deviation: float, classes: int, loss_clip: float) -> Figures:
    """Return the figures of noised counts, each with its standard error: `NAME` and `NAME_error`."""
    rows = float(counts[0])
    found: Figures = {"rows": rows, "rows_error": deviation}
    wanted: dict[str, Callable[[Tensor], Tensor]] = {}
    if rows > _CLEAR * deviation:
        wanted = {"accuracy": _accuracy, "loss": lambda c: loss_clip * c[2] / c[0], "overconfidence": _overconfidence}
        sides = counts[ENTRIES:].reshape(2, -1)
        least = _CLEAR * deviation * math.sqrt(sides.shape[1])
        if classes == 2:
            wanted["overconfidence"] = _excess
            if float(sides.sum(1).min()) > least:
                wanted["auc"] = _auc
    for name, function in wanted.items():
        value, error = _with_error(function, counts, deviation)
        if math.isfinite(value) and math.isfinite(error):
            found |= {name: value, f"{name}_error": error}
    return found


def _with_error(function: Callable[[Tensor], Tensor], counts: Tensor, deviation: float) -> tuple[float, float]:
    at = counts.double().clone().requires_grad_(True)
    value = function(at)
    (slope,) = torch.autograd.grad(value, at)
    return float(value.detach()), deviation * float(slope.norm())


def _accuracy(counts: Tensor) -> Tensor:
    return counts[1] / counts[0]


def _auc(counts: Tensor) -> Tensor:
    """The probability that a row of class 1 has a higher bin than one of class 0; equal bins count half."""
    zeros, ones = counts[ENTRIES:].reshape(2, -1)
    below = zeros.cumsum(0) - 0.5 * zeros
    found: Tensor = (ones * below).sum() / (zeros.sum() * ones.sum())
    return found


def _centres(bins: int) -> Tensor:
    return (torch.arange(bins, dtype=torch.float64) + 0.5) / bins


def _excess(counts: Tensor) -> Tensor:
    """The mean probability of class 1 minus its frequency."""
    sides = counts[ENTRIES:].reshape(2, -1)
    return ((sides.sum(0) * _centres(sides.shape[1])).sum() - sides[1].sum()) / counts[0]


def _overconfidence(counts: Tensor) -> Tensor:
    """The mean of the largest probability minus the accuracy."""
    return _excess(counts)


def _calibration(counts: Tensor, deviation: float) -> list[Figures]:
    """For each bin of predicted probability: its centre, the rows in it, and the frequency, with errors."""
    sides = counts[ENTRIES:].reshape(2, -1)
    found = []
    for at, centre in enumerate(_centres(sides.shape[1]).tolist()):
        rows, hits = float(sides[:, at].sum()), float(sides[1, at])
        entry: Figures = {"probability": centre, "rows": rows, "rows_error": math.sqrt(2) * deviation}
        if rows > _CLEAR * math.sqrt(2) * deviation:
            rate = hits / rows
            entry |= {"frequency": rate, "frequency_error": deviation * math.hypot(1 - rate, rate) / rows}
        found.append(entry)
    return found


def score_of(asked: Evaluation, found: Mapping[str, Any]) -> float | None:
    """What rounds are compared by, larger is better; None where the noise hides it."""
    value = found.get(asked.metric)
    if value is None:
        return None
    return -float(value) if asked.metric == "loss" else float(value)


def absorbed(asked: Evaluation, state: State, found: Mapping[str, Any], models: Tensor) -> State:
    """Return the state after an evaluation of these models: the best so far, and how many came after it."""
    if not found:
        return state
    score = score_of(asked, found)
    if score is not None and (not state or score > float(state["score"])):
        return {
            "score": torch.tensor([score], dtype=torch.float64),
            "round": torch.tensor([int(found["model_of_round"])]),
            "since": torch.tensor([0]),
            **({"models": models.clone()} if asked.choose == "best" else {}),
        }
    return {**state, "since": state["since"] + 1} if state else state


def stops(asked: Evaluation, state: State) -> str | None:
    """Return why a run ends early, or None."""
    if not asked.patience or not state or int(state["since"]) < asked.patience:
        return None
    since, last = int(state["since"]), int(state["round"])
    return f"early stopping: {since} evaluations in a row were not better than that of the model after round {last}"


def chosen(asked: Evaluation, state: State) -> Tensor | None:
    """Return the models with the best evaluation, where they are to be released; None for those of the last round."""
    return state.get("models") if asked.choose == "best" else None
