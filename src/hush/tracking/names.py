"""Trackers by name, and the trackers of the runs that one call makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from hush.tracking.tracker import Tracker
from hush.types import HushError, unknown

# The module and class of each tracker, and the packages that it needs.
TRACKERS = {
    "mlflow": ("hush.tracking.mlflow", "MLflowTracker", ("mlflow", "sqlalchemy", "alembic")),
    "tensorboard": ("hush.tracking.tensorboard", "TensorBoardTracker", ("tensorboard",)),
    "wandb": ("hush.tracking.wandb", "WandbTracker", ("wandb",)),
}
Maker = Callable[[str, str], Tracker]


class Tracking(AbstractContextManager["Tracking"]):
    """Makes the trackers of runs, and ends those that an error has left open."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._makers = makers
        self._made: list[Tracker] = []

    def __bool__(self) -> bool:
        return bool(self._makers)

    def of(self, label: str = "", group: str = "", directory: Path | None = None) -> list[Tracker]:
        """Return the trackers of one run; `directory` is the run directory that outlives the call."""
        made = [make(label, group) for make in self._makers]
        for each in made:
            each.permanent = directory
        self._made += made
        return made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._made:
            each.abort()


def tracking_of(track: str | Sequence[str] | None) -> Tracking:
    """Return the tracking by one tracker's name, several, or none.

    Raises:
        HushError: A name is unknown, or a package is missing; the message says what to install.
    """
    names = [] if track is None else [track] if isinstance(track, str) else list(track)
    makers: list[Maker] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise unknown("track", "tracker", str(name), TRACKERS)
        module, made, needs = TRACKERS[name]
        if missing := [package for package in needs if find_spec(package) is None]:
            raise HushError(
                f"track: {name} needs {', '.join(missing)}; install it with: pip install 'hush[track]'", "track"
            )
        makers.append(getattr(import_module(module), made))
    return Tracking(makers)
