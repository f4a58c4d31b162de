"""The extras of a task, packed as named tensors for sending, and unpacked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hush.types import TaskExtras

EXTRAS, RELEASES = "extras.", "releases."


def packed(extras: TaskExtras) -> dict[str, Tensor]:
    """Return the extras of a task as tensors by name."""
    clip = None if extras.clip is None else torch.tensor([extras.clip], dtype=torch.float64)
    named = {"clip": clip, "input_mean": extras.input_mean, "drift": extras.drift}
    return {**{name: value for name, value in named.items() if value is not None}, **extras.slots}


def unpacked(tensors: Mapping[str, Tensor]) -> TaskExtras:
    """Return the extras from tensors by name."""
    slots = dict(tensors)
    clip, mean, drift = (slots.pop(name, None) for name in ("clip", "input_mean", "drift"))
    return TaskExtras(clip=None if clip is None else float(clip), input_mean=mean, drift=drift, slots=slots)
