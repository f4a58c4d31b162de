"""Callbacks: what a run calls when it starts, after each round, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hush.types import HushError

if TYPE_CHECKING:
    from hush.types import RoundRecord, RunResult


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """What is known about a run before its first round.

    Attributes:
        recipe: The algorithm's name.
        seed: The run's.
        rounds: As configured; a run ends earlier where too few clients have budget left.
        clients: Their names, or their numbers as text.
        not_covered: What no epsilon covers.
        warnings: What to know before trusting the guarantees.
    """

    recipe: str
    seed: int
    rounds: int
    clients: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]


class Callback:
    """The base class of callbacks; override what is of interest."""

    def on_run_start(self, start: RunStart) -> None:
        """Called before the first round, or before the first that a resumed run adds."""

    def on_round_end(self, record: RoundRecord) -> bool | None:
        """Called after each round, once it is saved. Return True to stop the run here; it can be resumed."""

    def on_run_end(self, result: RunResult) -> None:
        """Called once at the end, also after a stop; not where an error or Ctrl-C ended the run."""


Function = Callable[["RoundRecord"], object]


class RoundFunction(Callback):
    """A function of a round's record as a callback; it stops the run by returning True."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def on_round_end(self, record: RoundRecord) -> bool | None:
        """Call the function."""
        return self._function(record) is True


def as_callbacks(given: Sequence[Callback | Function] | Callback | Function) -> tuple[Callback, ...]:
    """Callbacks as a user gives them: one or several, objects or functions of a round's record."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    for each in listed:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            found = each.__name__ if isinstance(each, type) else type(each).__name__
            raise HushError(
                f"callbacks: found {found}; accepted: instances of hush.Callback, or functions of a round's record"
            )
    return tuple(each if isinstance(each, Callback) else RoundFunction(each) for each in listed)  # type: ignore[arg-type]
