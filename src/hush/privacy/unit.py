"""The unit of privacy in words: what a guarantee protects."""

from __future__ import annotations

from collections.abc import Mapping

from hush.types import Unit

_PROTECTS: Mapping[Unit, str] = {
    "row": "one training row of this client",
    "person": "one person: all of this person's rows at this client together",
    "client": "one client: all of its rows together",
}


def protects(unit: Unit) -> str:
    """Return what a guarantee of this unit protects, as guarantee cards say it."""
    return _PROTECTS[unit]
