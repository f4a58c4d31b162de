"""Datasets: every layout gives the same arrays, and every broken file gives one line that says what to do."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.data import Dataset, check_finite, files, from_arrays, images, load, sources, synthetic
from hush.seeds import rng
from hush.types import HushError


def one_line(error: pytest.ExceptionInfo[HushError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + b"".join(struct.pack(">I", n) for n in array.shape) + array.tobytes()


def put(
    path: Path, content: bytes, digests: dict[str, str] | None = None, patch: pytest.MonkeyPatch | None = None
) -> None:
    """Write a file and, where a table of digests is given, make its digest the known one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if digests is not None and patch is not None:
        patch.setitem(digests, path.name, hashlib.sha256(content).hexdigest())


@pytest.fixture
def tiny() -> tuple[np.ndarray, np.ndarray]:
    gen = rng(0, "tiny images")
    return gen.integers(0, 256, (6, 28, 28), np.uint8), np.array([3, 1, 4, 1, 5, 9], np.uint8)


# --- made on the spot


def test_digits() -> None:
    digits = load("digits", root=None)
    assert digits.x.shape == (1797, 1, 8, 8) and digits.x.dtype == np.float32 and digits.y.dtype == np.int64
    assert digits.x.min() == 0.0 and digits.x.max() == 1.0 and digits.classes == 10 and digits.owner is None
    np.testing.assert_array_equal(load("digits", root=None, part="all").x, digits.x)
    with pytest.raises(HushError, match=r"data\.part.*no test part"):
        load("digits", root=None, part="test")


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    images, classes = load_digits().images, load_digits().target
    quick = synthetic.digits()
    monkeypatch.setattr(synthetic, "find_spec", lambda name: None)
    for x, y in (quick, synthetic.digits()):
        np.testing.assert_array_equal(x[:, 0], (images / 16).astype(np.float32))
        np.testing.assert_array_equal(y, classes)
        assert x.dtype == np.float32
        assert y.dtype == np.int64


def test_synthetic_users_do_not_depend_on_their_number() -> None:
    few = load("synthetic", root=None, clients=2, samples=50, alpha=1, beta=0.5, seed=3)
    more = load("synthetic", root=None, clients=4, samples=50, alpha=1, beta=0.5, seed=3)
    assert more.x.shape == (200, 40) and more.classes == 10 and more.owner is not None
    np.testing.assert_array_equal(more.owner, np.repeat(np.arange(4), 50))
    np.testing.assert_array_equal(more.x[:100], few.x)
    np.testing.assert_array_equal(more.y[:100], few.y)
    other = load("synthetic", root=None, clients=2, samples=50, alpha=1, beta=0.5, seed=4)
    assert not np.array_equal(other.x, few.x)


def test_synthetic_changes_one_label_in_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = synthetic.synthetic_users(10, 2000, 1.0, 1.0, 0)[1]
    monkeypatch.setattr(synthetic, "CHANGED", 0.0)
    clean = synthetic.synthetic_users(10, 2000, 1.0, 1.0, 0)[1]
    monkeypatch.setattr(synthetic, "CHANGED", 0.06)
    wrong = synthetic.synthetic_users(10, 2000, 1.0, 1.0, 0)[1]
    sigma = np.sqrt(0.05 * 0.95 / 20_000)
    assert abs(np.mean(noisy != clean) - 0.05) < 4 * sigma
    assert abs(np.mean(wrong != clean) - 0.05) > 4 * sigma


def test_synthetic_spread_follows_the_appendix() -> None:
    x, _, owner = synthetic.synthetic_users(400, 60, 0.0, 3.0, 1)
    centres = np.stack([x[owner == user].mean(axis=0) for user in range(400)])
    within = np.stack([x[owner == user].var(axis=0, ddof=1) for user in range(400)]).mean(axis=0)
    variance = np.arange(1, 41) ** -1.2
    assert np.abs(within / variance - 1).max() < 0.06
    assert np.abs(within / np.arange(1, 41) ** -0.6 - 1).max() > 0.06  # the twin: j^-1.2 as a standard deviation
    # Centres have variance 1 + beta (and 1/60 of the spread within).
    assert abs(centres[:, 20:].var() - 4.0) < 0.3
    assert abs(centres[:, 20:].var() - 10.0) > 0.3  # the twin: beta as a standard deviation


def test_published_users_are_always_the_same_and_at_norm_one() -> None:
    made = load("dp-scaffold-users", root=None, clients=6, samples=60, alpha=5, beta=5, seed=1)
    again = load("dp-scaffold-users", root=None, clients=6, samples=60, alpha=5, beta=5, seed=2)
    assert made.x.shape == (360, 40) and made.classes == 10 and made.owner is not None
    np.testing.assert_array_equal(made.owner, np.repeat(np.arange(6), 60))
    np.testing.assert_array_equal(made.x, again.x)
    np.testing.assert_array_equal(made.y, again.y)
    np.testing.assert_allclose(np.linalg.norm(made.x, axis=1), 1, rtol=1e-6)
    other = load("dp-scaffold-users", root=None, clients=6, samples=60, alpha=0, beta=0)
    assert not np.array_equal(other.x, made.x)


def test_published_users_are_drawn_and_scaled_as_the_public_code_does_row_by_row() -> None:
    """One user after the other, feature after feature, in plain loops; row j gives the limits of feature j."""
    users, samples, alpha, beta = 3, 50, 5.0, 2.0
    old = np.random.RandomState(0)
    pairs = [(old.randn(users, *size), old.randn(users, *size)) for size in ((40,), (40, 10), (10,))]
    centres, weights, biases = (
        np.sqrt(spread) * mean + own for spread, (mean, own) in zip((beta, alpha, alpha), pairs, strict=True)
    )
    cov = np.diag([(j + 1) ** -1.2 for j in range(40)])
    rows = [old.multivariate_normal(centres[u], cov, samples) for u in range(users)]
    truth = [int(np.argmax(row @ weights[u] + biases[u])) for u in range(users) for row in rows[u]]
    changed = old.binomial(1, 0.05, len(truth))
    labels = old.randint(0, 10, len(truth))
    for mine in rows:
        for j in range(40):
            low, high = min(mine[j]), max(mine[j])
            for row in mine:
                row[j] = (row[j] - low) / (high - low)
    x, y, _ = synthetic.published_users(users, samples, alpha, beta)
    expected = np.concatenate([[row / np.sqrt(np.sum(row**2)) for row in mine] for mine in rows])
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        y, [new if flip else old for old, flip, new in zip(truth, changed, labels, strict=True)]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, r"data\.clients: found 0"),
        ({"clients": 2, "samples": 0}, r"data\.samples: found 0"),
        ({"clients": 2, "alpha": -1}, r"data\.alpha: found -1"),
        ({"clients": 2, "beta": float("nan")}, r"data\.beta: found nan"),
        ({"clients": 2, "alhpa": 1}, r"data\.alhpa: .*alpha"),
    ],
)
def test_synthetic_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words):
        load("synthetic", root=None, **options)


def test_unknown_names() -> None:
    with pytest.raises(HushError, match=r"data\.name.*mnits.*mnist.*accepted: digits") as error:
        load("mnits", root=None)
    assert error.value.key == "data.name"
    with pytest.raises(HushError, match=r"data\.part.*trian.*train"):
        load("digits", root=None, part="trian")
    with pytest.raises(HushError, match=r"data\.alpha"):
        load("digits", root=None, alpha=1.0)


# --- finding files


def test_root_must_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HUSH_DATA", raising=False)
    with pytest.raises(HushError) as error:
        load("mnist", root=None)
    assert "--data DIR" in one_line(error) and "HUSH_DATA" in one_line(error)
    with pytest.raises(HushError, match="no such directory"):
        load("mnist", root=str(tmp_path / "nowhere"))
    monkeypatch.setenv("HUSH_DATA", str(tmp_path))
    with pytest.raises(HushError, match="not found in"):
        load("mnist", root=None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["train-images-idx3-ubyte.gz", "MNIST/raw", "ossci-datasets"]),
        ("fashion-mnist", ["train-images-idx3-ubyte.gz", "FashionMNIST/raw", "zalandoresearch"]),
        ("cifar10", ["data_batch_1.bin", "cifar-10-python.tar.gz", "cifar-10-batches-bin", "~kriz/cifar.html"]),
        ("cifar100", ["train.bin", "cifar-100-binary.tar.gz", "cifar100/cifar-100-binary", "~kriz/cifar.html"]),
        ("emnist47", ["emnist-balanced-train-images-idx3-ubyte.gz", "emnist", "nist.gov"]),
        ("imdb", ["train.jsonl.xz", "aclImdb", "ai.stanford.edu"]),
    ],
)
def test_missing_file_names_it_the_places_and_the_source(tmp_path: Path, name: str, words: list[str]) -> None:
    with pytest.raises(HushError) as error:
        load(name, root=str(tmp_path))
    assert all(word in one_line(error) for word in [*words, str(tmp_path)])


# --- IDX


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("form", ["gz", "plain", "dotted"])
def test_mnist_layouts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny: tuple[np.ndarray, np.ndarray],
    folder: str,
    form: str,
) -> None:
    for part in ("train", "t10k"):
        for kind, array in zip(("images-idx3", "labels-idx1"), tiny, strict=True):
            raw = idx(array)
            if form == "gz":
                put(tmp_path / folder / f"{part}-{kind}-ubyte.gz", gzip.compress(raw), sources.MNIST, monkeypatch)
            else:
                monkeypatch.setitem(sources.MNIST, f"{part}-{kind}-ubyte", hashlib.sha256(raw).hexdigest())
                dash = "." if form == "dotted" else "-"
                put(tmp_path / folder / f"{part}-{kind.replace('-', dash)}-ubyte", raw)
    train = load("mnist", root=str(tmp_path))
    assert train.name == "mnist" and train.x.shape == (6, 1, 28, 28)
    np.testing.assert_allclose(train.x[:, 0], (tiny[0] / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(train.y, tiny[1])
    both = load("mnist", root=str(tmp_path), part="all")
    np.testing.assert_array_equal(both.x, np.concatenate([train.x, train.x]))


def test_named_folder_goes_before_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: tuple[np.ndarray, np.ndarray]
) -> None:
    for kind, array in zip(("images-idx3", "labels-idx1"), tiny, strict=True):
        name = f"train-{kind}-ubyte.gz"
        put(tmp_path / name, b"of another dataset")
        put(tmp_path / "fashion-mnist" / name, gzip.compress(idx(array)), sources.FASHION_MNIST, monkeypatch)
    assert load("fashion-mnist", root=str(tmp_path)).name == "fashion-mnist"
    with pytest.raises(HushError, match="SHA-256"):
        load("mnist", root=str(tmp_path))


def test_wrong_digest_is_refused_before_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "parse_idx", lambda *_: pytest.fail("parsed before it was verified"))
    monkeypatch.setattr(files, "gunzip", lambda *_: pytest.fail("decompressed before it was verified"))
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        put(tmp_path / "mnist" / name, b"not the file")
    with pytest.raises(HushError) as error:
        load("mnist", root=str(tmp_path))
    text = one_line(error)
    assert "train-images-idx3-ubyte.gz" in text and "440fcabf73cc" in text and "ossci-datasets" in text
    assert hashlib.sha256(b"not the file").hexdigest()[:12] in text


def emnist(root: Path, image_bytes: bytes, label_bytes: bytes) -> None:
    put(root / "emnist-balanced-train-images-idx3-ubyte.gz", image_bytes)
    put(root / "emnist-balanced-train-labels-idx1-ubyte.gz", label_bytes)


def test_emnist_is_turned_upright(tmp_path: Path, tiny: tuple[np.ndarray, np.ndarray]) -> None:
    emnist(tmp_path / "EMNIST" / "raw", gzip.compress(idx(tiny[0])), gzip.compress(idx(tiny[1])))
    found = load("emnist47", root=str(tmp_path))
    assert found.name == "emnist-balanced" and found.classes == 47 and found.x.flags.c_contiguous
    expected = (tiny[0].transpose(0, 2, 1) / 255 - 0.1751) / 0.3332
    np.testing.assert_allclose(found.x[:, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: gzip.compress(raw)[:-20], "not a complete gzip"),
        (lambda raw: b"\x00" * 40, "not a complete gzip"),
        (lambda raw: b"", "header empty"),
        (lambda raw: gzip.compress(raw)[:30] + b"\xff" * 50 + gzip.compress(raw)[80:], "not a complete gzip"),
        (lambda raw: gzip.compress(raw[:-5]), "bytes after the header"),
        (lambda raw: gzip.compress(raw + b"x"), "bytes after the header"),
        (lambda raw: gzip.compress(raw[:7]), "header 00000803"),
        (lambda raw: gzip.compress(b"\x00\x00\x0d" + raw[3:]), "header 00000d03"),
        (lambda raw: gzip.compress(idx(np.zeros((6, 27, 28), np.uint8))), r"shape \(6, 27, 28\)"),
        (lambda raw: gzip.compress(idx(np.zeros((5, 28, 28), np.uint8))), "6 labels for the 5 images"),
        (lambda raw: gzip.compress(idx(np.zeros((0, 28, 28), np.uint8))), "n >= 1"),
    ],
)
def test_broken_images(tmp_path: Path, tiny: tuple[np.ndarray, np.ndarray], spoil: Any, words: str) -> None:
    emnist(tmp_path, spoil(idx(tiny[0])), gzip.compress(idx(tiny[1])))
    with pytest.raises(HushError, match=words) as error:
        load("emnist47", root=str(tmp_path))
    assert str(tmp_path) in one_line(error)


def test_label_out_of_range_and_oversized_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: tuple[np.ndarray, np.ndarray]
) -> None:
    emnist(tmp_path, gzip.compress(idx(tiny[0])), gzip.compress(idx(np.full(6, 47, np.uint8))))
    with pytest.raises(HushError, match="label 47 of row 0; accepted: 0 to 46"):
        load("emnist47", root=str(tmp_path))
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    with pytest.raises(HushError, match="expands to more than 1000 bytes"):
        load("emnist47", root=str(tmp_path))


# --- arrays of one's own


def test_from_arrays_copies_and_converts() -> None:
    x, y = np.ones((4, 3)), np.array([0, 1, 2, 1], np.uint8)
    made = from_arrays(x, y)
    x[:] = 7
    assert made.name == "own arrays" and made.classes == 3 and made.x.dtype == np.float32 and made.y.dtype == np.int64
    assert made.x.max() == 1.0 and from_arrays(x, y, classes=5).classes == 5
    assert from_arrays(np.zeros((4, 1, 2, 2)), y).x.shape == (4, 1, 2, 2)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.ones((3, 2)), [0, 1], r"shapes \(3, 2\) of x, \(2,\) of y"),
        (np.ones(3), [0, 1, 1], "shapes"),
        (np.ones((0, 2)), np.zeros(0, int), "shapes"),
        (np.ones((2, 2)), [0.0, 1.0], "y is float64"),
        (np.array([["a"], ["b"]]), [0, 1], "x is <U1"),
        ([[1, 2], [3]], [0, 1], "not a regular array"),
        (np.array([[1.0], [np.nan]]), [0, 1], "row 1 of x contains NaN"),
        (np.array([[np.inf], [-np.inf]]), [0, 1], "row 0 of x contains NaN or infinity"),
        (np.array([[1.0], [1e300]]), [0, 1], "row 1 of x"),
        (np.ones((2, 2)), [0, -1], "label -1 of row 1"),
    ],
)
def test_from_arrays_refuses(x: Any, y: Any, words: str) -> None:
    with pytest.raises(HushError, match=words) as error:
        from_arrays(x, y)
    one_line(error)


def test_check_finite() -> None:
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2])
    check_finite(Dataset(name="d", x=x, y=y, classes=3))
    with pytest.raises(HushError, match="label 2 of row 2; accepted: 0 to 1"):
        check_finite(Dataset(name="d", x=x, y=y, classes=2))
    x[1, 0] = np.nan
    with pytest.raises(HushError, match="row 1"):
        check_finite(Dataset(name="d", x=x, y=y, classes=3))
    # Large but finite float32 values are no infinity.
    check_finite(Dataset(name="d", x=np.full((3, 2), 3e38, np.float32), y=y, classes=3))


def test_importing_the_package_is_light() -> None:
    code = "import sys, hush.data; sys.exit(bool({'torch', 'sklearn', 'scipy', 'PIL'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_known_digest_is_a_digest() -> None:
    tables = (sources.MNIST, sources.FASHION_MNIST, sources.EMNIST47_SUBSET, sources.CIFAR10_SHEETS, sources.IMDB)
    digests = [digest for table in (*tables, sources.CIFAR10_RECORDS) for digest in table.values()]
    assert len(set(digests)) == len(digests) and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
