"""Two noisy circles, one inside the other: a custom dataset in one file."""

from __future__ import annotations

import numpy as np

import hush


def two_circles() -> hush.data.Dataset:
    """2,000 points in the plane; the class is the circle that a point lies on."""
    rng = np.random.default_rng(0)
    label = np.arange(2_000) % 2
    angle = rng.uniform(0.0, 2.0 * np.pi, len(label))
    radius = 1.0 - 0.5 * label + rng.normal(0.0, 0.08, len(label))
    return hush.data.from_arrays(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1), label)
