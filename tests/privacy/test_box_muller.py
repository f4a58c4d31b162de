"""Normal numbers from bits: chosen ones give what they should, fresh ones are distributed as they should be."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from hush.privacy import box_muller
from hush.privacy.noise import Secure
from hush.privacy.secure_bits import reader
from tests.support import normal_checks as checks

BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def drawn(dtype: type) -> checks.Drawn:
    def draw(size: int) -> np.ndarray:
        out: np.ndarray = np.empty(size, dtype)
        box_muller.fill(out, reader(box_muller.pair_bytes(out.dtype) * (size + 1) // 2))
        return out

    return draw


def made_of(dtype: type, magnitudes: list[int], angles: list[int]) -> np.ndarray:
    """What those words become: cosines, then sines."""
    angle = np.array(angles, np.int64).astype(np.int32 if dtype is np.float32 else np.int64)
    given = np.array(magnitudes, np.int64).tobytes() + angle.tobytes()

    def read(target: np.ndarray, size: int) -> None:
        assert size == len(given)
        target[:size] = np.frombuffer(given, np.uint8)

    out: np.ndarray = np.empty(2 * len(magnitudes), dtype)
    box_muller.fill(out, read)
    return out


@BOTH
def test_the_radius_has_63_bits(dtype: type) -> None:
    words = [0, 1, -1, 2, 3, 2**20 + 1, -(2**40), 2**62, 2**63 - 1, -(2**63)]
    found = made_of(dtype, words, [0] * len(words))
    expected = [math.sqrt(-2 * math.log(max(abs(w), 0.5) * 2.0**-63)) for w in words]
    np.testing.assert_allclose(found[: len(words)], expected, rtol=1e-6 if dtype is np.float32 else 1e-14)
    assert not found[len(words) :].any()
    assert found[0] > 9.4, "numbers reach beyond 9.4"
    assert np.isfinite(found).all()


@BOTH
def test_the_angle_goes_around(dtype: type) -> None:
    bits = 31 if dtype is np.float32 else 63
    parts = np.array([-8, -5, -2, -1, 0, 1, 3, 4, 7], np.int64)
    found = made_of(dtype, [2**62] * len(parts), (parts * 2 ** (bits - 3)).tolist())
    radius, angle = math.sqrt(2 * math.log(2)), parts * math.pi / 8
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(found, expected, atol=1e-6 if dtype is np.float32 else 1e-14)


@BOTH
@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 65_535, 65_536, 65_537, 150_001])
def test_any_number_of_them_is_drawn(dtype: type, size: int) -> None:
    found = drawn(dtype)(size)
    assert found.dtype == dtype
    assert len(found) == size
    # Numbers of float32 may meet by chance.
    distinct = len(set(found.tolist()))
    assert distinct >= 0.98 * size if dtype is np.float32 else distinct == size


@BOTH
def test_they_are_normal_to_the_tails_and_independent(dtype: type) -> None:
    draw = drawn(dtype)
    assert checks.chi_square(draw, 2_000_000)
    assert checks.tails(draw, checks.ENOUGH)
    assert checks.independence(draw, drawn(dtype), 500_000)


def test_wrong_ones_are_noticed() -> None:
    draw = drawn(np.float32)
    assert not checks.tails(checks.clamped(draw, 3.5), 1_000_000)
    assert not checks.tails(checks.clamped(draw, 5.0), checks.ENOUGH)
    assert not checks.tails(checks.coarse(draw), 1_000_000)
    assert not checks.independence(checks.repeated(draw), draw, 100_000)
    same = checks.repeated(draw)
    assert not checks.independence(same, same, 100_000)
    assert not checks.chi_square(checks.scaled(draw), 2_000_000)


@pytest.mark.parametrize("size", [1, 10, 410, 20_000, 100_000])
def test_a_source_gives_every_number_once(size: int) -> None:
    source = Secure()
    found = torch.cat([source.normal(size, torch.float64) for _ in range(max(3, 2000 // size))])
    assert len(found) == len(set(found.tolist()))
    assert source.normal(3, torch.float32).dtype == torch.float32
    assert source.normal(3, torch.bfloat16).dtype == torch.bfloat16
    assert source.normal(size, torch.float64).isfinite().all()


def test_a_source_that_draws_ahead_is_as_normal() -> None:
    source, other = Secure(), Secure()

    def ahead(of: Secure) -> checks.Drawn:
        return lambda size: torch.cat([of.normal(500, torch.float32) for _ in range(-(-size // 500))])[:size].numpy()

    assert checks.tails(ahead(source), 2_000_000, furthest=4)
    assert checks.chi_square(ahead(source), 1_000_000)
    assert checks.independence(ahead(source), ahead(other), 200_000)


def test_a_secure_source_is_neither_copied_nor_written() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither copied nor written"):
            attempt(Secure())
