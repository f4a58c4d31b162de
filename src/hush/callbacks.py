"""Callbacks: objects or functions that a run calls when it starts, after each round, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.types import HushError

if TYPE_CHECKING:
    from hush.privacy.round_costs import RoundCosts
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
        config: Every setting, as nested mappings.
        directory: The run directory; None where nothing is written.
    """

    recipe: str
    seed: int
    rounds: int
    clients: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None


class Callback:
    """The base class of callbacks: override the methods that you need."""

    def on_run_start(self, start: RunStart) -> None:
        """Called before the first round, or before the first that a resumed run adds."""

    def on_enrolled(self, costs: RoundCosts, records: Sequence[RoundRecord]) -> None:
        """Called before the first round, once all clients are enrolled: what their rounds will cost them.

        `records` are the rounds of a resumed run that were done before.

        `hush.privacy.round_costs.SpendingMeter` adds up the rounds, and computes the epsilon that clients have spent.
        """

    def on_round_end(self, record: RoundRecord) -> bool | None:
        """Called after each round, once it is saved. Return True to stop the run here; it can be resumed."""

    def on_run_end(self, result: RunResult) -> None:
        """Called once at the end, also after a stop; not where an error or Ctrl-C ended the run."""


RoundFunction = Callable[["RoundRecord"], object]  # called after each round; returns True to stop the run
Callbacks = Sequence[Callback | RoundFunction]


def as_callbacks(given: Callbacks | Callback | RoundFunction) -> list[Callback | RoundFunction]:
    """Return one callback or several as a list, or raise a `HushError` for anything else."""
    listed: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for each in listed:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            found = each.__name__ if isinstance(each, type) else type(each).__name__
            raise HushError(
                f"callbacks: found {found}; accepted: instances of hush.Callback, or functions of a round's record"
            )
    return listed


def objects(callbacks: Callbacks) -> list[Callback]:
    """Return the callbacks that are objects, which are also called when a run starts and ends."""
    return [each for each in callbacks if isinstance(each, Callback)]


def round_functions(callbacks: Callbacks) -> list[RoundFunction]:
    """Return what is called after each round, in order."""
    return [each.on_round_end if isinstance(each, Callback) else each for each in callbacks]
