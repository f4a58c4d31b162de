"""assign: which of the models a client works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hush.recipes.option import Option
from hush.recipes.view import Chance, RoundView, State


@dataclass(frozen=True)
class One(Option):
    """One model for all."""

    rule: ClassVar[str] = "one"
    alike: ClassVar[bool] = True

    @property
    def models(self) -> int:
        """One."""
        return 1

    def start(self, clients: int) -> State:
        """Nothing to remember."""
        return {}

    def offers(self, number: int, state: State) -> bool:
        """There is nothing to choose."""
        return False

    def place(self, view: RoundView, state: State, chance: Chance) -> list[int]:
        """Everyone on model 0."""
        return [0] * len(view.clients)

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, chance: Chance) -> tuple[list[int], State]:
        """There is nothing to learn."""
        return list(placed), state

    def homes(self, clients: Sequence[int], state: State) -> list[int]:
        """Model 0."""
        return [0] * len(clients)
