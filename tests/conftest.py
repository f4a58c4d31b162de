"""Shared settings: where real data are, and a small config."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paths import ROOT, SHARED

if TYPE_CHECKING:
    from tests.support.fork_server import ForkServer
    from tests.support.live_federation import LiveFederation

# What remembers ledgers outside their folders: of this process and of all that it starts, and never the user's own.
os.environ["HUSH_WITNESS"] = tempfile.mkdtemp(prefix="hush-witness-")
atexit.register(shutil.rmtree, os.environ["HUSH_WITNESS"], ignore_errors=True)
os.environ["HUSH_CACHE"] = "off"

BESIDE = SHARED / "data"
# What `make quick` leaves out: whole runs, processes, statistics, and checks of many modules or layers. Single tests
# elsewhere that take seconds are marked `slow` where they stand.
SLOW = (
    "auditing",
    "bench",
    "certificate",
    "cli",
    "conformance",
    "crash",
    "data/test_cifar.py",
    "data/test_sources.py",
    "deploy/coordinator",
    "deploy/member/test_exhaustion.py",
    "deploy/member/test_hostile_coordinator.py",
    "deploy/member/test_oracle.py",
    "deploy/shared",
    "docs/test_code_blocks.py",
    "docs/test_extending.py",
    "end_to_end",
    "engines/test_noisy_counts.py",
    "flower",
    "models/isolation",
    "models/test_adapters.py",
    "models/test_inputs.py",
    "models/test_user_module.py",
    "privacy/ledger/test_adaptive_runs.py",
    "privacy/test_ledger_check.py",
    "recipes/estimators/test_noise_energy.py",
    "recipes/test_limits.py",
    "reproduce",
    "statistical",
    "test_private_trainer.py",
    "test_simulation.py",
    "test_text.py",
    "test_tuning.py",
    "trained_model",
    "training/gpu",
    "training/per_example",
    "training/test_eager.py",
    "training/test_input_mean.py",
    "training/test_objectives.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow folders and files."""
    slow = tuple(ROOT / "tests" / place for place in SLOW)
    for item in items:
        if any(item.path.is_relative_to(place) for place in slow):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def small() -> dict[str, Any]:
    """A run of a second or two."""
    return {
        "seed": 1,
        "rounds": 4,
        "data": {"name": "digits", "clients": 6, "partition": "iid"},
        "model": {"name": "logreg"},
        "privacy": {"budgets": [0.3, 0.5, 1.0, 2.0, 4.0, 8.0], "delta": 1e-4, "clip": 1.0},
        "local": {"batch_size": [16, 32], "epochs": 1, "lr": 0.1},
        "recipe": {"name": "robust-hdp"},
    }


@pytest.fixture(scope="session")
def data_root() -> str:
    """The directory with the public dataset files, or a skip that says what to set."""
    root = os.environ.get("HUSH_DATA") or (str(BESIDE) if BESIDE.is_dir() else "")
    if not root:
        pytest.skip("needs the public dataset files: set HUSH_DATA to their directory")
    return root


@pytest.fixture(scope="session")
def parent() -> ForkServer:
    """The fork server of all processes that a test worker starts; its start takes seconds."""
    from tests.support.fork_server import fork_server

    return fork_server()


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory, parent: ForkServer) -> Iterator[LiveFederation]:
    """A federation of three with a real SuperLink."""
    from tests.support.live_federation import LiveFederation

    with LiveFederation(tmp_path_factory.mktemp("live") / "fed").up(parent) as up:
        yield up
