"""CIFAR-100: both layouts give the same images and fine labels, and what is not as published is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hush.data import cifar100
from hush.data.datasets import load
from hush.types import HushError


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Small parts: 40 rows for training, 20 for testing, of which these are the first 40."""
    monkeypatch.setattr(cifar100, "ROWS", {"train": 40, "test": 20})
    gen = np.random.default_rng(3)
    rows = gen.integers(0, 256, (40, 3074), dtype=np.uint8)
    rows[:, 0], rows[:, 1] = gen.integers(0, 20, 40), np.arange(40) * 2
    return rows.tobytes()


def put(root: Path, name: str, content: bytes) -> None:
    (root / "cifar-100-binary").mkdir(exist_ok=True)
    (root / "cifar-100-binary" / name).write_bytes(content)


def archive(root: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(root / "cifar-100-binary.tar.gz", "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def test_both_layouts_give_the_same_rows(tmp_path: Path, records: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    put(tmp_path / "a", "train.bin", records)
    put(tmp_path / "a", "test.bin", records[: 20 * 3074])
    archive(tmp_path / "b", {"train.bin": records, "test.bin": records[: 20 * 3074]})
    one, two = (load("cifar100", root=str(tmp_path / name), part="all") for name in "ab")
    assert one.x.shape == (60, 3, 32, 32) and one.classes == 100
    assert one.y.tolist() == [*range(0, 80, 2), *range(0, 40, 2)]
    assert np.array_equal(one.x, two.x) and np.array_equal(one.y, two.y)
    first = np.frombuffer(records, np.uint8)[2:3074].reshape(3, 32, 32)
    blue = (first[2] / 255 - cifar100.MEAN[2]) / cifar100.STD[2]
    assert np.allclose(one.x[0, 2], blue, atol=1e-5)


def test_what_is_not_as_published_is_refused(tmp_path: Path, records: bytes) -> None:
    put(tmp_path, "train.bin", records[:-1])
    with pytest.raises(HushError, match=r"train\.bin: 122959 bytes; expected 122960, from .*kriz"):
        load("cifar100", root=str(tmp_path))
    wrong = bytearray(records)
    wrong[1] = 100
    put(tmp_path, "train.bin", bytes(wrong))
    with pytest.raises(HushError, match="label 100; expected 0 to 99"):
        load("cifar100", root=str(tmp_path))


def test_archives_that_are_cut_off_or_lack_a_part_are_refused(tmp_path: Path, records: bytes) -> None:
    archive(tmp_path, {"train.bin": records})
    with pytest.raises(HushError, match=r"does not contain cifar-100-binary/test\.bin"):
        load("cifar100", root=str(tmp_path), part="test")
    file = tmp_path / "cifar-100-binary.tar.gz"
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(HushError, match=r"not a complete tar\.gz file"):
        load("cifar100", root=str(tmp_path))
