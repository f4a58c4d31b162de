"""One Ray for all tests of a test worker, whose start takes seconds, and one arithmetic thread, as in a Ray worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The last bits of sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
