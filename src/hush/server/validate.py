"""The only gate for what comes in. A bad update costs its sender the round, never the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from hush.types import Task, Update


def validate(
    tasks: Sequence[Task],
    updates: Sequence[Update],
    choosing: bool = False,
    bounds: Mapping[int, float] | None = None,
) -> tuple[list[Update], Mapping[int, str]]:
    """The updates that may be used, in order of client number, and why each of the others may not.

    `choosing` says whether clients were asked which of the models they were sent fits best, `bounds` how long an answer
    of each can be: clipped steps and a quantile of the noise.
    """
    asked = {task.client: task for task in tasks}
    accepted: dict[int, Update] = {}
    refused: dict[int, str] = {}
    for update in updates:
        bound = (bounds or {}).get(update.client, math.inf)
        reason = _fault(asked.get(update.client), update, choosing, bound)
        if reason is None and update.client in accepted:
            reason = "a second update in the same round"
        elif reason is None:
            accepted[update.client] = update
            continue
        refused[update.client] = str(reason)
    missing = {client: "no update" for client in asked if client not in accepted and client not in refused}
    return [accepted[client] for client in sorted(accepted)], {**refused, **missing}


def _fault(task: Task | None, update: Update, choosing: bool, bound: float) -> str | None:
    if task is None:
        return "not asked in this round"
    if update.round != task.round:
        return f"answers round {update.round}, not {task.round}"
    if (update.receipt.client, update.receipt.round) != (update.client, update.round):
        return "its receipt is for another client or round"
    if update.layout != task.answer or tuple(update.vector.shape) != (task.answer.size,):
        return "its layout is not the one asked for"
    if update.vector.dtype != torch.float32:
        return f"its numbers are {update.vector.dtype}, not float32"
    if not bool(torch.isfinite(update.vector).all()):
        return "it holds numbers that are not finite"
    if float(update.vector.double().norm()) > bound:
        return f"its norm is beyond the {bound:.4g} that its plan can reach"
    if not all(math.isfinite(note) for note in update.notes.values()):
        return "its notes are not finite"
    if choosing and update.notes.get("choice") not in range(len(task.models)):
        return f"its choice is not one of the {len(task.models)} models"
    if not choosing and "choice" in update.notes:
        return "it chooses a model, and was not asked to"
    return None
