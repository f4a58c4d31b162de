"""project: what is kept of the updates before they are added.

PFA's idea: clients with large budgets ("public" ones) have little noise in their updates, so the directions of theirs
are trusted, and of the others' updates only what lies in these directions is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from hush.recipes import subspace
from hush.recipes.option import Option
from hush.recipes.view import Chance, RoundView, State
from hush.types import Layout, Release

_BUDGETS = Release("privacy budget", False, "taken as public at enrolment, and says whose directions are trusted")


class _Whole(Option):
    """A projection whose clients send their whole updates."""

    def notes(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """What each client needs to know to answer: nothing."""
        return [{} for _ in view.clients]

    def answer(self, layout: Layout, notes: Mapping[str, Tensor]) -> Layout:
        """The layout of the answer: the model's."""
        return layout

    def encode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """At the client: what to send of an update."""
        return vector

    def decode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """At the server: the update, as far as it was sent."""
        return vector


@dataclass(frozen=True)
class Identity(_Whole):
    """All of them."""

    rule: ClassVar[str] = "identity"

    def project(self, view: RoundView, state: State, chance: Chance) -> tuple[Tensor, State]:
        """The updates as they are."""
        return view.updates, state


@dataclass(frozen=True)
class PublicSubspace(_Whole):
    """PFA: of private updates, only what lies in the `k` leading directions of the public ones, tensor by tensor.

    `centred`: directions and projection are about the mean of the public updates, as in the paper's code; else about
    zero, as in its Algorithm 3, where the directions are those of the budget-weighted mean (so there is only one).
    `public`: the upper part of a mixture of two, fitted to the budgets, or the top tenth of them.
    In a round without a public client nothing is projected.
    """

    rule: ClassVar[str] = "public-subspace"
    k: int = 1
    centred: bool = True
    public: Literal["mixture", "top-tenth"] = "mixture"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k: expected 1 or more, found {self.k}")
        if not self.centred and self.k > 1:
            raise ValueError(f"k: {self.k} is above the rank; without centring there is one direction, accepted: 1")

    def project(self, view: RoundView, state: State, chance: Chance) -> tuple[Tensor, State]:
        """Keep the public updates, and of the others what lies in their directions."""
        trusted = self.trusted(view)
        if not bool(trusted.any()):
            return view.updates, state
        middle, basis = self.found(view.rows(trusted.nonzero().flatten()))
        kept = _projected(view.updates, middle, basis, view.layout)
        return torch.where(trusted[:, None], view.updates, kept), state

    def trusted(self, view: RoundView) -> Tensor:
        """Which clients of a view are public."""
        return view.epsilon >= threshold(tuple(view.budgets.tolist()), self.public)

    def found(self, public: RoundView) -> tuple[Tensor, Tensor]:
        """Middle (p) and directions (k x p) of the public updates."""
        updates = public.updates.double()
        if self.centred and len(updates) > 1:
            middle = updates.mean(0)
            return middle, subspace.directions(updates - middle, self.k, public.layout)
        weights = public.epsilon / public.epsilon.sum()
        mean = (weights @ updates)[None]
        return torch.zeros_like(mean[0]), subspace.directions(mean, self.k, public.layout)

    def releases(self) -> tuple[Release, ...]:
        """Who is public follows from the budgets."""
        return (_BUDGETS,)


@dataclass(frozen=True)
class DelayedPublicSubspace(PublicSubspace):
    """PFA+: the same with the directions of the round before, so that private clients send `k` numbers a tensor."""

    rule: ClassVar[str] = "delayed-public-subspace"

    def notes(self, view: RoundView, state: State) -> list[Mapping[str, Tensor]]:
        """Private clients are sent middle and directions, once there are any."""
        known = {"middle": state["middle"], "basis": state["basis"]} if "basis" in state else {}
        return [{} if public else known for public in self.trusted(view).tolist()]

    def answer(self, layout: Layout, notes: Mapping[str, Tensor]) -> Layout:
        """k numbers a tensor, where there are directions."""
        if "basis" not in notes:
            return layout
        return Layout(layout.names, ((len(notes["basis"]),),) * len(layout.names))

    def encode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """How far the update goes in each direction."""
        if "basis" not in notes:
            return vector
        around = vector[None].double() - notes["middle"]
        return subspace.coefficients(around, notes["basis"], layout).flatten().to(vector.dtype)

    def decode(self, vector: Tensor, layout: Layout, notes: Mapping[str, Tensor]) -> Tensor:
        """The update that goes so far."""
        if "basis" not in notes:
            return vector
        far = vector.double().reshape(1, len(layout.names), -1)
        restored = notes["middle"] + subspace.combined(far, notes["basis"], layout)[0]
        return restored.to(vector.dtype)

    def project(self, view: RoundView, state: State, chance: Chance) -> tuple[Tensor, State]:
        """What private clients sent lies in the directions already; the public ones give the next round's."""
        trusted = self.trusted(view)
        first = "basis" not in state
        kept, _ = super().project(view, state, chance) if first else (view.updates, state)
        if not bool(trusted.any()):
            return kept, state
        middle, basis = self.found(view.rows(trusted.nonzero().flatten()))
        return kept, {"middle": middle, "basis": basis}


@dataclass(frozen=True)
class RandomSubspace(PublicSubspace):
    """PFA's ablation: directions drawn at random in place of those of the public updates."""

    rule: ClassVar[str] = "random-subspace"

    def project(self, view: RoundView, state: State, chance: Chance) -> tuple[Tensor, State]:
        """Keep what lies in the random directions."""
        trusted = self.trusted(view)
        basis = subspace.random_directions(chance.normal("directions", self.k, view.updates.shape[1]), view.layout)
        kept = _projected(view.updates, torch.zeros(view.updates.shape[1], dtype=torch.float64), basis, view.layout)
        return torch.where(trusted[:, None], view.updates, kept), state


def _projected(updates: Tensor, middle: Tensor, basis: Tensor, layout: Layout) -> Tensor:
    around = updates.double() - middle
    inside = subspace.combined(subspace.coefficients(around, basis, layout), basis, layout)
    return (middle + inside).to(updates.dtype)


@lru_cache(maxsize=256)
def threshold(budgets: tuple[float, ...], rule: str) -> float:
    """The budget from which on a client is public."""
    ordered = torch.tensor(sorted(budgets), dtype=torch.float64)
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
