"""The automatic learning rate (`local.lr = "auto"`): how far a step goes where the config leaves that open.

The model. A round moves the server's model by a signal of at most `COHERENCE` K C, for K steps of gradients clipped to
C of which a part points the same way, and by noise of energy S^2, both times the rate. With a convex loss and R rounds
with signals of length s_r, the average model's loss is above that of a model at distance D by at most (the regret of
gradient descent)

    D^2 / (2 rate K R) + rate (s_1^2 + ... + s_R^2 + R S^2) / (2 K R),

the first term for not arriving, the second for overshooting and for noise. Gradients of a smooth loss vanish where the
model arrives, so that the squares of the signals add up to about one of full length, however many rounds follow. Where
clients differ, a part of each signal stays: `REMAINING` of its square. So the rate at which the bound is least is

    rate = D / sqrt((1 + REMAINING R) (COHERENCE K C)^2 + R S^2).

Limits: without noise a round may go D / COHERENCE far, somewhat less in a run of many rounds; where noise prevails,
what it adds over all rounds is D long in all, whatever the rounds and steps. All terms are public: K and S follow from
the plans and the weights to expect, C and R from the config. `DISTANCE`, `COHERENCE` and `REMAINING` are constants,
chosen on models of 78 to 39,700 parameters at 3 to 100 rounds (ADR 60). Behind fixed features, whose rows are scaled to
unit variance, weights need not be as large as for inputs such as pixels: there the distance is `FEATURE_DISTANCE`.

Regression. Cross-entropy pushes logits far apart and its gradient falls where they are; the gradient of a squared error
grows with the error, so that a step beyond the targets is followed by a longer one back, as long as clipping lets it
be. Outputs need go no farther than the targets are from each other: D is `TARGET_SCALE`, the length of [-1, 1], to
which `objective.target_bounds` map targets, and of which targets without bounds should be. Noise that moves outputs
past the targets is followed by signals of full length again: `TARGET_REMAINING` takes the place of `REMAINING`. No
clipped step, of length rate C, may move an output farther than from the middle of the targets, where it begins, to an
end: it moves outputs by at most sqrt(p) times its length for p parameters an output, as in a linear model with inputs
of unit variance.

Without privacy there is neither a clip that bounds a signal nor noise: the rate is `PLAIN`, and for a regression at
most 1 / (d + 1) for d inputs: the squared error of a linear model has at most twice that curvature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hush.objective import Objective
from hush.server.loop import RunTerms, enrolled

DISTANCE = 9.0
FEATURE_DISTANCE = 5.0
TARGET_SCALE = 2.0
COHERENCE = 0.25
REMAINING = 0.1
TARGET_REMAINING = 1.44
PLAIN = 0.1


def rate(terms: RunTerms, participation: float, objective: Objective, inputs: int, *, features: bool = False) -> float:
    """The learning rate for a model of so many inputs, from terms that were drawn up with a rate of 1.

    `features` says that the inputs are fixed features, scaled to unit variance.
    """
    regression = objective.task == "regression"
    if not terms.recipe.protect.private:
        return min(PLAIN, 1.0 / (inputs + 1)) if regression else PLAIN
    view = enrolled(terms)
    weights = terms.recipe.weight.foreseen(view)
    noise = float((weights.square() * view.planned_noise).sum()) / participation
    reach, rounds = terms.clip * float(weights @ view.reach), len(terms.participants)
    if not regression:
        return least_bound_rate(reach, noise, rounds, FEATURE_DISTANCE if features else DISTANCE)
    farthest = 0.5 * TARGET_SCALE / (terms.clip * math.sqrt(terms.layout.size / objective.outputs))
    return min(farthest, least_bound_rate(reach, noise, rounds, TARGET_SCALE, TARGET_REMAINING))


def whole_update_rate(clip: float, steps: Sequence[int]) -> float:
    """The learning rate where the whole update is clipped: K steps of gradients of norm 1 go as far as the clip."""
    return min(PLAIN, clip / max(1.0, sorted(steps)[len(steps) // 2]))


def least_bound_rate(
    reach: float, noise: float, rounds: int, distance: float = DISTANCE, remaining: float = REMAINING
) -> float:
    """The rate at which the bound is least, for K C and S^2 at a rate of 1."""
    signals = (1.0 + remaining * rounds) * (COHERENCE * reach) ** 2  # the sum of their squares
    return distance / math.sqrt(signals + rounds * noise)
