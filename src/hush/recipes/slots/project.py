"""project: what is kept of the updates before they are added.

PFA's idea: clients with large budgets ("public" ones) have little noise in their updates, so the directions of theirs
are trusted, and of the others' updates only what lies in these directions is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.recipes.context import Listed, RoundView, Rows, ServerRng, State
from hush.recipes.estimators import subspace
from hush.recipes.interfaces import Extra, Project, Projected, TaskShape
from hush.recipes.stored_rows import ProjectedRows
from hush.types import HushError, Layout, Release, TaskExtras

_BUDGETS = Release(
    "privacy budget", False, "treated as public at enrolment; determines which clients define the subspace"
)


@dataclass(frozen=True)
class Identity(Project):
    """Every coordinate of an update counts."""

    rule: ClassVar[str] = "identity"


@dataclass(frozen=True)
class PublicSubspace(Project):
    """PFA: of private updates, only what lies in the `k` leading directions of the public ones, tensor by tensor.

    `centred`: directions and projection are about the mean of the public updates, as in the paper's code; else about
    zero, as in its Algorithm 3, where the directions are those of the budget-weighted mean (so there is only one).
    `public`: the upper part of a mixture of two, fitted to the budgets; the top tenth of them; or this many
    clients with the largest budgets. `among`: the clients of the round, as in the paper, or all that are enrolled.
    In a round without a public client nothing is projected.
    """

    rule: ClassVar[str] = "public-subspace"
    k: int = 1
    centred: bool = True
    public: Literal["mixture", "top-tenth"] | int = "mixture"
    among: Literal["round", "all"] = "round"

    def __post_init__(self) -> None:
        if isinstance(self.public, int) and self.public < 1:
            raise ValueError(f"public: expected 1 client or more, found {self.public}")
        if self.k < 1:
            raise ValueError(f"k: expected 1 or more, found {self.k}")
        if not self.centred and self.k > 1:
            raise ValueError(f"k: {self.k} is above the rank; without centring there is one direction, accepted: 1")

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Projected, State]:
        """Keep the public updates, and of the others what lies in their directions."""
        trusted = self.trusted(view)
        if not bool(trusted.any()):
            return view.matrix, state
        middle, basis = self.found(view.rows(trusted.nonzero().flatten()))
        return _projected(view, trusted, middle, basis), state

    def trusted(self, view: RoundView) -> Tensor:
        """Return which clients of a view are public."""
        budgets = view.epsilon if self.among == "round" else view.budgets
        return view.epsilon >= threshold(tuple(budgets.tolist()), self.public)

    def deciders(self, view: RoundView) -> Tensor | None:
        """Return the public ones."""
        return self.trusted(view)

    def found(self, public: RoundView) -> tuple[Tensor, Tensor]:
        """Return the mean (p) and the directions (k x p) of the public updates."""
        if public.stored is not None:
            return self._found_by_block(public, public.stored)
        updates = public.updates.double()
        if self.centred and len(updates) > 1:
            middle = updates.mean(0)
            return middle, subspace.directions(updates - middle, self.k, public.layout)
        weights = public.epsilon / public.epsilon.sum()
        mean = (weights @ updates)[None]
        return torch.zeros_like(mean[0]), subspace.directions(mean, self.k, public.layout)

    def _found_by_block(self, public: RoundView, rows: Rows) -> tuple[Tensor, Tensor]:
        """The same for updates stored elsewhere: which sums of them to form follows from a sample of each tensor."""
        clients, layout = len(public.clients), public.layout
        if not (self.centred and clients > 1):
            weights = public.epsilon / public.epsilon.sum()
            mean = rows.combined(weights).double()[None]
            return torch.zeros_like(mean[0]), subspace.directions(mean, self.k, layout)
        middle = rows.combined(torch.full((clients,), 1 / clients, dtype=torch.float64)).double()
        numbers = subspace.sampled_columns(layout, clients)
        sample = rows.columns(Listed(torch.cat(numbers))).double()
        sums = subspace.leading_sums(sample - sample.mean(0), self.k, [len(own) for own in numbers])
        combined = rows.combined_parts(sums, layout) - subspace.by_tensor(sums.sum(2), layout) * middle
        return middle, subspace.orthonormal(combined, layout)

    def releases(self) -> tuple[Release, ...]:
        """Declare that the budgets determine who is public."""
        return (_BUDGETS,)


@dataclass(frozen=True)
class DelayedPublicSubspace(PublicSubspace):
    """PFA+: the same with the directions of the round before, so that private clients send `k` numbers a tensor.

    Who is public is decided among all enrolled clients: among those of the round, a client that does not answer would
    change of whom complete updates were asked.
    """

    rule: ClassVar[str] = "delayed-public-subspace"
    among: Literal["all"] = "all"

    def extras(self, shape: TaskShape) -> Mapping[str, Extra]:
        """Middle and directions, for private clients once there are any."""
        return {
            "middle": Extra("F64", (shape.size,), always=False),
            "basis": Extra("F64", (self.k, shape.size), always=False),
        }

    def sends(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """Private clients are sent middle and directions, once there are any."""
        known = {"middle": state["middle"], "basis": state["basis"]} if "basis" in state else {}
        return [{} if public else known for public in self.trusted(view).tolist()]

    def answer(self, layout: Layout, extras: TaskExtras) -> Layout:
        """Return a layout of k numbers a tensor, if there are directions."""
        if "basis" not in extras.slots:
            return layout
        return Layout(layout.names, ((len(extras.slots["basis"]),),) * len(layout.names))

    def check_received(self, extras: TaskExtras) -> None:
        """Both or neither."""
        if ("basis" in extras.slots) != ("middle" in extras.slots):
            raise HushError("task: directions without their mean, or a mean without directions")

    def answer_bound(self, whole: float, layout: Layout, extras: TaskExtras) -> float:
        """Return the largest norm of the coefficients: that of the update, times how much the directions overlap."""
        if "basis" not in extras.slots:
            return whole
        parts = extras.slots["basis"].double().split(layout.sizes, dim=1)
        stretch = math.sqrt(max(float(torch.linalg.matrix_norm(part @ part.T, 2)) for part in parts))
        return stretch * (whole + float(extras.slots["middle"].double().norm()))

    def encode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """Return how far the update goes in each direction."""
        if "basis" not in extras.slots:
            return vector
        around = vector[None].double() - extras.slots["middle"]
        return subspace.coefficients(around, extras.slots["basis"], layout).flatten().to(vector.dtype)

    def decode(self, vector: Tensor, layout: Layout, extras: TaskExtras) -> Tensor:
        """Return the update that goes so far."""
        if "basis" not in extras.slots:
            return vector
        far = vector.double().reshape(1, len(layout.names), -1)
        restored = extras.slots["middle"] + subspace.combined(far, extras.slots["basis"], layout)[0]
        return restored.to(vector.dtype)

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Projected, State]:
        """What private clients sent lies in the directions already; the public ones give the next round's."""
        trusted = self.trusted(view)
        first = "basis" not in state
        kept, _ = super().project(view, state, rng) if first else (view.matrix, state)
        if not bool(trusted.any()):
            return kept, state
        middle, basis = self.found(view.rows(trusted.nonzero().flatten()))
        return kept, {"middle": middle, "basis": basis}


@dataclass(frozen=True)
class RandomSubspace(PublicSubspace):
    """PFA's ablation: directions drawn at random in place of those of the public updates."""

    rule: ClassVar[str] = "random-subspace"

    def deciders(self, view: RoundView) -> Tensor | None:
        """Return no client's: the directions are random."""
        return None

    def project(self, view: RoundView, state: State, rng: ServerRng) -> tuple[Projected, State]:
        """Keep the components in the random directions."""
        parameters = view.matrix.shape[1]
        basis = subspace.random_directions(rng.normal("directions", self.k, parameters), view.layout)
        return _projected(view, self.trusted(view), torch.zeros(parameters, dtype=torch.float64), basis), state


def _projected(view: RoundView, trusted: Tensor, middle: Tensor, basis: Tensor) -> Projected:
    """Return the updates with those of clients that are not trusted projected."""
    layout = view.layout
    if view.stored is not None:
        return ProjectedRows(rows=view.stored, kept=trusted, middle=middle, basis=basis, layout=layout)
    around = view.updates.double() - middle
    inside = subspace.combined(subspace.coefficients(around, basis, layout), basis, layout)
    return torch.where(trusted[:, None], view.updates, (middle + inside).to(view.updates.dtype))


@lru_cache(maxsize=256)
def threshold(budgets: tuple[float, ...], rule: str | int) -> float:
    """Return the budget from which on a client is public; `rule` is as in `PublicSubspace.public`."""
    ordered = torch.tensor(sorted(budgets), dtype=torch.float64)
    if isinstance(rule, int):
        return float(ordered[-min(rule, len(ordered))])
    if rule == "top-tenth" or len(set(budgets)) < 2:
        return float(ordered[-max(1, len(ordered) // 10)])
    from sklearn.mixture import GaussianMixture

    points = ordered[:, None].numpy()
    # Budgets can have several mixtures that no small change improves: the likeliest of ten counts.
    model = GaussianMixture(2, n_init=10, random_state=0, max_iter=1000).fit(points)
    upper = int(model.means_.argmax())
    public = ordered[torch.from_numpy(model.predict(points) == upper)]
    # A wide component can claim both ends: public are the largest budgets, never a gap below them.
    above = [float(value) for value in public if float(value) > float(model.means_.min())]
    return min(above) if above else float(ordered[-1])
