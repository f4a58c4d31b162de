"""What a task may bring: checked by the member before anything is paid for.

A model and notes, of the shapes that the agreed run has, finite, and none that would have the member say something that
its plan has no noise for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hush.deploy import wire
from hush.deploy.enrolled import Own, width_of
from hush.deploy.wire import Letter
from hush.privacy import limits
from hush.privacy.limits import Limits
from hush.recipes.protect import BELOW
from hush.types import HushError, Task


def checked(own: Own, letter: Letter, number: int, bounds: Limits) -> Task:
    """The task in a letter, or a `HushError`."""
    layout, tensors = own.model.layout, dict(letter.tensors)
    given = tensors.pop("models")
    most = own.recipe.assign.models if own.outline.at(number).choose else 1
    if given.dtype != torch.float32 or given.ndim != 2 or given.shape[1] != layout.size or not 1 <= len(given) <= most:
        raise HushError(f"task: models of shape {tuple(given.shape)}; accepted: up to {most} of {layout.size} numbers")
    notes = {name.removeprefix("notes."): tensor for name, tensor in tensors.items()}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in letter.tensors.values()):
        raise HushError("task: it holds numbers that are not finite")
    stage = own.course.stages[own.outline.of[number]]
    # Asked for a fraction that its plan has no noise for, a member would tell it as it is.
    if ("clip" in notes) != (stage.noise_of(BELOW) > 0):
        raise HushError("task: a clip that the recipe does not send, or none where it sends one")
    if "clip" in notes:
        limits.check(replace(stage.plan, clip=float(notes["clip"])), bounds)
    _check_shapes(own, given, notes)
    if own.centre != (wire.name_of(notes["centre"]) if "centre" in notes else ""):
        raise HushError("task: its centre is not the one that was agreed to")
    return Task(own.client, number, given, layout, own.recipe.project.answer(layout, notes), notes)


def _check_shapes(own: Own, given: Tensor, notes: Mapping[str, Tensor]) -> None:
    size = own.model.layout.size
    accepted: dict[str, tuple[int, ...]] = {"drift": tuple(given.shape), "middle": (size,)}
    if "centre" in notes:
        accepted["centre"] = (width_of(own.model),)
    if "basis" in notes:
        accepted["basis"] = (len(notes["basis"]), size)
    for name, shape in accepted.items():
        if name in notes and tuple(notes[name].shape) != shape:
            raise HushError(f"task: {name} of shape {tuple(notes[name].shape)}; accepted: {shape}")
