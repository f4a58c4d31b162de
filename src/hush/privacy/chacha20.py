"""ChaCha20 as a source of secure noise on a GPU, so that nothing waits for the host.

Guarantees:
    - Every stream has a key of its own, fresh from the operating system. It is on the device alone, is overwritten when
      the stream is no longer needed, and is in no representation, copy or file of it.
    - Every draw has a number of its own, which the device counts: a captured graph that draws does so anew whenever it
      is replayed.

Edge cases:
    - Each CUDA stream, and each process after a fork, has a key of its own, so that no two kernels share a count.
    - Hush draws outside of its captured graphs. Whoever draws inside one must draw once before on the same CUDA stream,
      as no key is made during a capture, and must not replay the graph when the stream of noise is gone.
    - There is none where Triton's kernels cannot run.
"""

from __future__ import annotations

import importlib
import os
import weakref
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from hush.privacy.secure_bits import fresh_key
from hush.privacy.source import DeviceRng
from hush.types import HushError

NORMALS, ROWS = 0, 1  # domains: what the key stream is used for
LANES = 128
_MOST = 1 << 34  # numbers of a draw, so that its blocks can be counted in 32 bits


class ChaCha20Rng:
    """A `DeviceRng` that nobody can draw again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[tuple[int, int], _KeyStream] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secure stream is neither copied nor written: both copies would draw the same noise")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"

    def fill(self, target: Tensor) -> None:
        """Write the next normal numbers, of the precision of float32, into the target."""
        self._stream().draw(_kernels().NORMAL, target.view(-1), NORMALS, 10)

    def words(self, target: Tensor) -> None:
        """Write fair bits into the target, 64 in each of its int64 numbers."""
        self._stream().draw(_kernels().WORDS, target.view(-1).view(torch.int32), ROWS, 16)

    def _stream(self) -> _KeyStream:
        """Return the key stream of the current CUDA stream."""
        current = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        key = (os.getpid(), 0 if current is None else current.cuda_stream)
        if key not in self._streams:
            self._streams[key] = _KeyStream(self._device, current)
        return self._streams[key]


class _KeyStream:
    """A key on the device, and the number of the next draw."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        if stream is not None and torch.cuda.is_current_stream_capturing():
            raise HushError("noise: no key can be made while a CUDA graph is captured on this stream; draw once before")
        host = fresh_key()
        self._key = torch.frombuffer(host, dtype=torch.int32).to(device, copy=True)
        host[:] = bytes(len(host))
        self._draws = torch.zeros(1, dtype=torch.int64, device=device)
        weakref.finalize(self, _overwrite, self._key, stream)

    def draw(self, kernel: Any, target: Tensor, domain: int, a_block: int) -> None:
        """Fill the target, `a_block` numbers from each block of the cipher."""
        size = target.numel()
        if size > _MOST:
            raise HushError(f"noise: {size:,} numbers are too many for one draw; accepted: up to {_MOST:,}")
        if size:
            kernel[(-(-size // (a_block * LANES)),)](
                target, self._key, self._draws, size, DOMAIN=domain, LANES=LANES, num_warps=4
            )
            self._draws.add_(1)


def device_rng(device: torch.device) -> DeviceRng | None:
    """Return a stream on that device, if Triton's kernels can run there."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and _kernels() is not None
    return ChaCha20Rng(device) if able else None


def _overwrite(key: Tensor, stream: torch.cuda.Stream | None) -> None:
    """Overwrite a key after all that its CUDA stream still has to draw."""
    with torch.cuda.stream(stream):
        key.zero_()


@cache
def _kernels() -> Any:
    try:
        return importlib.import_module("hush.privacy.chacha20_kernels")
    except ImportError:
        return None
