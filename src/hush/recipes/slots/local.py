"""local: what a client does in its steps besides following its noised gradient.

Every rule is of one form, y -= lr * (H + drift + proximal * (y - x)): `drift` is a vector that the server computes from
what it has already seen, and sends along. So a client keeps nothing from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from hush.privacy.schedule import RoundSpec
from hush.recipes.context import RoundView, State
from hush.recipes.interfaces import Extra, LocalRule, TaskShape


@dataclass(frozen=True)
class PlainSgd(LocalRule):
    """Steps along the gradient, with nothing added."""

    rule: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Proximal(LocalRule):
    """A pull of strength `mu` back to the model that was sent (FedProx)."""

    rule: ClassVar[str] = "proximal"
    mu: float = 0.1

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"mu: expected 0 or more, found {self.mu}")

    def pull(self) -> float:
        """Return the strength of the proximal term."""
        return self.mu


@dataclass(frozen=True)
class ControlVariates(LocalRule):
    """SCAFFOLD: each client's steps are corrected by how its gradients have differed from the mean of all.

    c_i follows from what client i has released, c_i+ = c_i - c - update_i / (K lr), so the server can keep it. c is the
    mean of the c_i of all clients of a model. In the first `warm` rounds no model moves and all gradients are taken at
    the first one: they only fill the c_i. They cost budget like any other round. `visits` gives their number by
    how often a client takes part in them on average, `visits` / l rounds where a share l of the clients takes part
    in each: 4 in DP-SCAFFOLD's experiments.
    """

    rule: ClassVar[str] = "control-variates"
    warm: int = 0
    visits: int = 0

    def __post_init__(self) -> None:
        if self.warm < 0 or self.visits < 0:
            at, found = ("warm", self.warm) if self.warm < 0 else ("visits", self.visits)
            raise ValueError(f"{at}: expected 0 or more rounds, found {found}")
        if self.warm and self.visits:
            raise ValueError(f"warm: found {self.warm} beside visits = {self.visits}; accepted: one of them")

    @property
    def warm_rounds(self) -> int:
        """How many rounds move no model, if all clients take part in each."""
        return self.warm or self.visits

    def participating(self, share: float) -> Self:
        """Return it with the number of warm-up rounds at this participation."""
        return replace(self, warm=math.ceil(self.visits / share - 1e-9), visits=0) if self.visits else self

    @property
    def remembers(self) -> bool:
        """The correction of each client."""
        return True

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """Return a round in which models do not move, for warm-up rounds."""
        return RoundSpec(train=number > 0, still=0 < number <= self.warm_rounds)

    def extras(self, shape: TaskShape) -> Mapping[str, Extra]:
        """Return the correction on each model of a task."""
        return {"drift": Extra("F32", (shape.models, shape.size))}

    def start(self, clients: int, size: int) -> State:
        """Return all zero."""
        return {"own": torch.zeros(clients, size)}

    def drifts(self, clients: Sequence[int], assignments: Sequence[int], models: int, state: State) -> Tensor | None:
        """Return c of the model minus c_i of the client."""
        own = state["own"]
        return _means(own, assignments, models)[None] - own[list(clients), None]

    def absorb(self, view: RoundView, placed: Sequence[int], assignments: Sequence[int], state: State) -> State:
        """Move the c_i of those who answered."""
        own, rows = state["own"].clone(), list(view.clients)
        means = _means(own, assignments, max(*assignments, *placed) + 1)
        for at, updates in view.matrix.blocks():
            some, reach = rows[at], view.reach[at, None]
            own[some] = own[some] - means[list(placed[at])] - (updates / reach).to(own.dtype)
        return {"own": own}


def _means(own: Tensor, assignments: Sequence[int], models: int) -> Tensor:
    """Return the mean over the clients of each model; zero for a model without any."""
    at = torch.tensor(list(assignments))
    total = torch.zeros(models, own.shape[1], dtype=own.dtype).index_add_(0, at, own)
    return total / torch.bincount(at, minlength=models).clamp_min(1)[:, None]
