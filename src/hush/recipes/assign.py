"""assign: which of the models a client works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hush.recipes.view import State
from hush.types import Release


@dataclass(frozen=True)
class One:
    """One model for all."""

    rule: ClassVar[str] = "one"

    @property
    def models(self) -> int:
        """One."""
        return 1

    def place(self, clients: Sequence[int], state: State) -> list[int]:
        """Everyone on model 0."""
        return [0] * len(clients)

    def releases(self) -> tuple[Release, ...]:
        """Nothing."""
        return ()
