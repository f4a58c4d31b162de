"""Fixed 2-D wavelet scattering: stable image features with no learned or data-dependent part, so they cost no privacy.

A Morlet wavelet of scale j and angle theta is an oriented, modulated Gaussian with its mean removed,

    psi(u) = c (exp(i xi.u) - beta) exp(-u'Q u),    Q = R diag(1, slant^2) R' / (2 sigma^2),

with sigma = 0.8 * 2^j, xi = 3 pi / 4 / 2^j along theta, slant = 4 / L and c = slant / (2 pi sigma^2). The low-pass phi
is the Gaussian of sigma 0.8 * 2^(J-1). The coefficients are x * phi, |x * psi_1| * phi and ||x * psi_1| * psi_2| * phi
for growing scales, every 2^J pixels. Wavelets act in the Fourier domain, where a coarser grid folds the spectrum; phi
separates into rows and columns and acts as two small matrices that smooth, subsample and crop at once.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hush.types import HushError

_REACH = 9.0  # standard deviations after which a Gaussian is below the rounding of float64
_CHUNK_BYTES = (
    1 << 22
)  # working set of one chunk on a CPU: small enough for the cache, large enough to hide call overhead
_CHUNK_BYTES_CUDA = 1 << 28


@dataclass(frozen=True)
class _Bank:
    """Filters for one padded size: smooth[level] is a pair of matrices; wavelets[j][level] is (L, H, 2 W) over 2^level.

    Every wavelet value stands twice, for the real and the imaginary part of a spectrum: long real products are far
    faster than complex ones.
    """

    wavelets: tuple[tuple[Tensor, ...], ...]
    smooth: tuple[tuple[Tensor, Tensor], ...]


def channels(J: int = 2, L: int = 8) -> int:
    """Scattering channels for one colour channel."""
    return 1 + J * L + L * L * J * (J - 1) // 2


def scatter(x: Tensor, J: int = 2, L: int = 8) -> Tensor:
    """Scattering coefficients up to order two.

    Args:
        x: Images, (n, c, h, w). A side that is no multiple of 2^J is extended by reflection at its end.
        J: Number of scales; the output grid has a point every 2^J pixels.
        L: Number of angles in half a turn.

    Returns:
        (n, c * channels(J, L), ceil(h / 2^J), ceil(w / 2^J)) in float32; colour channels are outermost, then come order
        zero, order one by (scale, angle), order two by (scale, angle, coarser scale, angle).
    """
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise HushError(f"images: found shape {tuple(x.shape)}, accepted is (n, channels, height, width)")
    if J < 1 or L < 1:
        raise HushError(f"scattering: found J = {J} and L = {L}, accepted are integers from 1 up")
    n, c, h, w = x.shape
    step = 2**J
    rows, columns = _reflected(h, step).to(x.device), _reflected(w, step).to(x.device)
    bank = _bank(len(rows), len(columns), J, L, str(x.device))
    grid = (len(rows) // step - 2, len(columns) // step - 2)
    flat = x.reshape(n * c, h, w)
    out = torch.empty(n * c, channels(J, L), *grid, dtype=torch.float32, device=x.device)
    room = _CHUNK_BYTES_CUDA if x.is_cuda else _CHUNK_BYTES
    widest = max(L * (J if j == 0 else L * j) / 4**j for j in range(J))
    size = max(1, int(room / (8 * len(rows) * len(columns) * widest)))
    for start in range(0, n * c, size):
        part = flat[start : start + size].float()
        out[start : start + size] = _transform(part[:, rows][:, :, columns], bank)
    return out.view(n, c * channels(J, L), *grid)


def features(x: Tensor) -> Tensor:
    """Group-normalised scattering features (J = 2, L = 8) of images (n, c, h, w), one flat row an image."""
    s = scatter(x)
    return F.group_norm(s, 27 * x.shape[1]).flatten(1)


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return what changes whenever the features may: the SHA-256 of the code that computes them."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _transform(x: Tensor, bank: _Bank) -> Tensor:
    """Coefficients of padded images (m, H, W), as (m, channels, rows, columns)."""
    m = len(x)
    orders: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([_smooth(x[:, None], bank, 0)], [], [])
    X = torch.fft.fft2(x)[:, None]
    for j, levels in enumerate(bank.wavelets):
        first = _modulus(X, levels[0], 2**j)
        orders[1].append(_smooth(first, bank, j))
        coarser = bank.wavelets[j + 1 :]
        if not coarser:
            continue
        Y = torch.fft.fft2(first)[:, :, None]
        second = [_smooth(_modulus(Y, b[j], 2 ** (k + 1)), bank, j + k + 1) for k, b in enumerate(coarser)]
        orders[2].append(torch.stack(second, 2).flatten(1, 3))
    return torch.cat([s.reshape(m, -1, *s.shape[-2:]) for order in orders for s in order], 1)


def _modulus(X: Tensor, filters: Tensor, k: int) -> Tensor:
    """|x * psi| on a grid k times coarser, for every filter: the spectrum is folded before the way back."""
    parts = torch.view_as_real(X).flatten(-2)
    h, w = parts.shape[-2] // k, parts.shape[-1] // k
    blocks = [(..., slice(a * h, a * h + h), slice(b * w, b * w + w)) for a in range(k) for b in range(k)]
    total = parts[blocks[0]] * filters[blocks[0]]
    for block in blocks[1:]:
        total.addcmul_(parts[block], filters[block])
    folded = torch.view_as_complex(total.unflatten(-1, (-1, 2)))
    return torch.abs(torch.fft.ifft2(folded))


def _smooth(x: Tensor, bank: _Bank, level: int) -> Tensor:
    rows, columns = bank.smooth[level]
    return rows @ (x @ columns)


def _reflected(size: int, step: int) -> Tensor:
    """Indices that mirror an axis at its ends, from one step before it to one after its next multiple of the step."""
    i = torch.arange(-step, -(-size // step) * step + step)
    period = max(2 * (size - 1), 1)
    i = i.remainder(period)
    return torch.minimum(i, (period - i).abs()).clamp_max(size - 1)


@lru_cache(maxsize=16)
def _bank(H: int, W: int, J: int, L: int, device: str) -> _Bank:
    # The order of the angles is that of kymatio, so that the two can be compared channel by channel.
    angles = [(int(L / 2 - 1) - t) * math.pi / L for t in range(L)]

    def wavelet(j: int, level: int) -> Tensor:
        full = torch.stack([_morlet(H, W, j, angle, 4 / L) for angle in angles])
        # The inverse transform on the coarser grid divides by fewer points.
        full = full / 4 ** (j - level)
        return _ready(_crop(_crop(full, level, -2), level, -1).repeat_interleave(2, -1), device)

    wavelets = tuple(tuple(wavelet(j, level) for level in range(max(j, 1))) for j in range(J))
    smooth = [(_lowpass(H, J, level), _lowpass(W, J, level).T) for level in range(J)]
    return _Bank(wavelets, tuple((_ready(rows, device), _ready(columns, device)) for rows, columns in smooth))


def _ready(t: Tensor, device: str) -> Tensor:
    return t.to(torch.float32).contiguous().to(device)


def _morlet(H: int, W: int, j: int, angle: float, slant: float) -> Tensor:
    """The (real) spectrum of a Morlet wavelet, summed over periods of the grid."""
    sigma, xi = 0.8 * 2**j, 0.75 * math.pi / 2**j
    u, v = (_axis(size, sigma / min(slant, 1)) for size in (H, W))
    along = u[:, None] * math.cos(angle) + v * math.sin(angle)
    across = v * math.cos(angle) - u[:, None] * math.sin(angle)
    bell = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * (slant / (2 * math.pi * sigma**2))
    wave, bell = (f.view(-1, H, len(v) // W, W).sum((0, 2)) for f in (bell * torch.exp(1j * xi * along), bell))
    return torch.real(torch.fft.fft2(wave - wave.sum() / bell.sum() * bell))


def _axis(size: int, sigma: float) -> Tensor:
    """Coordinates over all periods of an axis that a Gaussian at zero reaches."""
    periods = math.ceil(_REACH * sigma / size)
    return torch.arange(-periods * size, (periods + 1) * size, dtype=torch.float64)


def _crop(spectrum: Tensor, level: int, dim: int) -> Tensor:
    """Keep the frequencies [-1/2, 1/2) of a grid 2^level coarser along one axis."""
    if level == 0:
        return spectrum
    size = spectrum.shape[dim] >> level
    upper = size - size // 2
    return torch.cat([spectrum.narrow(dim, 0, size - upper), spectrum.narrow(dim, -upper, upper)], dim)


def _lowpass(size: int, J: int, level: int) -> Tensor:
    """The matrix that smooths an axis of a level, keeps every 2^J-th pixel of the full grid and drops the padding."""
    sigma = 0.8 * 2 ** (J - 1)
    bell = torch.exp(-(_axis(size, sigma) ** 2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    kernel = torch.real(torch.fft.ifft(_crop(torch.fft.fft(bell.view(-1, size).sum(0)), level, -1)))
    coarse, stride = size >> level, 2 ** (J - level)
    at = torch.arange(stride, coarse - stride, stride)
    return kernel[(at[:, None] - torch.arange(coarse)).remainder(coarse)]
