"""The scattering transform against kymatio, and the properties that make it worth having."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hush import seeds
from hush.models import scattering
from hush.types import HushError

# kymatio divides its Gaussians by 2 * 3.1415 * sigma^2: every convolution with a filter is that much larger.
ROUNDED_PI = math.pi / 3.1415


@pytest.fixture(scope="module")
def kymatio() -> Callable[[Tensor, int, int], Tensor]:
    import scipy.special

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not hasattr(scipy.special, "sph_harm"):
            scipy.special.sph_harm = None
        from kymatio.torch import Scattering2D

    def transform(x: Tensor, J: int, L: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = Scattering2D(J=J, shape=tuple(x.shape[-2:]), L=L)(x)
        order = torch.tensor([0] + [1] * (J * L) + [2] * (out.shape[2] - 1 - J * L))
        return (out / (ROUNDED_PI ** (order + 1))[:, None, None]).flatten(1, 2)

    return transform


def images(*shape: int) -> Tensor:
    return torch.from_numpy(seeds.rng(0, "images", *shape).random(shape, dtype=np.float32))


@pytest.mark.parametrize(
    ("shape", "J", "L"),
    [
        ((3, 1, 28, 28), 2, 8),
        ((2, 3, 32, 32), 2, 8),
        ((2, 1, 8, 8), 2, 8),
        ((2, 2, 48, 32), 3, 6),
        ((1, 1, 32, 32), 1, 5),
    ],
)
def test_equals_kymatio(kymatio: Callable[[Tensor, int, int], Tensor], shape: tuple[int, ...], J: int, L: int) -> None:
    x = images(*shape)
    torch.testing.assert_close(scattering.scatter(x, J, L), kymatio(x, J, L), rtol=1e-5, atol=1e-6)


def test_a_wrong_slant_is_noticed(
    kymatio: Callable[[Tensor, int, int], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = scattering._morlet
    monkeypatch.setattr(scattering, "_morlet", lambda H, W, j, angle, slant: right(H, W, j, angle, 1.1 * slant))
    scattering._bank.cache_clear()
    try:
        x = images(1, 1, 28, 28)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(scattering.scatter(x), kymatio(x, 2, 8), rtol=1e-5, atol=1e-6)
    finally:
        scattering._bank.cache_clear()


@pytest.mark.parametrize(("h", "w"), [(28, 28), (32, 32), (8, 8), (30, 17), (5, 4), (1, 3)])
def test_shapes_of_any_size(h: int, w: int) -> None:
    out = scattering.scatter(images(2, 3, h, w))
    assert out.shape == (2, 3 * 81, -(-h // 4), -(-w // 4))
    assert out.dtype == torch.float32
    assert bool(out.isfinite().all())


def test_channels_count_the_paths() -> None:
    assert (scattering.channels(), scattering.channels(3, 6), scattering.channels(1, 4)) == (81, 127, 5)


def test_a_constant_image_has_only_its_mean() -> None:
    """Wavelets have mean zero, and the low-pass has mean one but for the discretisation of its Gaussian."""
    out = scattering.scatter(torch.full((1, 1, 16, 16), 2.0))
    torch.testing.assert_close(out[:, :1], torch.full((1, 1, 4, 4), 2.0), rtol=1e-3, atol=0)
    assert float(out[:, 1:].abs().max()) < 1e-5


def test_energy_is_not_created_and_order_two_holds_less_than_order_one() -> None:
    x = torch.from_numpy(seeds.rng(1, "noise").standard_normal((4, 1, 64, 64), dtype=np.float32))
    out = scattering.scatter(x)
    pixels = 16  # each coefficient stands for a square of 4 x 4 pixels
    energy = [pixels * float(part.square().sum()) for part in (out[:, :1], out[:, 1:17], out[:, 17:])]
    assert sum(energy) < float(x.square().sum())
    assert 0 < energy[2] < energy[1]


def test_contracts_distances() -> None:
    x, y = images(2, 1, 32, 32)
    apart = scattering.scatter(x[None]) - scattering.scatter(y[None])
    assert 4 * float(apart.norm()) < float((x - y).norm())


def test_a_shift_moves_features_less_than_pixels() -> None:
    u = torch.arange(32, dtype=torch.float32)
    x = torch.exp(-((u[:, None] - 14).square() + (u - 17).square()) / 8) * torch.cos(1.9 * u)
    x = x[None, None]
    y = x.roll(1, dims=-1)
    s, t = scattering.scatter(x), scattering.scatter(y)
    moved = float((s - t).norm() / s.norm())
    assert moved < 0.35 * float((x - y).norm() / x.norm())
    assert moved > 0


def test_the_answer_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(5, 2, 12, 16)
    whole = scattering.scatter(x)
    monkeypatch.setattr(scattering, "_CHUNK_BYTES", 1)
    torch.testing.assert_close(scattering.scatter(x), whole, rtol=1e-6, atol=1e-7)


def test_features_are_normalised_by_groups_of_three() -> None:
    x = images(3, 2, 28, 28)
    out = scattering.features(x)
    assert out.shape == (3, 2 * 81 * 49)
    raw = scattering.scatter(x).view(3, 54, 3 * 49)
    expected = (raw - raw.mean(-1, keepdim=True)) / (raw.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(out.view(3, 54, 3 * 49), expected, rtol=1e-4, atol=1e-4)


def test_no_images_make_no_features() -> None:
    assert scattering.features(torch.zeros(0, 1, 28, 28)).shape == (0, 81 * 49)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(HushError, match=r"images: found shape \(28, 28\)"):
        scattering.scatter(torch.zeros(28, 28))
    with pytest.raises(HushError, match="J = 0"):
        scattering.scatter(torch.zeros(1, 1, 8, 8), 0)
