"""Side releases at the client: bounded whatever a row computes, and never mixed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hush.engines.side_releases import Evidence, exact_sum
from hush.models import Model, from_module
from hush.privacy.plan import PrivacyPlan
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.types import HushError

SHAPE = ReleaseShape(inputs=(4,), classes=3, parameters=15)


@cache
def linear() -> Model:
    torch.manual_seed(0)
    return from_module(nn.Linear(4, 3), (4,))


def evidence(x: Tensor, y: Tensor) -> Evidence:
    model = linear()
    plan = PrivacyPlan(
        samples=max(1, len(y)),
        batch=1,
        epochs=1,
        rounds=1,
        clip=1.0,
        noise_multiplier=1.0,
        relation="add-remove",
        accountant="pld",
    )
    return Evidence(model=model, vectors=model.start[None], x=x, y=y, plan=plan, shape=SHAPE)


@dataclass(frozen=True)
class Own(SideRelease):
    what: str = "own"
    share: float = 0.1
    kind: str = "scale"

    def width(self, shape: ReleaseShape) -> int:
        return 2

    def bound(self, shape: ReleaseShape) -> float:
        return 0.5

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        if self.kind == "huge":
            return 1e30 * x[:2]
        if self.kind == "mean of the batch":
            # Under vmap the batch is out of reach: this is the mean of the row's own numbers.
            return torch.stack([x.mean(), x.sum()])
        if self.kind == "loss":
            return nn.functional.cross_entropy(model.logits(model.vector, x), y).expand(2)
        if self.kind == "infinite":
            return x[:2] / 0
        if self.kind == "constant":
            return torch.full((2,), 7.0)
        return 1e-3 * x[:2]


KINDS = ("scale", "huge", "mean of the batch", "loss", "infinite", "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_moves_a_sum_by_at_most_the_bound_whatever_is_computed(kind: str) -> None:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(1100, 4, generator=rng), torch.randint(0, 3, (1100,), generator=rng)
    whole = exact_sum(Own(kind=kind), evidence(x, y))
    for row in (0, 511, 1099):
        others = torch.arange(len(y)) != row
        without = exact_sum(Own(kind=kind), evidence(x[others], y[others]))
        assert float((whole - without).norm()) <= 0.5
        for value in (1e20, math.inf, math.nan):
            changed = x.clone()
            changed[row] = value
            assert float((exact_sum(Own(kind=kind), evidence(changed, y)) - without).norm()) <= 0.5


def test_rows_are_those_of_each_alone() -> None:
    x, y = torch.randn(40, 4), torch.zeros(40, dtype=torch.int64)
    for kind in KINDS:
        each = sum(exact_sum(Own(kind=kind), evidence(x[i : i + 1], y[i : i + 1])) for i in range(40))
        assert torch.allclose(torch.as_tensor(each), exact_sum(Own(kind=kind), evidence(x, y)), rtol=1e-5, atol=1e-9)


@dataclass(frozen=True)
class Drawing(Own):
    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        return torch.rand_like(x[:2])


@dataclass(frozen=True)
class Wide(Own):
    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        return x


@dataclass(frozen=True)
class Unbounded(Own):
    def bound(self, shape: ReleaseShape) -> float:
        return math.inf


@dataclass(frozen=True)
class Looking(Own):
    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        return x[:2] if float(x[0]) > 0 else -x[:2]


def test_what_a_row_may_not_do() -> None:
    given = evidence(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(HushError, match="accepted: a tensor of 2 numbers"):
        exact_sum(Wide(), given)
    with pytest.raises(HushError, match="a bound of inf"):
        exact_sum(Unbounded(), given)
    for release in (Drawing(), Looking()):
        with pytest.raises(RuntimeError):
            exact_sum(release, given)
    with pytest.raises(TypeError, match="abstract"):
        SideRelease("nothing", 0.1)  # type: ignore[abstract]


def test_a_batch_of_no_rows_gives_zero() -> None:
    given = evidence(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    assert exact_sum(Own(), replace(given, x=given.x[:0], y=given.y[:0])).tolist() == [0.0, 0.0]
