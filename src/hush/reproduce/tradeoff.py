"""The tradeoff of DP-SCAFFOLD's tables 1 and 4: noise, local steps and rounds, at one budget against a third party.

The rounds of every cell are the most that the paper's bound affords by our own accountant; the printed ones stand
beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hush.privacy.third_party import claimed_rounds

ROUNDS = "rounds T"


def cells(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any], int]]:
    """Row, column, the column in print, settings and rounds, for every noise and number of local steps.

    A step is eta_0 over the whole passes that its K batches make, of which the paper's public code counts one at least:
    with K = 1 and s = 0.2 a round moves a fifth as far as with K = 5. That code also clips and noises each tensor of
    the model by itself, which on the whole gradient is a wider clip with less noise to it.

    Args:
        table: `epsilon` toward a third party, the shares `s` of rows and `l` of users, `users`, `rows` of a user,
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
                # The paper counts its noise in what one replaced row can move, which is twice the clip.
                "recipe.protect": {
                    "rule": "dp-sgd", "sampler": "fixed", "draws": "shared", "spread": "equal-noise",
                    "noise": 2.0 * sigma / math.sqrt(table["tensors"]),
                },
            }  # fmt: skip
            yield f"sigma_g={sigma}", f"K={steps}", f"sigma_g={sigma},K={steps}", settings, rounds
