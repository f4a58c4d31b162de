"""The privacy plan: sampler, clip, noise, event and neighbouring relation as one frozen object.

The training loop asks the plan which rows to take, how far to clip, and how to noise; the accountant asks the same plan
what that costs. There is no second place where a rate or a noise scale is written down, so they cannot disagree.

Guarantees:
    - `sample` includes each row independently with probability `rate`: the Poisson sampling that `event` describes.
      Where persons are protected, they are what is sampled and counted here (`hush.privacy.persons`).
    - `privatise` adds Gaussian noise of standard deviation `noise_multiplier * clip` to a sum of gradients, which one
      row moves by at most `clip`, and divides by `batch`, a public number, never by the size of the batch drawn.
    - `event` is exactly `steps` such releases a round.

Edge cases:
    - An empty batch is noised and released like any other.
    - A plan without privacy (noise 0) has an infinite clip, no noise, and an event of infinite cost.
    - `rate` is at most 1: a batch larger than the data is refused.
    - A `discrete` plan noises integers with integers: exact, and free of floating point's low bits.
    - A `fixed` sampler draws exactly `batch` rows without replacement. It is defined under replace-one alone.
    - `local_steps`, where given, is the number of steps per round; else the steps of `epochs` passes over the data.
    - `disclosed`, where given, is the public number of rows. Rate and steps follow from it alone, and so reveal nothing
      more about `samples`, the true number. It cannot be combined with a fixed sampler.
    - `whole_update` protects the client as a whole: steps train without clipping or noise (`training`), and the update
      of a round is clipped and noised once (`release`). Sampling rows amplifies nothing: `cost` is that of a Gaussian
      (Theorem 11 of docs/proofs.md).
    - `groups`, where given, are rows with budgets of their own (`hush.privacy.row_budgets`), which are sampled at their
      own rates. What is charged is the cost of the highest rate, with the rates of all groups beside it.
    - `even` makes the rate one over the steps of a pass, so that the expected batch may be a little below `batch`, by
      which sums are divided all the same.
    - `copies`, where above one, takes each row so many times in a full batch, perturbed (`hush.training.augmentation`),
      each copy clipped by itself. A row then moves the sum by `copies` times the clip, and the noise of `of_copies` is
      for that, so that the mean has the noise that it has without copies. With `noise_per` "copy" it is for what one
      copy moves, as RC-DPFL has it: a fraction 1 / `copies` of the noise that `cost` counts, which protects no row as
      promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.row_budgets import RateGroup
from hush.privacy.sensitivity import FLOAT64_SLACK
from hush.types import Accountant, HushError, Policy, Relation

if TYPE_CHECKING:
    import torch
    from dp_accounting import DpEvent
    from torch import Tensor

    from hush.privacy.persons import Persons
    from hush.privacy.source import Source

Sampler = Literal["poisson", "fixed"]
NoisePer = Literal["row", "copy"]
GRAINS = 4096
UPDATE = "model update"


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """How one client's training keeps its policy."""

    samples: int
    batch: int
    epochs: int
    rounds: int
    clip: float
    noise_multiplier: float
    relation: Relation
    accountant: Accountant
    discrete: bool = False
    local_steps: int | None = None
    sampler: Sampler = "poisson"
    even: bool = False
    disclosed: int | None = None
    whole_update: bool = False
    groups: tuple[RateGroup, ...] = ()
    copies: int = 1
    noise_per: NoisePer = "row"

    def __post_init__(self) -> None:
        if self.copies < 1 or (self.copies > 1 and self.rate < 1):
            raise ValueError(f"copies: expected 1, or more in a full batch, found {self.copies} at rate {self.rate:g}")
        if self.whole_update and (self.discrete or self.sampler == "fixed"):
            raise HushError(
                'privacy.unit: "client" noises whole updates, which takes no discrete steps and no batches of a fixed '
                'size; accepted with it: discrete = false, sampler = "poisson"',
                "privacy.unit",
            )
        if not 1 <= self.batch <= self.counted:
            raise HushError(
                f"local.batch_size: {self.batch} does not fit a client with {self.counted} training samples; "
                f"accepted: 1 to {self.counted}",
                "local.batch_size",
            )
        if self.sampler == "fixed" and self.disclosed is not None:
            raise HushError(
                'privacy.sampler: batches of a fixed size need the true number of rows; accepted: "poisson", where the '
                "number is noised",
                "privacy.sampler",
            )
        if self.sampler == "fixed" and self.relation != "replace-one":
            raise HushError(
                "privacy.sampler: batches of a fixed size can only be accounted under replace-one; "
                'set privacy.relation = "replace-one", or privacy.sampler = "poisson"',
                "privacy.sampler",
            )

    @cached_property
    def counted(self) -> int:
        """The number of rows that rate and steps follow from."""
        return self.samples if self.disclosed is None else self.disclosed

    @cached_property
    def rate(self) -> float:
        """Probability with which each row enters a batch; the highest, if groups of rows have their own."""
        if self.groups:
            return max(group.rate for group in self.groups)
        return 1 / math.ceil(self.counted / self.batch) if self.even else self.batch / self.counted

    @cached_property
    def steps(self) -> int:
        """Noisy steps per round."""
        return self.local_steps or self.epochs * math.ceil(self.counted / self.batch)

    @cached_property
    def private(self) -> bool:
        """Whether there is any privacy guarantee."""
        return self.noise_multiplier > 0

    def sample(self, source: Source) -> Tensor:
        """The rows of one batch."""
        if self.sampler == "fixed":
            return source.uniform(self.samples).topk(self.batch, largest=False, sorted=False).indices
        if self.groups:
            return self._sample_groups(source)
        return source.chosen(self.samples, self.rate)

    def _sample_groups(self, source: Source) -> Tensor:
        """Each group at its own rate; rows lie group after group."""
        import torch

        parts, first = [], 0
        for group in self.groups:
            parts.append(source.chosen(group.units, group.rate) + first)
            first += group.units
        return torch.cat(parts)

    def batch_rows(self, source: Source, persons: Persons | None) -> Tensor:
        """The rows of one batch: the sample itself, or rows of the persons that were sampled."""
        chosen = self.sample(source)
        return chosen if persons is None else persons.drawn(chosen, source)

    @property
    def grid(self) -> float:
        """The unit in which a discrete plan counts: the noise has a deviation of `GRAINS` of them."""
        return self.noise_multiplier * self.clip / GRAINS

    def privatise(self, clipped_sum: Tensor, source: Source, drawn: torch.dtype | None = None) -> Tensor:
        """The noised mean gradient that one step may use, in the type of the sum: rounding it further is free.

        A discrete plan takes integers of `grid`. `drawn` is the type of the noise, if not that of the sum.
        """
        if not self.private:
            return clipped_sum / self.batch
        if self.discrete:
            return self._privatise_exactly(clipped_sum, source)
        noise = source.normal(clipped_sum.numel(), drawn or clipped_sum.dtype).to(clipped_sum.device)
        return clipped_sum.add(noise, alpha=self.noise_multiplier * self.clip).div_(self.batch)

    def _privatise_exactly(self, whole: Tensor, source: Source) -> Tensor:
        if whole.is_floating_point():
            raise TypeError("discrete plans add noise to integers")
        noised = whole.cpu() + source.discrete(whole.numel(), GRAINS)
        return (noised.double() * (self.grid / self.batch)).float().to(whole.device)

    @property
    def training(self) -> PrivacyPlan:
        """How steps are taken where the whole update is clipped and noised: without either."""
        return replace(self, whole_update=False, clip=math.inf, noise_multiplier=0.0)

    @property
    def of_copies(self) -> PrivacyPlan:
        """How a step is taken on all copies of all rows: the plan of as many rows, with the noise that they need."""
        times = self.copies
        return replace(
            self,
            samples=times * self.samples,
            batch=times * self.batch,
            disclosed=None if self.disclosed is None else times * self.disclosed,
            noise_multiplier=(times if self.noise_per == "row" else 1) * self.noise_multiplier,
            copies=1,
            noise_per="row",
        )

    def release(self, update: Tensor, source: Source) -> Tensor:
        """A whole update as it may be sent: clipped to `clip`, and noised once; one that is not finite adds nothing."""
        exact = update.double().cpu()
        norm = float(exact.norm())
        if not math.isfinite(norm):
            exact, norm = exact.new_zeros(exact.shape), 0.0
        clipped = exact * min(1.0, self.clip / (1.0 + FLOAT64_SLACK) / max(norm, 1e-300)) if norm > 0 else exact
        noise = source.normal(exact.numel(), exact.dtype)
        return (clipped + self.noise_multiplier * self.clip * noise).to(update)

    def reach(self, lr: float) -> float:
        """The norm of the longest update without noise, in clips."""
        return 1.0 if self.whole_update else lr * self.steps

    def cost(self, rounds: int = 1) -> Cost:
        """What that many rounds cost."""
        steps = rounds * self.steps
        if self.whole_update:
            return Cost(what=UPDATE, kind="gaussian", noise=self.noise_multiplier, steps=rounds)
        if self.sampler == "fixed":
            return Cost(
                what=UPDATE,
                kind="fixed-gaussian",
                noise=self.noise_multiplier,
                steps=steps,
                samples=self.samples,
                batch=self.batch,
            )
        return Cost(
            what=UPDATE,
            kind="poisson-gaussian",
            noise=self.noise_multiplier,
            steps=steps,
            rate=self.rate,
            groups=tuple((group.budget, group.rate) for group in self.groups),
        )

    def event(self, rounds: int) -> DpEvent:
        """The same for dp_accounting."""
        return self.cost(rounds).event()

    def update_noise(self, lr: float, size: int) -> float:
        """Expected squared norm of the noise in one round's update: public, since it follows from the plan."""
        if not self.private:
            return 0.0
        if self.whole_update:
            return float(size * (self.noise_multiplier * self.clip) ** 2)
        divisor = self.batch if self.noise_per == "row" else self.copies * self.batch
        return self.steps * size * (lr * self.noise_multiplier * self.clip / divisor) ** 2


def calibrated(
    policy: Policy,
    *,
    samples: int,
    batch: int,
    epochs: int,
    rounds: int,
    clip: float,
    accountant: Accountant = "pld",
    discrete: bool = False,
) -> PrivacyPlan:
    """The plan with the least noise that keeps the policy over that many rounds."""
    draft = PrivacyPlan(
        samples=samples,
        batch=batch,
        epochs=epochs,
        rounds=rounds,
        clip=clip,
        noise_multiplier=1.0,
        relation=policy.relation,
        accountant=accountant,
    )
    z = api.noise_multiplier(
        policy.epsilon, policy.delta, draft.rate, max(rounds, 1) * draft.steps, policy.relation, accountant
    )
    return PrivacyPlan(
        samples=samples,
        batch=batch,
        epochs=epochs,
        rounds=rounds,
        clip=clip,
        noise_multiplier=z,
        relation=policy.relation,
        accountant=accountant,
        discrete=discrete,
    )
