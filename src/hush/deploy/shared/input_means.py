"""Input means of a run on the coordinator's side: members' noised means, each checked, combined by their noise.

How noisy a mean is follows from its sender's plan as the coordinator computes it. Nothing that a member says of its own
noise gives its mean more weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hush.config import Config
from hush.deploy.shared import run_spec
from hush.deploy.shared.roster import MEAN, RosterEntry
from hush.deploy.transport.messages import Message
from hush.engines.enrolment import EnrolmentAnswer, centred, deviation
from hush.recipes import Recipe
from hush.recipes.slots.protect import CENTRE
from hush.training.input_mean import bound
from hush.types import HushError, Policy

_DEVIATIONS = 8.0


def told(config: Config, recipe: Recipe, fact: RosterEntry, number: int, letter: Message) -> EnrolmentAnswer:
    """A member's mean with the noise that its plan has; a `HushError` if no honest member could have sent it.

    `config`, `recipe` and `number` are those of the offer.
    """
    if CENTRE not in fact.noised or MEAN not in letter.tensors:
        raise HushError("enrolment answer: no mean of the inputs, which the recipe requires")
    mean = letter.tensors[MEAN]
    if not bool(torch.isfinite(mean).all()):
        raise HushError("enrolment answer: a mean that is not finite")
    least = run_spec.batch_of(config, number)
    declared = (fact, *fact.extremes(least))
    longest = max(_longest(config, recipe, far, number, fact.samples, mean.numel()) for far in declared)
    if float(mean.norm()) > longest:
        raise HushError(f"enrolment answer: a mean whose norm exceeds the {longest:.4g} that its plan allows")
    return EnrolmentAnswer(
        float(fact.samples), mean, deviation(mean.numel(), _spread(config, recipe, fact, number), fact.samples)
    )


def joined(heard: Sequence[EnrolmentAnswer]) -> Tensor:
    """The common centre."""
    return centred(heard)["input_mean"]


def _longest(config: Config, recipe: Recipe, far: RosterEntry, number: int, samples: int, width: int) -> float:
    """How long an honest mean can be, but for one time in 10^13, if these were the true numbers behind `samples`."""
    noise = deviation(width, _spread(config, recipe, far, number), samples)
    return bound(width) * far.samples / samples + noise * (math.sqrt(width) + _DEVIATIONS)


def _spread(config: Config, recipe: Recipe, fact: RosterEntry, number: int) -> float:
    _, stage = run_spec.enrolment(config, recipe, fact, number, Policy(fact.epsilon, fact.delta, fact.relation))
    return stage.noise_of(CENTRE) if stage is not None else 0.0
