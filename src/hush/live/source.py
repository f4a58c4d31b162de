"""The source of a live page: what it consists of, and when that has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias, runtime_checkable

Fragment: TypeAlias = tuple[str, str]
"""The id of an element of the page, and its new content as HTML."""


class Source(Protocol):
    """What a live page shows. Methods are called from one thread at a time, which is not that of the server."""

    @property
    def title(self) -> str:
        """The title of the page, not yet escaped."""
        ...

    @property
    def kind(self) -> str:
        """What kind of page it is, in a word or two."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """The ids of the page's elements, from top to bottom."""
        ...

    def refresh(self) -> bool:
        """Look for news, and return whether there are any. Called several times a second: it must be quick."""
        ...

    def fragments(self) -> Iterator[Fragment]:
        """Yield the elements of the page as they are now, the slow ones last; each is shown when it is yielded."""
        ...

    def stoppable(self) -> bool:
        """Return whether there is something to stop."""
        ...

    def stop(self) -> str:
        """Ask for a stop, and return what happens now, in a sentence."""
        ...


@runtime_checkable
class Monitor(Source, Protocol):
    """A source that is also read by programs. Its methods are called like those of any source, after `refresh`."""

    def health(self) -> tuple[bool, str]:
        """Return whether what is watched works, and `ok` or what does not, in words without names or figures."""
        ...

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return metrics for Prometheus and their content type, for what a request accepts."""
        ...
