"""Bits of the operating system, stretched: published vectors, fresh keys, and what a fork shares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from hush.privacy import secure_bits
from tests.statistical.release_harness import RARE

# NIST SP 800-38A, F.5.5 (CTR-AES256.Encrypt).
KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
SECRET = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)
MANY = 1 << 20


def taken(pieces: list[int]) -> bytes:
    """What a reader writes in pieces of these sizes."""
    read, found = secure_bits.reader(MANY), b""
    for size in pieces:
        target = np.empty(size + secure_bits.SPARE, np.uint8)
        read(target, size)
        found += target[:size].tobytes()
    return found


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: KEY if size == 32 else COUNTER)


@pytest.mark.usefixtures("known")
def test_many_bits_are_those_of_the_published_vectors() -> None:
    assert bytes(a ^ b for a, b in zip(taken([64]), PLAIN, strict=True)) == SECRET


@pytest.mark.usefixtures("known")
def test_pieces_of_any_size_are_one_stream() -> None:
    whole = taken([MANY])
    assert taken([12, 49_152, 16, MANY - 49_180]) == whole
    assert len(set(np.frombuffer(whole, "<u8").tolist())) == MANY // 8


@pytest.mark.parametrize("size", [1, 100, 384, 385, 100_000])
def test_nothing_is_drawn_twice(size: int) -> None:
    drawn = np.concatenate([secure_bits.words(size) for _ in range(3)])
    assert len(drawn) == 3 * size == len(set(drawn.tolist()))


@pytest.mark.parametrize("size", [300, 200_000])
def test_every_byte_is_as_likely(size: int) -> None:
    counts = np.bincount(np.concatenate([secure_bits.words(size) for _ in range(20)]).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > RARE


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without the package cryptography."""
    secure_bits._cipher.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    yield
    secure_bits._cipher.cache_clear()


@pytest.mark.usefixtures("bare")
def test_without_the_package_all_bits_are_the_operating_systems() -> None:
    with pytest.warns(UserWarning, match="cryptography is not installed"):
        drawn = secure_bits.words(100_000)
    assert len(set(drawn.tolist())) == 100_000
    secure_bits.words(100_000)  # it is said once


@pytest.mark.slow
def test_two_processes_after_a_fork_draw_different_noise_and_rows() -> None:
    program = """
import os, torch
from hush.privacy.noise import Secure
source = Secure()
for _ in range(7):
    source.normal(50, torch.float32), source.chosen(40, 0.5)
assert len(source._normals._waiting) and source._rows._waiting
read, write = os.pipe()
child = os.fork()
drawn = repr([source.normal(50, torch.float32).tolist(), source.chosen(40, 0.5).tolist()]).encode()
if child == 0:
    os.write(write, drawn)
    os._exit(0)
os.close(write)
theirs = b""
while piece := os.read(read, 65536):
    theirs += piece
ours, theirs = eval(drawn), eval(theirs)
assert len(theirs[0]) == 50 and not set(ours[0]) & set(theirs[0]) and ours[1] != theirs[1]
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
