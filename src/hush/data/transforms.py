"""Transforms of a client's rows: quarter turns, changed labels, salt-and-pepper noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hush.data.datasets import Dataset
from hush.data.partition import Share
from hush.data.validation import wrong
from hush.seeds import rng

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Limit = float | Features


def unit_rows(dataset: Dataset) -> Dataset:
    """Scale each row to norm 1 independently: this has no privacy cost, and one clipping norm then suits all rows.

    Rows of zeros or of subnormal numbers, which have too few digits, are not changed.
    """
    return replace(dataset, x=unit_norm(dataset.x), given=dataset.x)


def unit_norm(x: Features) -> Features:
    """The same of rows alone."""
    norms = np.linalg.norm(x.reshape(len(x), -1).astype(np.float64), axis=1)
    usable = norms >= np.finfo(np.float32).tiny
    scale = np.where(usable, 1 / np.where(usable, norms, 1), 1).astype(x.dtype)
    return x * scale.reshape(-1, *(1,) * (x.ndim - 1))


def phase(share: Share, round_number: int) -> int:
    """Return the entry of the noise schedule that applies in a round; a client's data change only when it changes."""
    return max(sum(start <= round_number for start, _ in share.salt) - 1, 0)


def limits(x: Features) -> tuple[Features, Features]:
    """Return the minimum and maximum of each channel (of each feature, for tables), for `apply`."""
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    return x.min(axis=axes, keepdims=True), x.max(axis=axes, keepdims=True)


def apply(
    x: Features,
    y: Labels,
    share: Share,
    round_number: int,
    seed: int,
    client: int,
    classes: int,
    *,
    low: Limit | None = None,
    high: Limit | None = None,
) -> tuple[Features, Labels]:
    """Return the client's rows in a round. The arguments are not modified.

    Args:
        x: Features of the client's rows.
        y: Their labels.
        share: What the partition gave the client.
        round_number: The round, for a salt schedule that changes.
        seed: Of the salt-and-pepper mask, which depends on it, on the client and on the phase only.
        client: The number of the client.
        classes: The number of classes, for moved labels.
        low: What a pixel turned to pepper becomes: a number, or one a channel (`limits`). By default those of `x`.
        high: What a pixel turned to salt becomes.
    """
    if share.rotate % 4:
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise wrong("data.partition", f'"rotation" needs square images, found rows of shape {x.shape[1:]}')
        x = np.ascontiguousarray(np.rot90(x, share.rotate, axes=(2, 3)))
    if share.flip and share.flip % classes:
        y = (y + share.flip) % classes
    density = _density(share, round_number)
    if density > 0.0 and x.size:
        gen = rng(seed, "salt", client, phase(share, round_number))
        x = _salted(x, density, gen, limits(x)[0] if low is None else low, limits(x)[1] if high is None else high)
    return x, y


def _density(share: Share, round_number: int) -> float:
    active = [density for start, density in share.salt if start <= round_number]
    return active[-1] if active else 0.0


def _salted(x: Features, density: float, gen: np.random.Generator, low: Limit, high: Limit) -> Features:
    """Set each pixel (all its channels, or one feature of a table) to low or high with probability `density`."""
    shape = (len(x), 1, *x.shape[2:]) if x.ndim == 4 else x.shape
    draw = gen.random(shape, np.float32)
    salted = np.where(draw < density / 2, low, np.where(draw < density, high, x))
    return salted.astype(np.float32)
