"""closed-form: a linear head from noised sufficient statistics, released once and solved at the server.

A row of features x, of unit variance as an encoder or scattering scales it, becomes phi = (P x, bias), with P x at most
1 long, by a projection P that everybody knows. A client releases the sums of phi phi' and of phi y' over its rows, y
being the class as a vector of zeros and a one, less 1 / classes. The server adds up the clients' means and solves

    W = (G + rho)^-1 C,    rho = strength s sqrt(2 d),

G without its negative eigenvalues, s the standard deviation of the noise in an entry of G, and s sqrt(2 d) about the
largest eigenvalue of that noise. All of it is post-processing.

Guarantees:
    - One row moves both sums together by at most `SufficientStatistics.bound` (Theorem 17 of docs/proofs.md). They are
      one release: one multiplier, one charge.
    - A round asks for no training, so that nothing else is released or charged.

Edge cases:
    - With several rounds a client releases the same sums again, each with its part of the budget: their mean has the
      noise of one release with all of it, and the model follows from all rounds so far.
    - Rows longer than 1 are shortened; a row that is not finite adds nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import RoundSpec
from hush.privacy.sensitivity import FLOAT64_SLACK
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.recipes.context import RoundView, ServerRng, State
from hush.recipes.interfaces import ModelFacts, ServerStep
from hush.seeds import rng
from hush.types import HushError, Layout, Release

STATISTICS = "sufficient statistics"
_FLOOR = 1e-6  # of the ridge, in units of a row's largest eigenvalue: for solutions without noise
# Outputs of the solution are about 1 apart, which as logits would be nearly equal chances.
_SHARPNESS = 10.0


@dataclass(frozen=True)
class SufficientStatistics(SideRelease):
    """The sums of phi phi' and of phi y' over all rows.

    Attributes:
        features: The most numbers of a row after the projection.
        bias: The constant that is appended to them.
    """

    features: int = 256
    bias: float = 0.3

    def width(self, shape: ReleaseShape) -> int:
        """The upper triangle of phi phi', and phi y'."""
        d = self.size(shape)
        return d * (d + 1) // 2 + d * shape.classes

    def bound(self, shape: ReleaseShape) -> float:
        """The root of |phi|^4 + |phi|^2 |y|^2."""
        longest = 1.0 + self.bias**2
        return math.sqrt(longest**2 + longest * (1.0 - 1.0 / shape.classes))

    def ratio(self, plan: PrivacyPlan) -> float:
        """One: nothing else is released in such a round, whose noise multiplier is that of the plan."""
        return 1.0

    def size(self, shape: ReleaseShape) -> int:
        """The numbers of phi."""
        return min(self.features, math.prod(shape.inputs)) + 1

    def features_of(self, x: Tensor, shape: ReleaseShape) -> Tensor:
        """Return phi of rows of inputs, n x d in float64; zeros for a row that is not finite."""
        width = math.prod(shape.inputs)
        flat = x.reshape(*x.shape[: x.ndim - len(shape.inputs)], width).double()
        finite = torch.isfinite(flat).all(-1, keepdim=True)
        flat = torch.where(finite, flat, 0.0) / math.sqrt(width)
        if self.features < width:
            flat = flat @ projection(width, self.features).to(flat.device)
        # A little shorter, so that the bound holds for sums that are rounded.
        limit = 1.0 / (1.0 + FLOAT64_SLACK)
        flat = limit * flat / flat.norm(dim=-1, keepdim=True).clamp_min(1.0)
        constant = torch.full_like(flat[..., :1], self.bias * limit)
        return torch.where(finite, torch.cat([flat, constant], -1), 0.0)

    def targets_of(self, y: Tensor, shape: ReleaseShape) -> Tensor:
        """Return the classes as vectors of zeros and a one, less their mean, in float64."""
        classes = torch.arange(shape.classes, device=y.device)
        return (y.long()[..., None] == classes).double() - 1.0 / shape.classes

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """The upper triangle of phi phi', its entries beside the diagonal times sqrt(2), and phi y'."""
        phi, target = self.features_of(x, model.shape), self.targets_of(y, model.shape)
        return packed(torch.outer(phi, phi), torch.outer(phi, target))

    def sums(self, x: Tensor, y: Tensor, weights: Tensor | None, shape: ReleaseShape) -> Tensor:
        """Return the sum of `row` over rows, each times its weight if there are weights, by products of matrices."""
        phi, target = self.features_of(x, shape), self.targets_of(y, shape)
        weighted = phi if weights is None else phi * weights.to(phi)[:, None]
        return packed(weighted.T @ phi, weighted.T @ target)


def packed(moments: Tensor, products: Tensor) -> Tensor:
    """Return a symmetric matrix and another one as a vector whose norm is that of both together."""
    rows, columns = _triangle(len(moments))
    factors = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(moments)
    return torch.cat([moments[rows, columns] * factors, products.reshape(-1)])


def unpacked(vector: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the symmetric matrix (d x d) and the other one (d x k) of a packed vector."""
    rows, columns = _triangle(size)
    number = len(rows)
    factors = torch.where(rows == columns, 1.0, math.sqrt(0.5)).to(vector)
    moments = vector.new_zeros(size, size)
    moments[rows, columns] = vector[:number] * factors
    moments[columns, rows] = moments[rows, columns]
    return moments, vector[number:].reshape(size, -1)


@lru_cache(maxsize=8)
def projection(width: int, features: int) -> Tensor:
    """Return the projection of rows, width x features: orthonormal columns that are drawn once for everybody.

    Scaled so that a row keeps its length on average.
    """
    drawn = rng(0, "closed-form", width, features).normal(size=(width, features))
    return torch.from_numpy(np.linalg.qr(drawn)[0] * math.sqrt(width / features))


@lru_cache(maxsize=8)
def _triangle(size: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


def solved(moments: Tensor, products: Tensor, deviation: float, strength: float) -> Tensor:
    """Return W (d x k) for the mean statistics, of which each number has noise with a standard deviation."""
    values, vectors = torch.linalg.eigh(moments)
    added = strength * deviation * math.sqrt(2.0 * len(moments)) + _FLOOR
    found: Tensor = vectors @ ((vectors.T @ products) / (values.clamp_min(0.0) + added)[:, None])
    return found


@dataclass(frozen=True)
class ClosedForm(ServerStep):
    """The model is the ridge regression of all clients' noised sufficient statistics, weighted by the slot `weight`.

    `features`: wider rows are projected to so many numbers, at random and alike for everybody: noise grows with the
    square of what is released. `bias`: the constant beside them. `strength`: what is added to all eigenvalues, relative
    to the noise.
    """

    rule: ClassVar[str] = "ridge"
    features: int = 256
    bias: float = 0.3
    strength: float = 0.5

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ValueError(f"features: expected 1 or more, found {self.features}")
        if not (self.bias > 0 and math.isfinite(self.bias)):
            raise ValueError(f"bias: expected a positive number, found {self.bias}")
        if not (self.strength > 0 and math.isfinite(self.strength)):
            raise ValueError(f"strength: expected a positive number, found {self.strength}")

    @property
    def release(self) -> SufficientStatistics:
        """What clients release in a round."""
        return SufficientStatistics(STATISTICS, 1.0, features=self.features, bias=self.bias)

    def fitted(self, model: ModelFacts) -> Self:
        """As it is, if the model is one linear layer with an output for each class."""
        if not model.linear_classifier:
            raise HushError(
                "recipe.step: ridge solves for one linear layer with a bias and an output for each class, and "
                f"{model.name} is another model; accepted: logreg, scattering-linear, or an encoder with head = "
                '"linear"',
                "recipe.step",
            )
        return self

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """The statistics, and no training."""
        if number == 0:
            return RoundSpec(train=False)
        return RoundSpec(idle=True, side_releases=(self.release,))

    def releases(self) -> tuple[Release, ...]:
        """The statistics."""
        return (Release(STATISTICS, True, "noised sums of products of bounded rows, charged every round", "gaussian"),)

    def observe(self, view: RoundView, weights: Tensor, state: State) -> State:
        """Solve for the mean statistics of all rounds so far."""
        answers, shares = view.answers[STATISTICS].double(), weights.double() / view.samples.double()
        total = shares @ answers
        # The planned noise is that of a client's mean statistics, in all of their numbers.
        noise = float(weights.double().square() @ view.planned_noise.double()) / answers.shape[1]
        if "total" in state:
            total = total + state["total"]
            noise += float(state["noise"])
        rounds = 1 + int(state.get("rounds", torch.zeros(1)))
        size = self._size(answers.shape[1], view.layout)
        solution = solved(*unpacked(total / rounds, size), math.sqrt(noise) / rounds, self.strength)
        return {
            "total": total,
            "noise": torch.tensor([noise], dtype=torch.float64),
            "rounds": torch.tensor([rounds]),
            "solution": self.head(solution, view.layout),
        }

    def step(self, models: Tensor, move: Tensor, state: State, rng: ServerRng) -> tuple[Tensor, State]:
        """The solution, whatever the model was."""
        if "solution" not in state:
            return models, state
        return state["solution"].to(models).expand_as(models).clone(), state

    def head(self, solution: Tensor, layout: Layout) -> Tensor:
        """Return W as the parameters of a linear layer on rows as they are."""
        classes, width = _linear(layout)
        weight = solution[:-1]
        if self.features < width:
            weight = projection(width, self.features) @ weight
        weight = weight / math.sqrt(width)
        parts = {(classes, width): weight.T.reshape(-1), (classes,): self.bias * solution[-1]}
        return _SHARPNESS * torch.cat([parts[shape] for shape in layout.shapes])

    def _size(self, numbers: int, layout: Layout) -> int:
        return min(self.features, _linear(layout)[1]) + 1


def _linear(layout: Layout) -> tuple[int, int]:
    """The outputs and the inputs of a layout of one linear layer with a bias."""
    ((classes, width),) = (shape for shape in layout.shapes if len(shape) == 2)
    return classes, width
