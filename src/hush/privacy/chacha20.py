"""ChaCha20 as a source of secure noise on a GPU, so that nothing waits for the host.

Guarantees:
    - Every stream has a key of its own, fresh from the operating system. It is on the device alone, is overwritten when
      the stream (of several that share a table of keys, the last one) is no longer needed, and is in no representation,
      copy or file of it.
    - Streams that draw at once draw what each would have drawn by itself.
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
from collections.abc import Sequence
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
_STREAMS = 1 << 15  # streams of a launch
_NORMALS_A_BLOCK, _WORDS_A_BLOCK = 10, 16
Span = tuple[int, int]  # where in a target, and how many numbers
_Place = tuple[int, int]


class ChaCha20Rng:
    """A `DeviceRng` that nobody can draw again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[_Place, _KeyStream] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secure stream is neither copied nor written: both copies would draw the same noise")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"

    def fill(self, target: Tensor) -> None:
        """Write the next normal numbers, of the precision of float32, into the target."""
        self._stream().draw(_kernels().NORMAL, target.view(-1), NORMALS, _NORMALS_A_BLOCK)

    def words(self, target: Tensor) -> None:
        """Write fair bits into the target, 64 in each of its int64 numbers."""
        self._stream().draw(_kernels().WORDS, target.view(-1).view(torch.int32), ROWS, _WORDS_A_BLOCK)

    def _stream(self) -> _KeyStream:
        """Return the key stream of the current CUDA stream."""
        place, current = _place(self._device)
        if place not in self._streams:
            self._streams[place] = _KeyStream(_KeyTable(self._device, current, 1), 0)
        return self._streams[place]


def share_keys(rngs: Sequence[ChaCha20Rng]) -> None:
    """Make the keys that these streams need on the current CUDA stream, in one table: they can then draw at once."""
    place, current = _place(rngs[0]._device)
    new = [rng for rng in rngs if place not in rng._streams]
    if new:
        table = _KeyTable(rngs[0]._device, current, len(new))
        for row, rng in enumerate(new):
            rng._streams[place] = _KeyStream(table, row)


def fill_spans(rngs: Sequence[ChaCha20Rng], target: Tensor, spans: Sequence[Span]) -> None:
    """Write each stream's next normal numbers into its span of a contiguous target."""
    if not _drawn_at_once(rngs, _kernels().NORMAL, target.view(-1), spans, NORMALS, _NORMALS_A_BLOCK):
        for rng, (begin, size) in zip(rngs, spans, strict=True):
            rng.fill(target.view(-1)[begin : begin + size])


def word_spans(rngs: Sequence[ChaCha20Rng], target: Tensor, spans: Sequence[Span]) -> None:
    """The same with fair bits, 64 in each int64 number."""
    words = [(2 * begin, 2 * size) for begin, size in spans]
    if not _drawn_at_once(rngs, _kernels().WORDS, target.view(-1).view(torch.int32), words, ROWS, _WORDS_A_BLOCK):
        for rng, (begin, size) in zip(rngs, spans, strict=True):
            rng.words(target.view(-1)[begin : begin + size])


def _drawn_at_once(
    rngs: Sequence[ChaCha20Rng], kernel: Any, target: Tensor, spans: Sequence[Span], domain: int, a_block: int
) -> bool:
    """Draw in one launch, if the keys follow each other in one table."""
    place, _ = _place(rngs[0]._device)
    streams = [rng._streams.get(place) for rng in rngs]
    first = streams[0]
    if first is None or not all(
        stream is not None and stream.table is first.table and stream.row == first.row + i
        for i, stream in enumerate(streams)
    ):
        return False
    first.table.draw(kernel, target, domain, a_block, first.row, spans)
    return True


class _KeyTable:
    """Keys on the device, and the number of the next draw of each."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None, number: int) -> None:
        if stream is not None and torch.cuda.is_current_stream_capturing():
            raise HushError("noise: no key can be made while a CUDA graph is captured on this stream; draw once before")
        host = fresh_key(number)
        self.keys = torch.frombuffer(host, dtype=torch.int32).to(device, copy=True).view(number, -1)
        host[:] = bytes(len(host))
        self.draws = torch.zeros(number, dtype=torch.int64, device=device)
        weakref.finalize(self, _overwrite, self.keys, stream)

    def draw(self, kernel: Any, target: Tensor, domain: int, a_block: int, first: int, spans: Sequence[Span]) -> None:
        """Fill a span of the target from each key beginning with the first, in one launch."""
        largest = max(size for _, size in spans)
        _check_size(largest)
        if not largest:
            return
        table, blocks = torch.tensor(spans).to(target.device), -(-largest // (a_block * LANES))
        for start in range(0, len(spans), _STREAMS):
            part = slice(start, start + _STREAMS)
            own = slice(first + start, first + min(start + _STREAMS, len(spans)))
            kernel[(blocks, len(table[part]))](
                target, self.keys[own], self.draws[own], table[part], 0, DOMAIN=domain, LANES=LANES, TABLE=True,
                num_warps=4,
            )  # fmt: skip
            self.draws[own].add_(1)


class _KeyStream:
    """A row of a table of keys."""

    def __init__(self, table: _KeyTable, row: int) -> None:
        # The table is overwritten when the last of its rows is no longer needed.
        self.table, self.row = table, row
        self._key, self._draws = table.keys[row], table.draws[row : row + 1]

    def draw(self, kernel: Any, target: Tensor, domain: int, a_block: int) -> None:
        """Fill the target, `a_block` numbers from each block of the cipher."""
        size = target.numel()
        _check_size(size)
        if size:
            kernel[(-(-size // (a_block * LANES)),)](
                target, self._key, self._draws, self._draws, size, DOMAIN=domain, LANES=LANES, TABLE=False, num_warps=4
            )
            self._draws.add_(1)


def _place(device: torch.device) -> tuple[_Place, torch.cuda.Stream | None]:
    """Return what a key is for, this process and the current CUDA stream, and that stream."""
    current = torch.cuda.current_stream(device) if device.type == "cuda" else None
    return (os.getpid(), 0 if current is None else current.cuda_stream), current


def _check_size(size: int) -> None:
    if size > _MOST:
        raise HushError(f"noise: {size:,} numbers are too many for one draw; accepted: up to {_MOST:,}")


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
