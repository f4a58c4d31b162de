"""A forecast, before a run, of the noise and rounds that a budget allows.

It answers the questions of a privacy officer: how much noise does this budget need, how is it spent over the rounds,
how many rounds does it cover at a given noise, and what would a larger batch or more local epochs cost? All answers are
computed with the `PrivacyPlan` and the accountant of the run, so the run will match the forecast.

Guarantees:
    No figure depends on data, only on the client's policy and on the public numbers of its plan.
    The noise of every choice satisfies the budget over all requested rounds.
    `spent` is non-decreasing, and ends within the budget unless the noise was given. `affordable_rounds` is the largest
    number of whole rounds within the budget at the noise of `chosen`.

Edge cases:
    A batch larger than the data is reduced to the data, one below a row increased to one row; choices that become equal
    are listed once.
    Beyond `MARKS` rounds, epsilon is given at evenly spaced rounds, including the last.
    `affordable_rounds` stops at `accounting.MOST_STEPS` steps.
    What the accountant refuses (see `hush.privacy.accounting.api`) is refused here with the same message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hush.privacy.accounting import api
from hush.privacy.plan import PrivacyPlan, calibrated
from hush.types import Accountant, HushError, Policy, Relation

MARKS = 24
BATCH_FACTORS = (0.5, 1.0, 2.0, 4.0)
EPOCHS = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice of batch size and epochs that spends the whole budget.

    Attributes:
        batch: Expected batch size.
        epochs: Passes over the data per round.
        steps: Noisy steps per round.
        sample_rate: Probability with which a row enters a batch.
        noise_multiplier: The least noise multiplier that satisfies the budget.
        gradient_noise: Standard deviation of the noise on each coordinate of a step's mean gradient.
        update_noise: Variance of the noise on each coordinate of a round's update, for a learning rate of 1.
    """

    batch: int
    epochs: int
    steps: int
    sample_rate: float
    noise_multiplier: float
    gradient_noise: float
    update_noise: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast for one client. `dataclasses.asdict` of it is JSON.

    Attributes:
        policy: The budget, its delta, and the neighbouring relation.
        accountant: The accountant that computed every epsilon here.
        samples: Number of training rows.
        clip: Clipping norm.
        rounds: Planned number of rounds.
        chosen: The requested batch size and epochs, with the noise that they need or that was given.
        marks: Rounds at which `spent` is given.
        spent: Epsilon after each of `marks`.
        affordable_rounds: Number of rounds that the budget covers at the noise of `chosen`.
        choices: Other batch sizes and epochs for the same budget and rounds.
    """

    policy: Policy
    accountant: Accountant
    samples: int
    clip: float
    rounds: int
    chosen: Choice
    marks: tuple[int, ...]
    spent: tuple[float, ...]
    affordable_rounds: int
    choices: tuple[Choice, ...]


def forecast(
    epsilon: float,
    delta: float,
    samples: int,
    batch: int,
    rounds: int,
    epochs: int = 1,
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
    clip: float = 1.0,
    noise_multiplier: float | None = None,
) -> Forecast:
    """Return the forecast for one client.

    Args:
        epsilon: The client's budget.
        delta: Its delta.
        samples: Its number of training rows.
        batch: Expected batch size.
        rounds: Rounds in which it takes part.
        epochs: Local epochs per round.
        relation: The neighbouring relation.
        accountant: `pld` or `rdp`.
        clip: Clipping norm.
        noise_multiplier: Report the cost of this noise, instead of using the least noise that satisfies the budget.
    """
    _check(samples=samples, batch=batch, rounds=rounds, epochs=epochs)
    if not 0.0 < clip < math.inf:
        raise HushError(f"clip: found {clip!r}; accepted: a positive number")
    policy = Policy(epsilon, delta, relation)
    draft = PrivacyPlan(
        samples=samples,
        batch=batch,
        epochs=epochs,
        rounds=rounds,
        clip=clip,
        noise_multiplier=1.0,
        relation=relation,
        accountant=accountant,
    )
    plan = _keeping(policy, draft) if noise_multiplier is None else replace(draft, noise_multiplier=noise_multiplier)
    marks = _marks(rounds)
    return Forecast(
        policy=policy,
        accountant=accountant,
        samples=samples,
        clip=clip,
        rounds=rounds,
        chosen=_choice(plan),
        marks=marks,
        spent=tuple(epsilon_after_rounds(plan, delta, marks)),
        affordable_rounds=affordable_rounds(plan, policy),
        choices=choices(policy, plan),
    )


def epsilon_after_rounds(plan: PrivacyPlan, delta: float, rounds: Sequence[int]) -> list[float]:
    """Return the epsilon of a plan after each of these numbers of rounds."""
    steps = [plan.steps * count for count in rounds]
    return api.epsilon_after(plan.rate, plan.noise_multiplier, steps, delta, plan.relation, plan.accountant)


def affordable_rounds(plan: PrivacyPlan, policy: Policy) -> int:
    """Return the number of rounds of a plan, at its noise, that a policy allows."""
    steps = api.affordable_steps(
        policy.epsilon, policy.delta, plan.rate, plan.noise_multiplier, policy.relation, plan.accountant
    )
    return steps // plan.steps


def choices(
    policy: Policy,
    plan: PrivacyPlan,
    batch_factors: Sequence[float] = BATCH_FACTORS,
    epochs: Sequence[int] = EPOCHS,
) -> tuple[Choice, ...]:
    """Return the noise for other batch sizes and epochs, with the same budget and rounds."""
    batches = dict.fromkeys(min(plan.samples, max(1, round(plan.batch * factor))) for factor in batch_factors)
    drafts = (replace(plan, batch=batch, epochs=count) for batch in batches for count in epochs)
    return tuple(_choice(_keeping(policy, draft)) for draft in drafts)


def _keeping(policy: Policy, draft: PrivacyPlan) -> PrivacyPlan:
    """Return the draft with the least noise that satisfies the policy."""
    return calibrated(
        policy,
        samples=draft.samples,
        batch=draft.batch,
        epochs=draft.epochs,
        rounds=draft.rounds,
        clip=draft.clip,
        accountant=draft.accountant,
    )


def _choice(plan: PrivacyPlan) -> Choice:
    return Choice(
        batch=plan.batch,
        epochs=plan.epochs,
        steps=plan.steps,
        sample_rate=plan.rate,
        noise_multiplier=plan.noise_multiplier,
        gradient_noise=plan.noise_multiplier * plan.clip / plan.batch,
        update_noise=plan.update_noise(lr=1.0, size=1),
    )


def _marks(rounds: int) -> tuple[int, ...]:
    if rounds <= MARKS:
        return tuple(range(1, rounds + 1))
    return tuple(round(rounds * mark / MARKS) for mark in range(1, MARKS + 1))


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HushError(f"{name}: found {value!r}; accepted: an integer, 1 or more")
