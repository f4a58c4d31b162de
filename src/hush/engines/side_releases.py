"""Side releases at the client: rows are evaluated one by one, clipped to the release's bound, summed, and noised.

Guarantees:
    - Adding or removing a row changes the sum by at most the bound, whatever `SideRelease.row` computes: rows are
      evaluated under `torch.vmap`, where one row's values cannot affect another's, and each is clipped before it is
      added.
    - The same holds for adding or removing a person: each of its rows counts with one over their number, so that the
      person's contribution is a mean of bounded vectors, which the bound holds for as well.
    - The noise is the plan's multiplier times the same bound, from the client's own source, and is added only here.

Edge cases:
    - A row whose vector is not finite adds nothing.
    - The releases of `SUMS` (exactly these classes) are summed by implementations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hush.config import Config
from hush.models import Model
from hush.models.isolation import quiet_vmap
from hush.privacy.persons import Persons, sum_weights
from hush.privacy.plan import PrivacyPlan
from hush.privacy.schedule import Stage
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.privacy.source import Source
from hush.recipes.slots.closed_form import SufficientStatistics
from hush.recipes.slots.clusters import ClusterChoice
from hush.recipes.slots.protect import ClipQuantile, InputMean
from hush.recipes.slots.weight import SampleCount
from hush.training import input_mean
from hush.training.input_mean import bounded_sum
from hush.training.queries import bounded_losses, gradient_norms
from hush.types import HushError

_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a side release is computed from.

    Attributes:
        model: The model, without its parameters.
        vectors: The parameters of the models of the task, models x p.
        x: The client's rows, behind the model's fixed features.
        y: Their labels.
        plan: The client's plan, with the clipping norm of the round.
        shape: Public numbers of the run.
        centre: The mean subtracted from inputs, if any.
        persons: Whose the rows are, where the unit of privacy is a person.
        held_x: The rows that the client holds out of training, as `x`.
        held_y: Their labels.
    """

    model: Model
    vectors: Tensor
    x: Tensor
    y: Tensor
    plan: PrivacyPlan
    shape: ReleaseShape
    centre: Tensor | None = None
    persons: Persons | None = None
    held_x: Tensor | None = None
    held_y: Tensor | None = None

    def for_release(self, release: SideRelease) -> Evidence:
        """The same with the rows that a release is a sum over as `x` and `y`."""
        if not release.held_out:
            return self
        if self.held_x is None or self.held_y is None:
            raise HushError(f"{release.what}: this client holds out no rows")
        return replace(self, x=self.held_x, y=self.held_y, persons=None)

    @property
    def plain(self) -> Tensor:
        """The parameters converted to inputs that are not centred."""
        if self.centre is None:
            return self.vectors
        return input_mean.uncentred(input_mean.linear_layer(self.model), self.vectors, self.centre)


def release_shape(config: Config, model: Model, inputs: tuple[int, ...], classes: int) -> ReleaseShape:
    """Return the public numbers of a run whose rows have this shape."""
    return ReleaseShape(
        inputs=model.behind(inputs), classes=classes, parameters=model.layout.size, loss_clip=config.privacy.loss_clip
    )


def noised_sum(release: SideRelease, stage: Stage, given: Evidence, source: Source) -> Tensor:
    """Return the sum over a client's rows, or over one batch of them, with the noise of its plan."""
    if release.sampled:
        rows = given.plan.batch_rows(source, given.persons).to(given.x.device)
        each = rows.shape[1] if rows.ndim == 2 else 1
        several = Persons(torch.full((len(rows),), each), each) if each > 1 else None
        given = replace(given, x=given.x[rows.flatten()], y=given.y[rows.flatten()], persons=several)
    return noised(exact_sum(release, given.for_release(release)), release, stage, given.shape, source)


def noised(total: Tensor, release: SideRelease, stage: Stage, shape: ReleaseShape, source: Source) -> Tensor:
    """Return a sum with the noise of the client's plan."""
    spread = stage.noise_of(release.what) * release.bound(shape)
    return total + spread * source.normal(len(total), torch.float64)


def exact_sum(release: SideRelease, given: Evidence) -> Tensor:
    """Return the sum without noise, in float64, which must never be sent."""
    total = SUMS.get(type(release), _by_rows)(release, given).cpu()
    width = release.width(given.shape)
    if tuple(total.shape) != (width,):
        raise HushError(f"{release.what}: a row gives {list(total.shape)} numbers; its width is {width}")
    return total


def _by_rows(release: SideRelease, given: Evidence) -> Tensor:
    """Return the sum of the rows' vectors, each clipped to the bound."""
    shape, model = given.shape, given.model
    width, bound = release.width(shape), release.bound(shape)
    if not 0 < bound < float("inf"):
        raise HushError(f"{release.what}: a bound of {bound}; accepted: a finite number above 0")
    seen = RowModel(given.plain[0], lambda vector, x: model.logits(vector, x[None])[0], shape)

    def one(x: Tensor, y: Tensor) -> Tensor:
        found = release.row(x, y, seen)
        if not isinstance(found, Tensor) or found.numel() != width:
            raise HushError(f"{release.what}: row gives {type(found).__name__}; accepted: a tensor of {width} numbers")
        return found.reshape(width).double()

    quiet_vmap()
    total = torch.zeros(width, dtype=torch.float64, device=given.x.device)
    weights = sum_weights(given.persons)
    for start in range(0, len(given.y), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        values = torch.vmap(one, randomness="error")(given.x[here], given.y[here])
        total += bounded_sum(values, bound, None if weights is None else weights[here])
    return total


def _count(release: SideRelease, given: Evidence) -> Tensor:
    return torch.tensor([float(len(given.y) if given.persons is None else len(given.persons))], dtype=torch.float64)


def _inputs(release: SideRelease, given: Evidence) -> Tensor:
    return bounded_sum(given.x, release.bound(given.shape), sum_weights(given.persons))


def _statistics(release: SideRelease, given: Evidence) -> Tensor:
    assert isinstance(release, SufficientStatistics)
    weights = sum_weights(given.persons)
    total = torch.zeros(release.width(given.shape), dtype=torch.float64, device=given.x.device)
    for start in range(0, len(given.y), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        total += release.sums(given.x[here], given.y[here], None if weights is None else weights[here], given.shape)
    return total


def _losses(release: SideRelease, given: Evidence) -> Tensor:
    weights = sum_weights(given.persons)
    return bounded_losses(given.model, given.plain, given.x, given.y, given.shape.loss_clip, weights)


def _below_clip(release: SideRelease, given: Evidence) -> Tensor:
    x, y = given.x, given.y
    if given.centre is not None:
        x = x - given.centre.to(x).view(x.shape[1:])
    if given.persons is not None:
        # Sampled: as many rows of each person, whose mean gradient is what training clips.
        each = (len(given.persons), given.persons.per_batch)
        x, y = x.unflatten(0, each), y.unflatten(0, each)
    norms = gradient_norms(given.model, given.vectors[0], x, y, several=given.persons is not None)
    within = (norms <= given.plan.clip).double()
    return (within - 0.5).sum()[None]


SUMS: Mapping[type[SideRelease], Callable[[SideRelease, Evidence], Tensor]] = {
    SampleCount: _count,
    InputMean: _inputs,
    ClusterChoice: _losses,
    ClipQuantile: _below_clip,
    SufficientStatistics: _statistics,
}
