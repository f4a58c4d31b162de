"""Input means on the coordinator's side: the members' noisy means are checked.

The noise of a mean follows from its sender's plan as the coordinator computes it. A member cannot increase the weight
of its mean by declaring less noise.
"""

from __future__ import annotations

import math

import torch

from hush.config import Config
from hush.deploy.shared import run_spec
from hush.deploy.shared.roster import MEAN, RosterEntry
from hush.deploy.transport.messages import Message
from hush.engines.enrolment import EnrolmentAnswer, deviation
from hush.recipes import Recipe
from hush.recipes.slots.protect import CENTRE
from hush.training.input_mean import bound
from hush.types import HushError, Policy

_DEVIATIONS = 8.0


def checked_mean(config: Config, recipe: Recipe, fact: RosterEntry, number: int, message: Message) -> EnrolmentAnswer:
    """Return a member's mean with the noise of its plan, or raise a `HushError` if no honest member could have sent it.

    `config`, `recipe` and `number` are those of the offer.
    """
    if CENTRE not in fact.noised or MEAN not in message.tensors:
        raise HushError("enrolment answer: no mean of the inputs, which the recipe requires")
    mean = message.tensors[MEAN]
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


def _longest(config: Config, recipe: Recipe, far: RosterEntry, number: int, samples: int, width: int) -> float:
    """The norm that an honest mean exceeds with probability at most 10^-13, if these values are behind `samples`."""
    noise = deviation(width, _spread(config, recipe, far, number), samples)
    return bound(width) * far.samples / samples + noise * (math.sqrt(width) + _DEVIATIONS)


def _spread(config: Config, recipe: Recipe, fact: RosterEntry, number: int) -> float:
    _, stage = run_spec.enrolment(
        config, recipe, fact, number, Policy(fact.epsilon, fact.delta, fact.relation, fact.unit)
    )
    return stage.noise_of(CENTRE) if stage is not None else 0.0
