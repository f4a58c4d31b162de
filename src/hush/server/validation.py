"""Validation of incoming updates. An invalid update excludes its sender from the round and never ends the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from hush.privacy.schedule import RoundSpec
from hush.privacy.side_release import ReleaseShape
from hush.types import SideAnswers, Task, Update

_ORDINARY = RoundSpec()
_UNKNOWN = ReleaseShape(inputs=(), classes=0, parameters=0)


def validate(
    tasks: Sequence[Task],
    updates: Sequence[Update],
    spec: RoundSpec = _ORDINARY,
    shape: ReleaseShape = _UNKNOWN,
    bounds: Mapping[int, float] | None = None,
    side_bounds: Mapping[int, Mapping[str, float]] | None = None,
) -> tuple[list[Update], Mapping[int, str]]:
    """Return the valid updates in order of client number, and the reason why each of the others is rejected.

    `spec` is what the round asks. `bounds` is the maximum norm of each client's vector (clipped steps and a quantile of
    the noise), `side_bounds` that of its side releases, by name.
    """
    asked = {task.client: task for task in tasks}
    accepted: dict[int, Update] = {}
    refused: dict[int, str] = {}
    for update in updates:
        task = asked.get(update.client)
        if task is None:
            reason: str | None = "not invited in this round"
        else:
            longest = (side_bounds or {}).get(update.client, {})
            reason = _fault(task, update, (bounds or {}).get(update.client, math.inf))
            reason = reason or _side_fault(update.side, len(task.models), spec, shape, longest)
        if reason is None and update.client in accepted:
            reason = "a second update in the same round"
        elif reason is None:
            accepted[update.client] = update
            continue
        refused[update.client] = str(reason)
    missing = {client: "no update" for client in asked if client not in accepted and client not in refused}
    return [accepted[client] for client in sorted(accepted)], {**refused, **missing}


def _fault(task: Task, update: Update, bound: float) -> str | None:
    if update.round != task.round:
        return f"answers round {update.round}, not {task.round}"
    if (update.receipt.client, update.receipt.round) != (update.client, update.round):
        return "its receipt is for another client or round"
    if update.layout != task.answer or _shape(update) != (task.answer.size,):
        return "its layout is not the requested one"
    dtype = str(update.vector.dtype) if update.vector_facts is None else update.vector_facts.dtype
    if dtype != str(torch.float32):
        return f"its dtype is {dtype}, not float32"
    # The norm of finite float32 numbers is finite in float64: one pass, and no copy.
    norm = _norm(update.vector) if update.vector_facts is None else update.vector_facts.norm
    if not math.isfinite(norm):
        return "it contains values that are not finite"
    if norm > bound:
        return f"its norm exceeds the {bound:.4g} that its plan allows"
    return None


def _shape(update: Update) -> tuple[int, ...]:
    return tuple(update.vector.shape) if update.vector_facts is None else (update.vector_facts.size,)


def _side_fault(
    side: SideAnswers, models: int, spec: RoundSpec, shape: ReleaseShape, longest: Mapping[str, float]
) -> str | None:
    if spec.choose and side.choice not in range(models):
        return f"its choice is not one of the {models} models"
    if not spec.choose and side.choice is not None:
        return "it chooses a model although no choice was requested"
    if set(side.releases) - {release.what for release in spec.sent}:
        return "it has side releases that were not requested"
    faults = (r.fault(side.releases.get(r.what), shape, longest.get(r.what, math.inf)) for r in spec.sent)
    return next((fault for fault in faults if fault is not None), None)


def _norm(vector: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
