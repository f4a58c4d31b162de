"""The cache of fixed features: what is found again, what is not, files that are damaged, its size, and runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import hush
from hush.engines import feature_cache
from hush.engines.feature_cache import features_of, folder
from hush.models import scattering
from hush.seeds import rng

CPU = torch.device("cpu")


class Counting:
    """Features of rows that count how many rows they were computed for."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        return torch.stack([x.sum(1), x.square().sum(1)], 1)


def rows(count: int = 10, seed: int = 0) -> np.ndarray:
    return rng(seed, "rows").normal(size=(count, 4)).astype(np.float32)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
    return tmp_path / "features"


def test_features_are_computed_once_for_rows_and_code(place: Path) -> None:
    compute, x = Counting(), rows()
    first = features_of(compute, "a", x, CPU)
    again = features_of(compute, "a", x.copy(), CPU)
    assert compute.rows == 10 and torch.equal(first, again)
    assert torch.equal(first, compute(torch.from_numpy(x)))
    compute.rows = 0
    other = x.copy()
    other[3, 2] = np.nextafter(other[3, 2], np.float32(9))  # one bit of one row
    for fingerprint, given in (("b", x), ("a", other), ("a", x[::-1]), ("a", x[:9])):
        features_of(compute, fingerprint, given, CPU)
    assert compute.rows == 39
    assert len(list(place.glob("*.npy"))) == 5 and not list(place.glob("*.part"))
    assert place.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in place.iterdir())


def test_what_has_no_fingerprint_or_is_switched_off_is_not_stored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Counting()
    features_of(compute, "", rows(), CPU)
    monkeypatch.setenv("HUSH_CACHE", "off")
    features_of(compute, "a", rows(), CPU)
    assert compute.rows == 20 and not place.exists() and folder() is None


def test_damaged_files_are_computed_anew(place: Path) -> None:
    compute = Counting()
    good = features_of(compute, "a", rows(), CPU)
    (path,) = place.glob("*.npy")
    whole = path.read_bytes()
    for content in (b"", whole[:40], whole[:-4], b"no numbers", np.array(["x"], object).dumps()):
        path.write_bytes(content)
        assert torch.equal(features_of(compute, "a", rows(), CPU), good)
    assert path.read_bytes() == whole


def test_features_that_are_changed_in_memory_stay_as_they_are_in_the_file(place: Path) -> None:
    compute = Counting()
    first = features_of(compute, "a", rows(), CPU).clone()
    features_of(compute, "a", rows(), CPU).zero_()
    assert torch.equal(features_of(compute, "a", rows(), CPU), first) and compute.rows == 10


def test_the_least_recently_used_files_make_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, size = Counting(), 10 * 2 * 4 + 128
    monkeypatch.setattr(feature_cache, "MOST", 3 * size)
    for number in range(3):
        features_of(compute, str(number), rows(), CPU)
        for path in place.glob("*.npy"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
    features_of(compute, "0", rows(), CPU)  # used again
    features_of(compute, "3", rows(), CPU)
    compute.rows = 0
    features_of(compute, "0", rows(), CPU)
    assert compute.rows == 0
    features_of(compute, "1", rows(), CPU)
    assert compute.rows == 10
    monkeypatch.setattr(feature_cache, "MOST", 10)
    features_of(compute, "large", rows(), CPU)
    compute.rows = 0
    features_of(compute, "large", rows(), CPU)
    assert compute.rows == 10


def test_a_folder_that_cannot_be_written_is_said_and_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "file"))
    assert len(features_of(Counting(), "a", rows(), CPU)) == 10
    assert "features are not stored in" in caplog.text


def test_runs_at_the_same_time_write_complete_files(place: Path) -> None:
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(features_of(Counting(), "a", rows(5000), CPU))) for _ in range(6)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(torch.equal(each, found[0]) for each in found) and len(list(place.iterdir())) == 1


def test_a_second_run_computes_no_scattering_and_finds_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = rng(0, "images").normal(size=(120, 1, 8, 8)).astype(np.float32)
    labels = rng(0, "labels").integers(0, 3, 120)

    def run(seed: int) -> list[float]:
        sim = hush.Simulation(
            (images, labels), "scattering-linear", clients=3, classes=3, partition="iid", rounds=1, epsilon=8.0,
            recipe="dp-fedavg", batch_size=8, seed=seed,
        )  # fmt: skip
        found: list[float] = sim.fit().weights.flatten().tolist()
        return found

    monkeypatch.setenv("HUSH_CACHE", "off")
    without = run(0)
    monkeypatch.setenv("HUSH_CACHE", str(place.parent))
    first = run(0)
    shapes: list[int] = []
    original = scattering.scatter

    def counted(x: Tensor) -> Tensor:
        shapes.append(len(x))
        return original(x)

    monkeypatch.setattr(scattering, "scatter", counted)
    assert run(0) == first == without
    assert set(shapes) <= {1}  # rows of zeros that tell how many features there are
    # Another division of the same rows finds them too.
    run(1)
    assert set(shapes) <= {1}
