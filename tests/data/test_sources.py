"""The published files, where they are at hand: HUSH_DATA or a data folder beside the repository."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from hush.data import cifar, imdb, load, sources
from tests.support.paths import SHARED


@pytest.fixture(scope="module")
def real() -> str:
    beside = SHARED / "data"
    root = os.environ.get("HUSH_DATA") or (str(beside) if beside.is_dir() else "")
    if not root:
        pytest.skip("no real datasets: set HUSH_DATA to the directory that holds them")
    return root


def need(root: str, path: str) -> Path:
    if not (Path(root) / path).exists():
        pytest.skip(f"HUSH_DATA has no {path}")
    return Path(root) / path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_idx_gzipped_and_not(real: str, tmp_path: Path, name: str) -> None:
    folder = need(real, name)
    packed = load(name, root=real, part="all" if name == "mnist" else "test")
    assert packed.x.shape[1:] == (1, 28, 28) and len(packed.y) == (70_000 if name == "mnist" else 10_000)
    for stem in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / stem).write_bytes(gzip.decompress((folder / f"{stem}.gz").read_bytes()))
    plain = load(name, root=str(tmp_path), part="test")
    np.testing.assert_array_equal(plain.x, packed.x[-10_000:])
    np.testing.assert_array_equal(plain.y, packed.y[-10_000:])
    if name == "mnist":
        assert abs(float(packed.x[:60_000].mean())) < 1e-3 and abs(float(packed.x[:60_000].std()) - 1) < 1e-3


def test_real_emnist(real: str) -> None:
    need(real, "emnist/emnist47-balanced-subset-test-images-idx3-ubyte.gz")
    test = load("emnist47", root=real, part="test")
    assert test.name == "emnist47-balanced-subset" and test.x.shape == (6016, 1, 28, 28)
    np.testing.assert_array_equal(np.bincount(test.y), np.full(47, 128))


def test_real_imdb(real: str) -> None:
    need(real, "imdb/test.jsonl.xz")
    texts, labels = imdb.read_reviews(Path(real), "test")
    assert len(texts) == 25_000 and np.bincount(labels).tolist() == [12_500, 12_500]
    assert imdb.featurise(texts[::500]).shape == (50, 2048)


def test_real_cifar_content_is_the_published_one(real: str) -> None:
    need(real, "cifar10/test_batch.webp")
    published = dict(zip(sources.CIFAR10_RECORDS, (
        "5dd7e06a14cb22eb9f671a540d1b7c25", "5ea93a67294ea407fff1d09f752e9692", "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb", "53f37980c15c3d472c316c40844f3f0d", "803d5f7f4d78ea53de84dbe85f74fb6d",
    ), strict=True))  # fmt: skip
    for part, batches in cifar.BATCHES.items():
        pixels, labels = cifar.read_cifar10(Path(real), part)
        content = np.concatenate([labels[:, None], pixels.reshape(len(pixels), -1)], axis=1)
        for at, batch in enumerate(batches):
            rows = content[at * cifar.ROWS : (at + 1) * cifar.ROWS].tobytes()
            assert hashlib.md5(rows).hexdigest() == published[batch]
            assert hashlib.sha256(rows).hexdigest() == sources.CIFAR10_RECORDS[batch]
