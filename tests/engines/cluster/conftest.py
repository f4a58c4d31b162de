"""One Ray for all tests of a test worker: its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hush.engines.cluster.ray_workers import library


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray")
    started = library()
    started.init(
        address="local", num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
        object_store_memory=200 << 20,
    )  # fmt: skip
    yield started
    started.shutdown()
