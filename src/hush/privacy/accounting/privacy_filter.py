"""A privacy filter: a bound on epsilon that holds although the costs of later runs are chosen after earlier releases.

The accountants of this package compose costs that were fixed beforehand. Within a run they are: its schedule is agreed
on before its first release. Which run follows, and with which noise, may depend on everything released so far. The
filter admits runs so that the budget holds nevertheless (Theorem 2 of docs/proofs.md): the schedule of the first run
fixes a unit, one of its steps, and the number of units that fit the budget. Every later release is converted to units
that dominate it, and admitted while enough units are left. A multiple of the first schedule costs what it costs under
fixed composition.

    gaussian   the first schedule consists of releases on all rows: units are precisions, and real numbers
    sampled    its most frequent sampled step is the unit; its other steps come in proportion
    renyi      accountants `rdp` and `rdp-64`: the sum of Renyi divergences at one order, which the first schedule fixes
               (Theorem 3 of docs/proofs.md)

Guarantees:
    If every charge was admitted while `bound` was at most the policy's epsilon, all releases together are
    (epsilon, delta)-private, however they were chosen.
    The first schedule is admitted exactly if its fixed composition fits the budget.

Edge cases:
    A schedule that differs from the first one can be converted only if a part of delta is left for it: a hundredth, or
    what the first schedule leaves.
    What cannot be converted costs infinitely many units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hush.privacy.accounting import events, gaussian, pld
from hush.privacy.accounting.events import Fixed
from hush.privacy.accounting.pld import Part

if TYPE_CHECKING:
    from hush.privacy.accounting.gaussian import Array, Direction
    from hush.privacy.accounting.pld import Losses
    from hush.types import Accountant, Policy

Steps: TypeAlias = tuple[Part | Fixed, ...]

_RESERVE = 0.01  # the part of delta that conversions may use, unless the first schedule leaves less
_MOST_UNITS = 10**6
_REPEATS = 64  # the truncation of a unit suffices for so many repetitions of the first schedule
_GAUSSIAN_PRECISION = 1e-4


@dataclass(frozen=True)
class Conversion:
    """What a schedule costs: units that dominate it, except with probability `doubt` (a part of delta)."""

    units: float
    doubt: float


NOTHING = Conversion(0.0, 0.0)


@dataclass(frozen=True)
class State:
    """What a ledger has admitted.

    Attributes:
        first: The first schedule.
        direct: Charges that are counted as what they are: steps of the first schedule.
        converted: What schedules of other kinds cost.
        count: Their number.
    """

    first: Steps
    direct: Steps = ()
    converted: Conversion = NOTHING
    count: int = 0


def is_direct(first: Steps, steps: Steps, accountant: Accountant) -> bool:
    """Whether these steps are counted as what they are, so that they need no conversion."""
    if accountant != "pld" or _gaussian(first):
        return accountant != "pld" or _gaussian(steps)
    known = {_kind(step) for step in first}
    return all(_kind(step) in known for step in steps)


def convert(state: State, steps: Steps, policy: Policy, accountant: Accountant) -> Conversion:
    """Return what a schedule of another kind costs after `state`; infinitely many units if it cannot be converted."""
    left = _reserve(state.first, policy, accountant)
    # The shares 1/2, 1/6, 1/12, ... add up to 1.
    share = left / ((state.count + 1) * (state.count + 2))
    return _converted(state.first, tuple(sorted(steps, key=repr)), policy, share)


def bound(state: State, policy: Policy, accountant: Accountant) -> float:
    """Return the epsilon that counts as spent, at the policy's delta: at most its epsilon while everything is admitted.

    Under fixed composition the same releases cost at most as much.
    """
    first, direct = state.first, state.direct
    if not first:
        return 0.0
    if any(step.noise == 0.0 for step in (*first, *direct)):
        return math.inf
    if accountant != "pld":
        order = _order(first, policy, accountant)
        return events.renyi_epsilon(direct, policy.delta, policy.relation, dated=accountant == "rdp-64", order=order)
    if not math.isfinite(state.converted.units):
        return math.inf
    delta = policy.delta - max(_reserve(first, policy, accountant), state.converted.doubt)
    if delta <= 0.0:
        return math.inf
    if _gaussian(first):
        return _gaussian_epsilon(_precision(direct) + state.converted.units, delta, policy)
    return _composed(first, _units(first, direct, state.converted.units), delta, policy)


def within_first(state: State) -> bool:
    """Whether all charges are steps of the first schedule, and no more than it has."""
    if state.count:
        return False
    if _gaussian(state.first) and _gaussian(state.direct):
        return _precision(state.direct) <= _precision(state.first) * (1.0 + 1e-12)
    known = {_kind(step): step.steps for step in state.first}
    return all(step.steps <= known.get(_kind(step), 0) for step in state.direct)


def fits(state: State, fixed: float, policy: Policy, accountant: Accountant) -> bool:
    """Whether a schedule that leads to this state is admitted; `fixed` is the epsilon of its fixed composition.

    While nothing but the first schedule is charged, its fixed composition decides.
    """
    if fixed > policy.epsilon:
        return False
    return within_first(state) or bound(state, policy, accountant) <= policy.epsilon


def of_schedules(schedules: Sequence[Steps], policy: Policy, accountant: Accountant) -> State:
    """Return the state after these schedules, one after the other."""
    state = State(schedules[0], schedules[0])
    for steps in schedules[1:]:
        state = after(state, steps, policy, accountant)
    return state


def after(state: State, steps: Steps, policy: Policy, accountant: Accountant) -> State:
    """Return the state after another schedule."""
    if is_direct(state.first, steps, accountant):
        return State(state.first, _sum(state.direct, steps), state.converted, state.count)
    cost = convert(state, steps, policy, accountant)
    both = Conversion(state.converted.units + cost.units, state.converted.doubt + cost.doubt)
    return State(state.first, state.direct, both, state.count + 1)


def _kind(step: Part | Fixed) -> tuple[float, ...]:
    return (step.samples, step.batch, step.noise) if isinstance(step, Fixed) else (step.rate, step.noise)


def _sum(one: Steps, other: Steps) -> Steps:
    counts: dict[tuple[float, ...], Part | Fixed] = {}
    for step in (*one, *other):
        known = counts.get(_kind(step))
        counts[_kind(step)] = step if known is None else events.with_steps(step, known.steps + step.steps)
    return tuple(counts[kind] for kind in sorted(counts))


def _gaussian(steps: Steps) -> bool:
    return all(isinstance(step, Part) and step.rate == 1.0 for step in steps)


def _precision(steps: Steps) -> float:
    return math.fsum(step.steps / step.noise**2 for step in steps)


def _gaussian_epsilon(precision: float, delta: float, policy: Policy) -> float:
    twice = 2.0 if policy.relation == "replace-one" else 1.0
    return gaussian.epsilon_of(1.0 / (twice * math.sqrt(precision)), delta) if precision else 0.0


def _main(first: Steps) -> Part:
    """The unit: the most frequent sampled step."""
    sampled = [step for step in events.without_fixed(first) if step.rate < 1.0]
    return max(sampled, key=lambda step: (step.steps, step.rate, -step.noise))


def _units(first: Steps, direct: Steps, converted: float) -> int:
    """The least number of units that, with the other steps of the first schedule in proportion, covers all charges."""
    main = _main(first)
    counts = {_kind(step): step.steps for step in first}
    needed = [math.ceil(converted)]
    for step in direct:
        if _kind(step) == _kind(main):
            needed[0] += step.steps
        elif step.steps:
            needed.append((step.steps - 1) * main.steps // counts[_kind(step)] + 1)
    return max(needed)


def _chain(first: Steps, units: int) -> tuple[Part, ...]:
    """The first schedule, extended or cut to so many units: the other steps in proportion, rounded up."""
    main = _main(first)
    return tuple(
        step._replace(steps=units if step == main else -(-units * step.steps // main.steps))
        for step in events.without_fixed(first)
    )


def _directions(policy: Policy) -> tuple[Direction, ...]:
    return ("replace",) if policy.relation == "replace-one" else ("remove", "add")


def _grid(first: Steps, delta: float, direction: Direction) -> tuple[float, float]:
    """The grid interval and the truncation that define the unit's discretised loss."""
    parts = pld.merge(events.without_fixed(first))
    return pld.width_of(parts, delta, direction), pld.tail_of(_REPEATS * sum(part.steps for part in parts), delta)


def _composed(first: Steps, units: int, delta: float, policy: Policy) -> float:
    """The epsilon of so many units, on the grid of the first schedule."""
    if units == 0:
        return 0.0
    if units > _MOST_UNITS or any(step.noise < pld.LEAST_NOISE for step in first):
        return math.inf
    return max(
        pld.read(_chain_losses(_chain(first, units), first, policy.delta, direction), delta)
        for direction in _directions(policy)
    )


@lru_cache(maxsize=256)
def _chain_losses(chain: tuple[Part, ...], first: Steps, delta: float, direction: Direction) -> Losses:
    return pld.composed(pld.merge(chain), delta, direction, *_grid(first, delta, direction))


@lru_cache(maxsize=4096)
def _reserve(first: Steps, policy: Policy, accountant: Accountant) -> float:
    """The part of delta for conversions: fixed by the first schedule and the policy."""
    if accountant != "pld" or not math.isfinite(policy.epsilon):
        return 0.0
    usual = _RESERVE * policy.delta

    def costs(delta: float) -> float:
        if _gaussian(first):
            return _gaussian_epsilon(_precision(first), delta, policy)
        return _composed(first, _main(first).steps, delta, policy)

    if costs(policy.delta - usual) <= policy.epsilon:
        return usual
    if costs(policy.delta) > policy.epsilon:
        return 0.0
    low, high = 0.0, usual
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if costs(policy.delta - middle) <= policy.epsilon else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _converted(first: Steps, steps: Steps, policy: Policy, doubt: float) -> Conversion:
    """Units that dominate the steps (Theorem 5 of docs/proofs.md)."""
    if not all(isinstance(step, Part) for step in (*first, *steps)) or any(step.noise == 0.0 for step in steps):
        return Conversion(math.inf, 0.0)
    found = _by_comparison(first, steps, policy, doubt) if doubt > 0.0 else Conversion(math.inf, 0.0)
    if _gaussian(first):
        return found
    main, parts = _main(first), events.without_fixed(steps)
    if all(part.rate <= main.rate and part.noise >= main.noise for part in parts):
        weaker = float(sum(part.steps for part in parts))
        if weaker <= found.units:
            return Conversion(weaker, 0.0)
    return found


def _by_comparison(first: Steps, steps: Steps, policy: Policy, doubt: float) -> Conversion:
    """The fewest units whose divergences are above those of the steps, at every epsilon and in both directions."""
    parts = pld.merge(events.without_fixed(steps))
    if any(part.noise < pld.LEAST_NOISE for part in parts):
        return Conversion(math.inf, 0.0)
    curves = []
    for direction in _directions(policy):
        tail = pld.tail_of(sum(part.steps for part in parts), doubt)
        losses = pld.composed(parts, doubt, direction, pld.width_of(parts, doubt, direction), tail)
        if not losses.infinite < doubt:
            return Conversion(math.inf, 0.0)
        eps = np.append(0.0, losses.values[losses.values > 0.0])
        curves.append((direction, eps, losses.infinite + pld.divergence(losses, eps)))
    if _gaussian(first):
        twice = 2.0 if policy.relation == "replace-one" else 1.0
        return Conversion(_least_precision(curves, doubt, twice), doubt)

    def dominated(units: int) -> bool:
        return all(
            _below(eps, upper, _unit_losses(first, units, policy.delta, doubt, direction), doubt)
            for direction, eps, upper in curves
        )

    low, high = 0, 1
    while not dominated(high):
        low, high = high, 2 * high
        if high > _MOST_UNITS:
            return Conversion(math.inf, 0.0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dominated(middle) else (middle, high)
    return Conversion(float(high), doubt)


def _unit_losses(first: Steps, units: int, delta: float, doubt: float, direction: Direction) -> Losses | None:
    """The losses of so many units on the grid that defines them; None if they need a coarser one."""
    width, tail = _grid(first, delta, direction)
    found = pld.composed((_main(first)._replace(steps=units),), doubt, direction, width, tail)
    spaced = len(found.values) < 2 or found.values[1] - found.values[0] < 1.5 * width
    return found if spaced else None


def _below(eps: Array, upper: Array, units: Losses | None, doubt: float) -> bool:
    """Whether the divergences `upper`, linear in exp(epsilon) between `eps`, are below those of the units.

    The divergences of units are linear between their own grid points, so that all grid points of both suffice.
    """
    if units is None:
        return False
    own = units.values[(units.values > 0.0) & (units.values < eps[-1])]
    at = np.concatenate([eps, own])
    asked = np.concatenate([upper, _between(eps, upper, own)])
    least = np.maximum(pld.divergence(units, at) - units.doubt, 0.0)
    return bool((asked <= doubt + (1.0 - doubt) * least).all())


def _between(eps: Array, values: Array, at: Array) -> Array:
    """Values between grid points, linear in exp(epsilon)."""
    after = np.clip(np.searchsorted(eps, at), 1, len(eps) - 1)
    low, high = eps[after - 1], eps[after]
    share = np.expm1(at - low) / np.expm1(high - low)
    between: Array = values[after - 1] + share * (values[after] - values[after - 1])
    return between


def _least_precision(curves: Sequence[tuple[Direction, Array, Array]], doubt: float, twice: float) -> float:
    """The least precision of a Gaussian release whose divergences are above the curves."""

    def dominated(precision: float) -> bool:
        noise = 1.0 / (twice * math.sqrt(precision))
        return all(_below_gaussian(eps, upper, noise, doubt) for _, eps, upper in curves)

    low, high = 0.0, 1e-6
    while not dominated(high):
        low, high = high, 4.0 * high
        if high > 1e6:
            return math.inf
    while high - low > _GAUSSIAN_PRECISION * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if dominated(middle) else (middle, high)
    return high


def _below_gaussian(eps: Array, upper: Array, noise: float, doubt: float) -> bool:
    """The same below a Gaussian release, whose divergences are convex in exp(epsilon).

    Between two grid points they are above both tangents there; the curve is linear, so that the two points and the one
    where the tangents meet suffice.
    """
    from scipy.special import ndtr

    tails = ndtr(-0.5 / noise - eps * noise)  # minus the slope in exp(epsilon)
    least = np.maximum(gaussian.divergences(eps, 1.0, noise, "remove") * (1.0 - 1e-12), 0.0)
    if bool((upper > doubt + (1.0 - doubt) * least).any()):
        return False
    if len(eps) < 2:
        return True
    # Relative to exp(epsilon) of the left point, to stay within the range of floating-point numbers.
    scale = np.exp(eps[:-1])
    step = np.expm1(np.diff(eps))
    left, right = tails[:-1] * scale, tails[1:] * scale
    bends = left > right
    meet = np.where(bends, (least[:-1] - least[1:] - right * step) / np.where(bends, left - right, 1.0), 0.0)
    meet = np.clip(meet, 0.0, step)
    tangent = np.maximum(least[:-1] - left * meet, least[1:] + right * (step - meet))
    curve = upper[:-1] + meet / step * (upper[1:] - upper[:-1])
    return bool((curve <= doubt + (1.0 - doubt) * np.maximum(tangent, 0.0)).all())


@lru_cache(maxsize=1024)
def _order(first: Steps, policy: Policy, accountant: Accountant) -> int:
    """The Renyi order at which the budget covers the largest multiple of the first schedule, as an index."""
    return events.best_order(first, policy, dated=accountant == "rdp-64")
