"""local: what a client does in its steps besides following its noised gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hush.types import Release


@dataclass(frozen=True)
class Plain:
    """Nothing besides."""

    rule: ClassVar[str] = "plain"

    def releases(self) -> tuple[Release, ...]:
        """Nothing."""
        return ()
