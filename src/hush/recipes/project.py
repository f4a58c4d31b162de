"""project: what is kept of the updates before they are added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hush.recipes.option import Option
from hush.recipes.view import Chance, RoundView, State
from hush.types import Layout


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
