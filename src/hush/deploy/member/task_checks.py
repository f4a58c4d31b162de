"""Checks of a task, made by the member before anything is charged.

The header of a message must announce models and the extras that the recipe declares (`Recipe.extras`) before anything
is decoded. Then all values must be finite, and the plan must have noise for every release that is asked for.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from hush.deploy.shared.extras import EXTRAS, unpacked
from hush.deploy.shared.run_spec import MemberSpec, width_of
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.privacy import limits
from hush.privacy.limits import Limits
from hush.recipes.interfaces import TaskShape
from hush.types import HushError, Task

# Weights that cancel each other in a layer leave rounding errors, multiplied by the weights. The last digits of a row's
# output may depend on its batch: with weights of 1e7 or more, one row moved a sum by 1.3 clips.
LARGEST_WEIGHT = 65_536.0
_MODELS = "models"


def check_header(own: MemberSpec, number: int, found: messages.Spec) -> None:
    """Raise a `HushError` unless the header of a task announces models and the recipe's extras, and nothing else."""
    size = own.model.layout.size
    most = own.recipe.assign.models if own.stage_table.at(number).choose else 1
    dtype, shape = found.get(_MODELS, ("", ()))
    sent = "F16" if own.config.engine.transport == "float16" else "F32"
    if dtype != sent or len(shape) != 2 or shape[1] != size or not 1 <= shape[0] <= most:
        raise HushError(
            f"task: models of type {dtype} and shape {shape}; accepted: {sent}, up to {most} of {size} numbers"
        )
    inputs = width_of(own.model) if own.centre else 0
    extras = own.recipe.extras(TaskShape(size, shape[0], inputs))
    given = {name.removeprefix(EXTRAS): spec for name, spec in found.items() if name != _MODELS}
    if unknown := sorted(set(given) - set(extras)):
        raise HushError(
            f"task: {', '.join(unknown)[:100]}: not used by the recipe; accepted: {', '.join(extras) or 'none'}"
        )
    if missing := sorted(name for name, extra in extras.items() if extra.always and name not in given):
        raise HushError(f"task: no {', '.join(missing)}, which the recipe requires")
    for name, spec in given.items():
        if spec != (extras[name].dtype, extras[name].shape):
            raise HushError(f"task: {name} of {spec}; accepted: {(extras[name].dtype, extras[name].shape)}")


def checked(own: MemberSpec, message: Message, number: int, bounds: Limits) -> Task:
    """Return the task in a message whose header was checked, or raise a `HushError`."""
    layout, tensors = own.model.layout, dict(message.tensors)
    given = tensors.pop(_MODELS).float()
    extras = unpacked({name.removeprefix(EXTRAS): tensor for name, tensor in tensors.items()})
    # One pass without a copy; a value that is not finite shows in the extremes.
    extremes = {name: _extremes(tensor) for name, tensor in message.tensors.items()}
    if not all(map(math.isfinite, extremes.values())):
        raise HushError("task: it contains values that are not finite")
    if extremes[_MODELS] > LARGEST_WEIGHT:
        raise HushError(f"task: a model with weights above {LARGEST_WEIGHT:g}")
    stage = own.schedule.stages[own.stage_table.of[number]]
    # A member would release a sum without noise if its plan had no noise for it.
    if any(stage.noise_of(release.what) <= 0 for release in stage.spec.side_releases):
        raise HushError("task: this round asks for a release that the plan has no noise for")
    if extras.clip is not None:
        limits.check(replace(stage.plan, clip=extras.clip), bounds)
    own.recipe.project.check_received(extras)
    if own.centre != (messages.name_of(extras.input_mean) if extras.input_mean is not None else ""):
        raise HushError("task: its input mean is not the one that was agreed to")
    return Task(
        client=own.client,
        round=number,
        models=given,
        layout=layout,
        answer=own.recipe.project.answer(layout, extras),
        extras=extras,
    )


def _extremes(tensor: Tensor) -> float:
    """The largest absolute value, or one that is not finite if there is any."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)
    return max(abs(float(low)), abs(float(high)), key=lambda value: math.inf if math.isnan(value) else value)
