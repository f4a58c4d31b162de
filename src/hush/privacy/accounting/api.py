"""The accounting API: events to epsilon, and a budget to noise or to a number of steps.

The default accountant, `pld`, is the privacy loss distribution of `hush.privacy.accounting.pld`; `rdp` is
dp_accounting's Renyi accountant, looser but with a longer record; `rdp-64` is Robust-HDP's, looser still, for
comparison. Events are dp_accounting's: they describe, this module computes.

Guarantees:
    Every epsilon is an upper bound for the event, delta and relation given.
    `epsilon(event) <= budget` holds for the noise that `noise_multiplier` returns, in both directions of the relation.
    That noise is at most 1 % above the least that a finely gridded PLD accepts (accountant `pld`).
    `noise_scale` does the same for several kinds of release at once.
    `affordable_steps` is the largest number of steps whose epsilon is within the budget.

Edge cases:
    Noise is never below `LEAST_NOISE`. At that noise a sampled record is as good as exposed, so less of it would change
    delta by nothing that can be computed. It is returned when sampling alone is sufficient, that is when delta is
    at least 1 - (1 - sample_rate) ** steps.
    An event without noise has infinite epsilon; no event at all has epsilon 0.
    `rdp` has no bound for Poisson sampling under replace-one: refused.
    Batches of a fixed size, drawn without replacement, have a bound by `rdp` under replace-one alone; all else is
    refused.
    Results are cached: equal clients cost once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, get_args

from hush.privacy.accounting import calibrate, events, gaussian, pld
from hush.privacy.accounting.events import Event as Event
from hush.privacy.accounting.events import Fixed
from hush.privacy.accounting.pld import Part
from hush.types import Accountant, HushError, Relation, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hush.privacy.accounting.cost import Cost

LEAST_NOISE = 0.05
MOST_STEPS = 10**6
_MOST_NOISE = 1e6
# The fraction of epsilon that calibration leaves unspent, so that an accountant with another grid agrees.
_MARGIN = 3e-4
_LAST_DIGITS = 5e-7  # the same, for the closed form of the plain Gaussian


def epsilon(event: Event, delta: float, relation: Relation = "add-remove", accountant: Accountant = "pld") -> float:
    """Return an upper bound on the epsilon of an event.

    Args:
        event: Gaussian, Poisson-sampled Gaussian, Gaussian on batches of a fixed size, no-op or non-private, and
            compositions of these.
        delta: In (0, 1).
        relation: The neighbouring relation.
        accountant: `pld` or `rdp`.
    """
    _check(delta=delta, relation=relation, accountant=accountant)
    return _spent(tuple(events.parts_of(event)), delta, relation, accountant)


def epsilon_after(
    sample_rate: float,
    z: float,
    steps: Sequence[int],
    delta: float,
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
) -> list[float]:
    """Return the epsilon after each of these numbers of steps (0 is allowed), sharing the computation."""
    _check(delta=delta, sample_rate=sample_rate, z=z, relation=relation, accountant=accountant)
    if any(count < 0 for count in steps):
        raise HushError(f"steps: found {min(steps)}; accepted: 0 or more")
    curve = ((Part(sample_rate, z, int(count)),) if count else () for count in steps)
    return [_spent(parts, delta, relation, accountant) for parts in curve]


def noise_multiplier(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
) -> float:
    """Return the least noise multiplier with which these steps satisfy epsilon at delta."""
    _check(epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps, relation=relation, accountant=accountant)
    return _calibrated(float(epsilon), float(delta), float(sample_rate), int(steps), relation, accountant)


def epsilon_of(
    costs: Iterable[Cost], delta: float, relation: Relation = "add-remove", accountant: Accountant = "pld"
) -> float:
    """Return an upper bound on the epsilon of all these costs together."""
    return epsilon_of_parts(events.parts_of_costs(costs), delta, relation, accountant)


def epsilon_of_parts(
    parts: tuple[Part | Fixed, ...], delta: float, relation: Relation = "add-remove", accountant: Accountant = "pld"
) -> float:
    """Return an upper bound on the epsilon of these steps."""
    _check(delta=delta, relation=relation, accountant=accountant)
    return _spent(parts, delta, relation, accountant)


def noise_scale(
    costs: Iterable[Cost],
    epsilon: float,
    delta: float,
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
) -> float:
    """Return the least factor by which the noise of all these costs must be multiplied to satisfy epsilon at delta.

    The costs can be of different kinds: stages of training with different batches, noisy choices, noisy counts. The
    ratios of their noise multipliers do not change.
    """
    _check(epsilon=epsilon, delta=delta, relation=relation, accountant=accountant)
    return _scaled(events.parts_of_costs(costs), float(epsilon), float(delta), relation, accountant)


def noise_multipliers(
    clients: Sequence[tuple[float, float, float, int]],
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
) -> list[float]:
    """Return `noise_multiplier` for each (epsilon, delta, sample_rate, steps); equal entries are computed once."""
    return [noise_multiplier(*client, relation, accountant) for client in clients]


def affordable_steps(
    epsilon: float,
    delta: float,
    sample_rate: float,
    z: float,
    relation: Relation = "add-remove",
    accountant: Accountant = "pld",
) -> int:
    """Return how many steps with noise `z` a budget allows: 0 if not even one, `MOST_STEPS` if more than that."""
    _check(epsilon=epsilon, delta=delta, sample_rate=sample_rate, z=z, relation=relation, accountant=accountant)
    share = 1.0 / gaussian.noise_for(epsilon, delta)
    guess = share**2 / gaussian.loss_variance(sample_rate, max(z, LEAST_NOISE), _direction(relation))

    def cost(steps: int) -> float:
        return _spent((Part(sample_rate, z, steps),), delta, relation, accountant)

    return calibrate.most_steps(cost, epsilon, guess, most=MOST_STEPS)


@lru_cache(maxsize=65536)
def _spent(parts: tuple[Part | Fixed, ...], delta: float, relation: Relation, accountant: Accountant) -> float:
    if not parts:
        return 0.0
    if accountant == "pld":
        return pld.epsilon(events.without_fixed(parts), delta, relation)
    return events.renyi_epsilon(parts, delta, relation, dated=accountant == "rdp-64")


@lru_cache(maxsize=65536)
def _calibrated(
    epsilon: float, delta: float, rate: float, steps: int, relation: Relation, accountant: Accountant
) -> float:
    twice = 2.0 if relation == "replace-one" else 1.0
    if accountant == "pld" and rate == 1.0:
        return max(LEAST_NOISE, twice * math.sqrt(steps) * gaussian.noise_for(epsilon, delta) * (1.0 + _LAST_DIGITS))

    def guaranteed(noise: float) -> float:
        return _spent((Part(rate, noise, steps),), delta, relation, accountant)

    def quick(noise: float) -> float:
        return pld.epsilon((Part(rate, noise, steps),), delta, relation, one_way=True)

    if accountant == "pld" and steps == 1 and relation == "add-remove":
        noise = gaussian.noise_for(gaussian.unsampled(epsilon * (1.0 - _MARGIN), rate), delta / rate)
    else:
        # The central limit theorem of Bu, Dong, Long and Su (2020) is accurate unless there are few steps with little
        # noise.
        share = 1.0 / (gaussian.noise_for(epsilon, delta) * twice * rate * math.sqrt(steps))
        guess = 1.0 / math.sqrt(math.log1p(share**2))
        cost = quick if accountant == "pld" else guaranteed
        found = calibrate.least_noise(cost, epsilon * (1.0 - _MARGIN), guess, floor=LEAST_NOISE, ceiling=_MOST_NOISE)
        if found is None:
            raise HushError(
                f"epsilon: {accountant} finds no noise multiplier for {epsilon:g} at delta {delta:g} over {steps} "
                "steps; "
                "accepted: a larger epsilon or delta"
            )
        noise = found
    noise = max(noise, LEAST_NOISE)
    # The search evaluated one direction only; the guarantee must hold in both.
    while guaranteed(noise) > epsilon:
        noise *= 1.001
    return noise


@lru_cache(maxsize=65536)
def _scaled(
    parts: tuple[Part | Fixed, ...], epsilon: float, delta: float, relation: Relation, accountant: Accountant
) -> float:
    if len(parts) == 1 and isinstance(parts[0], Part):
        rate, noise, steps = parts[0]
        return _calibrated(epsilon, delta, rate, steps, relation, accountant) / noise
    least = LEAST_NOISE / min(part.noise for part in parts)

    def cost(scale: float) -> float:
        return _spent(tuple(events.with_noise_scaled(part, scale) for part in parts), delta, relation, accountant)

    # Treats every part as Gaussian with large noise: the squared rate-to-noise ratios add up.
    twice = 2.0 if relation == "replace-one" else 1.0
    shares = sum(part.steps * (events.rate_of(part) * twice / part.noise) ** 2 for part in parts)
    guess = math.sqrt(shares) * gaussian.noise_for(epsilon, delta)
    found = calibrate.least_noise(cost, epsilon * (1.0 - _MARGIN), guess, floor=least, ceiling=_MOST_NOISE)
    if found is None:
        raise HushError(
            f"epsilon: {accountant} finds no noise multiplier for {epsilon:g} at delta {delta:g}; "
            "accepted: a larger epsilon or delta"
        )
    return found


def _direction(relation: Relation) -> gaussian.Direction:
    return "replace" if relation == "replace-one" else "remove"


_ACCEPTED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "epsilon": ("a positive number", lambda value: 0.0 < value < math.inf),
    "delta": ("a number between 0 and 1, both excluded", lambda value: 0.0 < value < 1.0),
    "sample_rate": ("a number above 0 and at most 1", lambda value: 0.0 < value <= 1.0),
    "steps": ("an integer, 1 or more", lambda value: 1 <= value < math.inf and value == math.floor(value)),
    "z": ("a positive number", lambda value: 0.0 < value < math.inf),
}


def _check(**arguments: object) -> None:
    """Raise a `HushError` for the first argument that is not accepted."""
    for name, value in arguments.items():
        if name in _ACCEPTED:
            accepted, holds = _ACCEPTED[name]
            if not isinstance(value, Real) or not holds(float(value)):
                raise HushError(f"{name}: found {value!r}; accepted: {accepted}")
        else:
            names = get_args(Relation) if name == "relation" else get_args(Accountant)
            if value not in names:
                raise unknown(name, name, value, names)
