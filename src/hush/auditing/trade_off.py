"""The trade-off curve of what a client releases: how well any attack may tell two neighbouring data sets apart.

An accountant knows more than one epsilon: at every epsilon it has a delta. Together they limit every attack at once, so
that an audit can compare an attack with the curve where the attack is strongest, instead of at one delta far out
in the tails, where few runs end up.

To turn an attack into an epsilon, the noise of the plan is scaled (`Planned`): the least factor at which the attack is
too good gives the epsilon of the planned releases with so little noise. At a factor of one the curve is what the
accountant claims, and an attack that is too good for it refutes the claim without any further assumption. The epsilon
at another factor assumes that the releases are the planned ones with another amount of noise.

Guarantees:
    `TradeOff` allows at least what the releases allow: its deltas are upper bounds, and fewer points allow more.
    `possible` is Theorem 16 of docs/proofs.md.

Edge cases:
    Curves are cached: the search visits the same factors again.
    Noise below what the accountant can compute allows everything. Batches of a fixed size have the curve of their Renyi
    accountant, which is looser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hush.privacy.accounting import api, gaussian, pld
from hush.privacy.accounting.events import Fixed, parts_of_costs, with_noise_scaled, without_fixed
from hush.privacy.accounting.pld import Part
from hush.types import Accountant, Relation

if TYPE_CHECKING:
    from hush.privacy.accounting.cost import Cost
    from hush.privacy.accounting.gaussian import Array, Direction

Parts: TypeAlias = tuple[Part | Fixed, ...]

_POINTS = 400
_DEVIATIONS = 6.0  # of a privacy loss, up to which the curve has points
_LARGEST = 300.0  # epsilon
_MOST_SCALE, _PRECISION = 64.0, 2e-3


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A limit on attacks: at each of these epsilons, of 0 and more, the delta in both directions."""

    epsilons: Array
    deltas: Array

    def most_true(self, false: float) -> float:
        """Return the most true positives that an attack with this rate of false positives can have."""
        grown = self.deltas + np.exp(self.epsilons) * false
        mirrored = 1.0 - np.exp(-self.epsilons) * (1.0 - self.deltas - false)
        return float(min(1.0, grown.min(), mirrored.min()))

    def least_false(self, true: float) -> float:
        """Return the fewest false positives that an attack with this rate of true positives can have."""
        grown = (true - self.deltas) * np.exp(-self.epsilons)
        mirrored = 1.0 - self.deltas - np.exp(self.epsilons) * (1.0 - true)
        return float(max(0.0, grown.max(), mirrored.max()))

    @property
    def accuracy(self) -> float:
        """How often a guess between the two data sets, each as likely beforehand, can be right."""
        odds = np.exp(-self.epsilons)
        return 0.5 + 0.5 * float(min(1.0, np.min((1.0 - odds + 2.0 * self.deltas * odds) / (1.0 + odds))))


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a client is planned to release, and what the accountant says about it.

    Attributes:
        costs: The releases.
        delta: The delta of the claim.
        relation: The neighbouring relation.
        accountant: The accountant of the claim.
    """

    costs: tuple[Cost, ...]
    delta: float
    relation: Relation
    accountant: Accountant = "pld"

    def only(self, *names: str) -> Planned:
        """Return the plan of the releases with these names alone."""
        kept = tuple(cost for cost in self.costs if cost.what in names)
        return Planned(costs=kept, delta=self.delta, relation=self.relation, accountant=self.accountant)

    def epsilon(self, scale: float = 1.0) -> float:
        """Return the epsilon with the noise of every release scaled."""
        return _epsilon(self._parts(scale), self.delta, self.relation, self.accountant)

    def curve(self, scale: float = 1.0) -> TradeOff:
        """Return the limit on attacks with the noise of every release scaled."""
        return _curve(self._parts(scale), self.delta, self.relation, self.accountant)

    def least_refuted(self, refuted: Callable[[TradeOff], bool]) -> float:
        """Return the least scale of the noise at which an attack is too good; infinity if it is not for any."""
        low, high = 1.0, 1.0
        if refuted(self.curve(1.0)):
            while refuted(self.curve(low)) and low > 1.0 / _MOST_SCALE:
                low, high = low / 2.0, low
            if refuted(self.curve(low)):
                return low
        else:
            while not refuted(self.curve(high)):
                if high >= _MOST_SCALE:
                    return math.inf
                low, high = high, high * 2.0
        while high > low * (1.0 + _PRECISION):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if refuted(self.curve(middle)) else (middle, high)
        return high

    def _parts(self, scale: float) -> Parts:
        return tuple(with_noise_scaled(part, scale) for part in parts_of_costs(self.costs))


def _epsilon(parts: Parts, delta: float, relation: Relation, accountant: Accountant) -> float:
    """By the privacy loss distribution, which `_curve` follows, unless batches have a fixed size."""
    fixed = any(isinstance(part, Fixed) for part in parts)
    return api.epsilon_of_parts(parts, delta, relation, accountant if fixed else "pld")


@lru_cache(maxsize=1024)
def _curve(parts: Parts, delta: float, relation: Relation, accountant: Accountant) -> TradeOff:
    if not parts:
        return TradeOff(np.zeros(1), np.zeros(1))
    if any(part.noise < pld.LEAST_NOISE for part in parts):
        return TradeOff(np.zeros(1), np.ones(1))
    if any(isinstance(part, Fixed) for part in parts):
        return _renyi_curve(parts, delta, relation, accountant)
    merged = pld.merge(without_fixed(parts))
    directions: tuple[Direction, ...] = ("replace",) if relation == "replace-one" else ("remove", "add")
    variance = max(sum(p.steps * gaussian.loss_variance(p.rate, p.noise, d) for p in merged) for d in directions)
    reach = min(0.5 * variance + _DEVIATIONS * math.sqrt(variance), _LARGEST)
    # Where sampling is rare, losses reach further than their variance says.
    furthest = max(reach, min(2.0 * _epsilon(parts, delta, relation, accountant), _LARGEST))
    epsilons = np.append(np.linspace(0.0, reach, _POINTS), np.geomspace(reach, furthest, _POINTS // 8 + 1)[1:])
    deltas = np.max([_deltas(merged, delta, direction, epsilons) for direction in directions], axis=0)
    return TradeOff(epsilons, np.minimum(deltas, 1.0))


def _deltas(parts: tuple[Part, ...], delta: float, direction: Direction, epsilons: Array) -> Array:
    """Upper bounds on the divergences in one direction."""
    if len(parts) == 1 and parts[0].steps == 1:
        exact = gaussian.divergences(epsilons, parts[0].rate, parts[0].noise, direction)
        return np.maximum(exact, 0.0) + 1e-15
    tail = pld.tail_of(sum(part.steps for part in parts), delta)
    found = pld.composed(parts, delta, direction, pld.width_of(parts, delta, direction), tail)
    bounds: Array = pld.divergence(found, epsilons) + found.infinite
    return bounds


def _renyi_curve(parts: Parts, delta: float, relation: Relation, accountant: Accountant) -> TradeOff:
    """The deltas of an accountant that has an epsilon for each of them."""
    deltas = np.geomspace(0.9, min(delta, 1e-6), 60)
    pairs = [(api.epsilon_of_parts(parts, float(d), relation, accountant), float(d)) for d in deltas]
    kept = sorted(pair for pair in pairs if math.isfinite(pair[0])) or [(0.0, 1.0)]
    return TradeOff(*(np.array(column) for column in zip(*kept, strict=True)))


def possible(canaries: int, guesses: int, correct: int, curve: TradeOff, chance: float) -> bool:
    """Return whether so many correct guesses can have this probability.

    Args:
        canaries: How many there were, each included with probability 1/2 independently.
        guesses: How many of them the attack guessed, a number fixed beforehand.
        correct: How many of the guesses were right.
        curve: The limit for a single canary.
        chance: The probability.
    """
    right, wrong = chance * correct / canaries, chance * (guesses - correct) / canaries
    for number in range(correct - 1, -1, -1):
        needed = max(wrong, curve.least_false(right))
        right += number / (guesses - number) * (needed - wrong)
        wrong = needed
        if right + wrong > guesses / canaries:
            return False
    return True
