"""How far a step goes where the config leaves it open (`local.lr = "auto"`): as far as the noise allows.

Noise that is independent from round to round walks: after R rounds the models are some sqrt(R) times one round's noise
away from where they would be without it. That is known before anything is trained, from the public plans and the
weights to expect. The rate is the one at which the walk is `WALK` long. Where there is little noise, a round moves at
most `STRIDE / sqrt(p)` for p parameters: with inputs of about unit variance that is as far in the outputs of a linear
model, whatever its width. Both were chosen on MNIST and Fashion-MNIST with scattering features.
"""

from __future__ import annotations

import math

from hush.server.loop import RunTerms, enrolled

WALK = 9.0
STRIDE = 400.0


def rate(terms: RunTerms, participation: float) -> float:
    """The learning rate, from terms that were drawn up with a rate of 1."""
    view = enrolled(terms)
    weights = terms.recipe.weight.foreseen(view)
    noise = math.sqrt(float((weights.square() * view.planned_noise).sum()) / participation)
    stride = STRIDE / (math.sqrt(terms.layout.size) * terms.clip * float(weights @ view.reach))
    return min(stride, WALK / (math.sqrt(len(terms.participants)) * noise)) if noise > 0 else stride
