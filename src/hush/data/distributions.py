"""Distributions of the clients' epsilons used in the papers.

The papers write N(m, s) without saying whether s is the variance. Robust-HDP's published samples indicate that it is
the standard deviation: the 41 values near 1.0 of its Dist2 have a standard deviation of 0.12, close to 0.1 and far from
sqrt(0.1) = 0.32. It is used for both papers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Normal:
    """A normal distribution restricted to positive values."""

    mean: float
    std: float

    def draw(self, gen: np.random.Generator) -> float:
        """Return one sample."""
        return float(gen.normal(self.mean, self.std))


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution."""

    low: float
    high: float

    def draw(self, gen: np.random.Generator) -> float:
        """Return one sample."""
        return float(gen.uniform(self.low, self.high))


@dataclass(frozen=True)
class Pareto:
    """A Pareto distribution: `scale` is the minimum, `shape` the exponent of the tail."""

    shape: float
    scale: float

    def draw(self, gen: np.random.Generator) -> float:
        """Return one sample."""
        return float(self.scale * (1.0 + gen.pareto(self.shape)))


Component = Normal | Uniform | Pareto


@dataclass(frozen=True)
class Mixture:
    """A mixture: components and their probabilities."""

    components: tuple[Component, ...]
    weights: tuple[float, ...] = (1.0,)

    def draw(self, gen: np.random.Generator) -> float:
        """Return one positive sample. Non-positive samples are drawn again from the same component, not clipped."""
        component = self.components[gen.choice(len(self.components), p=self.weights)]
        while (value := component.draw(gen)) <= 0.0:
            pass
        return value


def in_words(mixture: Mixture) -> str:
    """Return what a distribution draws, such as "30 % about 0.2, 70 % between 1 and 5"."""
    parts = [
        f"about {part.mean:g} (deviation {part.std:g})" if isinstance(part, Normal)
        else f"between {part.low:g} and {part.high:g}" if isinstance(part, Uniform)
        else f"{part.scale:g} and more, few of them large"
        for part in mixture.components
    ]  # fmt: skip
    if len(parts) == 1:
        return parts[0]
    return ", ".join(f"{100 * weight:g} % {part}" for weight, part in zip(mixture.weights, parts, strict=True))


def _normals(*pairs: tuple[float, float], weights: tuple[float, ...] = (1.0,)) -> Mixture:
    return Mixture(tuple(Normal(mean, std) for mean, std in pairs), weights)


def _uniform(low: float, high: float) -> Mixture:
    return Mixture((Uniform(low, high),))


# Robust-HDP, table 7.
ROBUST_HDP = {
    "dist1": _normals((2.0, 1.0)),
    "dist2": _normals((0.2, 0.01), (1.0, 0.1), (5.0, 1.0), weights=(0.2, 0.6, 0.2)),
    "dist3": _uniform(0.2, 5.0),
    "dist4": _normals((0.2, 0.01), (0.5, 0.1), (2.0, 1.0), weights=(0.2, 0.6, 0.2)),
    "dist5": _uniform(0.2, 2.0),
    "dist6": _normals((0.2, 0.01), (0.5, 0.1), (1.0, 0.1), weights=(0.3, 0.5, 0.2)),
    "dist7": _uniform(0.2, 1.0),
    "dist8": _normals((0.2, 0.01), (0.5, 0.1), weights=(0.6, 0.4)),
    "dist9": _uniform(0.2, 0.5),
}

# PFA, table 1. It prints no parameters for Pareto. Those here are our own: least epsilon 0.5, median 0.8, mean 1.5, and
# one client in 32 above 5, so that a small "public" group stands out as in its mixtures.
PFA = {
    "uniform": _uniform(1.0, 10.0),
    "gauss": _normals((3.0, 1.0)),
    "pareto": Mixture((Pareto(shape=1.5, scale=0.5),)),
    "mixgauss1": _normals((0.1, 0.01), (10.0, 0.1), weights=(0.9, 0.1)),
    "mixgauss2": _normals((0.5, 0.01), (10.0, 0.1), weights=(0.9, 0.1)),
    "mixgauss3": _normals((1.0, 0.1), (10.0, 0.1), weights=(0.9, 0.1)),
    "mixgauss4": _normals((0.1, 0.01), (1.0, 0.1), (10.0, 1.0), weights=(0.5, 0.4, 0.1)),
}

DISTRIBUTIONS = {**ROBUST_HDP, **PFA}
