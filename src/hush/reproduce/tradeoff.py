"""The tradeoff of DP-SCAFFOLD's tables 1 and 4: noise, local steps and rounds, at a fixed budget against a third party.

The number of rounds of a cell is the maximum that the paper's bound allows, computed by our accountant; the published
number is shown with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hush.privacy.third_party import claimed_rounds

ROUNDS = "rounds T"


def cells(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any], int]]:
    """Return row, column, published column, settings and rounds for every noise and number of local steps.

    The learning rate is eta_0 divided by the number of whole epochs in its K batches, at least one as in the paper's
    public code: with K = 1 and s = 0.2 a round moves a fifth as far as with K = 5. That code also clips and noises each
    tensor of the model separately, which for the whole gradient means a larger clipping norm with relatively less
    noise.

    Args:
        table: `epsilon` against a third party, the fractions `s` of rows and `l` of users, `users`, `rows` per user,
            the lists `sigma_g`, `eta_0` (one for each sigma_g) and `K`, and the `tensors` of the model.
    """
    s, share, users, rows = table["s"], table["l"], table["users"], table["rows"]
    for sigma, eta in zip(table["sigma_g"], table["eta_0"], strict=True):
        for steps in table["K"]:
            rounds = claimed_rounds(table["epsilon"], sigma, s, share, steps, users, rows)
            settings = {
                "rounds": rounds,
                "local.steps": steps,
                "local.lr": eta / max(1, round(s * steps)),
                # The paper's noise is relative to the change by one replaced row, which is twice the clipping norm.
                "recipe.protect": {
                    "rule": "dp-sgd", "sampler": "fixed", "draws": "shared", "spread": "equal-noise",
                    "noise": 2.0 * sigma / math.sqrt(table["tensors"]),
                },
            }  # fmt: skip
            yield f"sigma_g={sigma}", f"K={steps}", f"sigma_g={sigma},K={steps}", settings, rounds
