"""One SuperLink and one parent of processes for all tests of a worker: to start them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from federation_nursery import Nursery
    from federation_town import Town


@pytest.fixture(scope="session")
def parent() -> Iterator[Nursery]:
    from federation_nursery import nursery

    with nursery() as held:
        yield held


@pytest.fixture(scope="session")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A federation of three with a real SuperLink."""
    from federation_town import Town

    with Town(tmp_path_factory.mktemp("town") / "fed").up() as up:
        yield up
