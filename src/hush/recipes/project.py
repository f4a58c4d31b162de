"""project: what is kept of the updates before they are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hush.recipes.view import RoundView, State
from hush.types import Release


@dataclass(frozen=True)
class Identity:
    """All of them."""

    rule: ClassVar[str] = "identity"

    def project(self, view: RoundView, state: State) -> tuple[Tensor, State]:
        """The updates as they are."""
        return view.updates, state

    def releases(self) -> tuple[Release, ...]:
        """Nothing."""
        return ()
