"""CIFAR-10: all layouts give the same arrays, and a pickle is read without being run."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hush.data import cifar, load, sources
from hush.data.cifar_batches import read_batch
from hush.seeds import rng
from hush.types import HushError

ROWS = 20


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


def python2_batch(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """What Python 2's cPickle wrote (protocol 2): byte strings, memo entries, an old NumPy name."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes((len(word),)) + word

    rows, columns = pixels.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85" + text(b"b") + b"\x87Rq\x08(K\x01"
        + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86cnumpy\ndtype\nq\x09"
        + text(b"u1") + b"K\x00K\x01\x87Rq\x0a(K\x03" + text(b"|") + b"NNNJ" + b"\xff" * 4
        + b"J" + b"\xff" * 4 + b"K\x00tb\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )  # fmt: skip
    numbers = b"".join(b"K" + bytes((int(label),)) for label in labels)
    names = b"".join(text(b"a.png") + b"r" + struct.pack("<i", 300 + at) for at in range(rows))
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
        + text(b"labels") + b"q\x04]q\x05(" + numbers + b"e" + text(b"data") + array
        + text(b"filenames") + b"]q\x0b(" + names + b"eu."
    )  # fmt: skip


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Six tiny batches, whose digests are made the known ones."""
    monkeypatch.setattr(cifar, "ROWS", ROWS)
    made = {}
    for batch in (*cifar.BATCHES["train"], *cifar.BATCHES["test"]):
        gen = rng(0, "cifar", batch)
        made[batch] = np.concatenate([gen.integers(0, 10, (ROWS, 1)), gen.integers(0, 256, (ROWS, 3072))], 1).astype(
            np.uint8
        )
        monkeypatch.setitem(sources.CIFAR10_RECORDS, batch, hashlib.sha256(made[batch].tobytes()).hexdigest())
    return made


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_sheets(folder: Path, records: dict[str, np.ndarray], patch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for batch, rows in records.items():
        tiles = rows[:, 1:].reshape(ROWS // 20, 20, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(-1, 640, 3)
        stream = io.BytesIO()
        Image.fromarray(tiles).save(stream, "WEBP", lossless=True)
        put(folder / f"{batch}.webp", stream.getvalue(), sources.CIFAR10_SHEETS, patch)
    for part, batches in cifar.BATCHES.items():
        labels = np.concatenate([records[batch][:, 0] for batch in batches])
        put(folder / f"{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)), sources.CIFAR10_SHEETS, patch)


@pytest.mark.parametrize("layout", ["bin", "py", "bin-archive", "py-archive", "sheets"])
def test_cifar_layouts_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: dict[str, np.ndarray], layout: str
) -> None:
    binary = {f"cifar-10-batches-bin/{batch}.bin": rows.tobytes() for batch, rows in records.items()}
    python = {f"cifar-10-batches-py/{batch}": python2_batch(rows[:, 1:], rows[:, 0]) for batch, rows in records.items()}
    if layout == "sheets":
        write_sheets(tmp_path / "cifar10", records, monkeypatch)
    elif layout.endswith("archive"):
        name = "cifar-10-binary.tar.gz" if layout.startswith("bin") else "cifar-10-python.tar.gz"
        write_archive(tmp_path / name, binary if layout.startswith("bin") else python)
    else:
        for name, content in (binary if layout == "bin" else python).items():
            put(tmp_path / name, content)
    found = load("cifar10", root=str(tmp_path), part="all")
    stacked = np.concatenate(list(records.values()))
    assert found.x.shape == (6 * ROWS, 3, 32, 32) and found.classes == 10
    np.testing.assert_array_equal(found.y, stacked[:, 0])
    mean, std = (np.array(values)[:, None, None] for values in (cifar.MEAN, cifar.STD))
    np.testing.assert_allclose(
        found.x, (stacked[:, 1:].reshape(-1, 3, 32, 32) / 255 - mean) / std, rtol=1e-4, atol=1e-5
    )


def test_cifar_broken_files(tmp_path: Path, records: dict[str, np.ndarray]) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    for batch in ("data_batch_1", "data_batch_2"):
        put(folder / f"{batch}.bin", records[batch].tobytes())
    with pytest.raises(HushError, match=r"data_batch_3\.bin: not found"):
        load("cifar10", root=str(tmp_path))
    put(folder / "test_batch.bin", records["test_batch"].tobytes()[:-1])
    with pytest.raises(HushError, match=f"{ROWS * 3073 - 1} bytes; expected {ROWS * 3073}"):
        load("cifar10", root=str(tmp_path), part="test")
    put(folder / "test_batch.bin", records["data_batch_1"].tobytes())
    with pytest.raises(HushError, match=r"test_batch of CIFAR-10.*SHA-256"):
        load("cifar10", root=str(tmp_path), part="test")


def test_cifar_broken_archive(tmp_path: Path, records: dict[str, np.ndarray]) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_archive(path, {"cifar-10-batches-bin/test_batch.bin": records["test_batch"].tobytes()})
    with pytest.raises(HushError, match=r"does not contain cifar-10-batches-bin/data_batch_1\.bin"):
        load("cifar10", root=str(tmp_path))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(HushError, match=r"not a complete tar\.gz|holds no"):
        load("cifar10", root=str(tmp_path), part="test")
    path.write_bytes(b"nonsense")
    with pytest.raises(HushError, match=r"not a complete tar\.gz"):
        load("cifar10", root=str(tmp_path), part="test")


def test_cifar_broken_sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: dict[str, np.ndarray]) -> None:
    write_sheets(tmp_path, records, monkeypatch)
    sheet = (tmp_path / "test_batch.webp").read_bytes()
    (tmp_path / "test_batch.webp").write_bytes(sheet[:-40])
    with pytest.raises(HushError, match="SHA-256"):
        load("cifar10", root=str(tmp_path), part="test")
    put(tmp_path / "test_batch.webp", sheet[:-40], sources.CIFAR10_SHEETS, monkeypatch)
    with pytest.raises(HushError, match="not a readable WebP"):
        load("cifar10", root=str(tmp_path), part="test")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_evil_pickle_is_refused_and_not_run(tmp_path: Path, records: dict[str, np.ndarray], protocol: int) -> None:
    witness = tmp_path / "ran"
    content = pickle.dumps({"data": Evil(witness), "labels": [0] * ROWS}, protocol)
    put(tmp_path / "cifar-10-batches-py" / "test_batch", content)
    with pytest.raises(HushError, match="refused: not allowed in a CIFAR-10 batch"):
        load("cifar10", root=str(tmp_path), part="test")
    assert not witness.exists()
    pickle.loads(content)
    assert witness.exists()  # the twin: unpickling does run it


def test_unused_reference_in_a_sound_batch_is_refused() -> None:
    whole = python2_batch(np.zeros((2, 8), np.uint8), np.array([1, 2]))
    with pytest.raises(HushError, match=r'not allowed in a CIFAR-10 batch: reference to "os\.system"'):
        read_batch(whole[:-2] + b"U\x01xcos\nsystem\nu.", "batch")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02}.",
        b"\x80\x02]q\x01.",
        b"\x80\x02e.",
        b"\x80\x02h\x05.",
        b"\x80\x02}(NNu.",
        b"\x80\x02}(U\x04datau.",
        b"\x80\x02cos\nsystem\n(U\x04truetR.",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        b"\x80\x02" + b")" + b"\x85" * 200_000 + b".",
    ],
)
def test_malformed_pickles(content: bytes) -> None:
    with pytest.raises(HushError):
        read_batch(content, "batch")


def test_nested_key_cannot_overflow_the_stack() -> None:
    with pytest.raises(HushError, match="key other than text"):
        read_batch(b"\x80\x02}(" + b")" + b"\x85" * 300_000 + b"Nu.", "batch")


def test_mutated_pickles_end_in_an_answer_or_a_hush_error() -> None:
    gen = rng(0, "mutations")
    whole = python2_batch(gen.integers(0, 256, (2, 8)).astype(np.uint8), np.array([1, 2]))
    pixels, labels = read_batch(whole, "batch")
    assert pixels.shape == (2, 8) and labels == [1, 2]
    refused = 0
    for _ in range(3000):
        spoiled = bytearray(whole)
        for at in gen.integers(0, len(whole), 3):
            spoiled[at] = gen.integers(0, 256)
        try:
            read_batch(bytes(spoiled[: gen.integers(1, len(whole) + 1)]), "batch")
        except HushError:
            refused += 1
    assert refused > 2000
