"""Draws on a device for many clients: each client's numbers from its own generator, in as few launches as there can be.

Guarantees:
    - A client's numbers are those that its generator would give by itself.

Edge cases:
    - ChaCha20 streams draw at once. PyTorch's generators draw one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hush.privacy import chacha20
from hush.privacy.chacha20 import ChaCha20Rng, Span
from hush.privacy.source import DeviceRng


def prepare(rngs: Sequence[DeviceRng]) -> None:
    """Let these generators draw together from now on, on the current CUDA stream."""
    secure = _secure(rngs)
    if secure:
        chacha20.share_keys(secure)


def normals(rngs: Sequence[DeviceRng], target: Tensor, spans: Sequence[Span]) -> None:
    """Write the next normal numbers of each generator into its span of a contiguous target."""
    secure = _secure(rngs)
    if secure:
        chacha20.fill_spans(secure, target, spans)
        return
    flat = target.view(-1)
    for rng, (begin, size) in zip(rngs, spans, strict=True):
        if size:
            rng.fill(flat[begin : begin + size])


def words(rngs: Sequence[DeviceRng], target: Tensor, spans: Sequence[Span]) -> None:
    """The same with random bits, 64 in each int64 number."""
    secure = _secure(rngs)
    if secure:
        chacha20.word_spans(secure, target, spans)
        return
    flat = target.view(-1)
    for rng, (begin, size) in zip(rngs, spans, strict=True):
        if size:
            rng.words(flat[begin : begin + size])


def _secure(rngs: Sequence[DeviceRng]) -> list[ChaCha20Rng]:
    """The generators, if all of them are ChaCha20's."""
    found = [rng for rng in rngs if isinstance(rng, ChaCha20Rng)]
    return found if len(found) == len(rngs) else []
