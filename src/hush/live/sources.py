"""Sources for directories: that of one run, or the overview of several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hush.live.follow import MANIFEST
from hush.live.overview_page import OverviewSource, found_runs
from hush.live.run_page import RunSource
from hush.live.source import Fragment, Source
from hush.types import HushError


def source_of(path: Path, *, several: bool | None = None) -> Source:
    """Return the source for a directory; `several` says whether it will have several runs, where it is still empty.

    Raises:
        HushError: The path is a file.
    """
    if path.exists() and not path.is_dir():
        raise HushError(f"{path}: a file; accepted: the directory of a run, a comparison or a reproduction")
    if several is None:
        return UndeterminedSource(path)
    return OverviewSource(path) if several else RunSource(path)


class UndeterminedSource:
    """Waits until the directory shows whether it is one run or several, and is then that source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: Source | None = None
        self._look()

    def _look(self) -> Source | None:
        if self._found is None:
            if (self._path / MANIFEST).exists():
                self._found = RunSource(self._path)
            elif found_runs(self._path):
                self._found = OverviewSource(self._path)
        return self._found

    @property
    def title(self) -> str:
        """That of what was found, or the directory."""
        return str(self._path) if self._found is None else self._found.title

    @property
    def kind(self) -> str:
        """That of what was found."""
        return "live" if self._found is None else self._found.kind

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of both kinds, while it is not known which."""
        both = dict.fromkeys((*RunSource.parts, *OverviewSource.parts))
        return tuple(both) if self._found is None else self._found.parts

    def refresh(self) -> bool:
        """Look again."""
        found = self._look()
        return found is not None and found.refresh()

    def fragments(self) -> Iterator[Fragment]:
        """Yield those of what was found."""
        yield from RunSource(self._path).fragments() if self._found is None else self._found.fragments()

    def stoppable(self) -> bool:
        """Whether what was found is."""
        return self._found is not None and self._found.stoppable()

    def stop(self) -> str:
        """Stop what was found."""
        if self._found is None:
            raise HushError(f"{self._path}: nothing runs there")
        return self._found.stop()
