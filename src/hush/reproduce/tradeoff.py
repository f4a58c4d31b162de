"""DP-SCAFFOLD's tables 1 and 4: noise against local steps against rounds, at one budget toward a third party.

The rounds of every cell are the most that the paper's bound affords by our own accountant; the printed ones stand
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hush.privacy.third_party import claimed_rounds

ROUNDS = "rounds T"


def cells(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any], int]]:
    """Row, column, the column in print, settings and rounds, for every noise and number of local steps.

    Args:
        table: `epsilon` toward a third party, the shares `s` of rows and `l` of users, `users`, `rows` of a user,
            `eta_0`, and the lists `sigma_g` and `K`.
    """
    s, share, users, rows = table["s"], table["l"], table["users"], table["rows"]
    for sigma in table["sigma_g"]:
        for steps in table["K"]:
            rounds = claimed_rounds(table["epsilon"], sigma, s, share, steps, users, rows)
            settings = {
                "rounds": rounds,
                "local.steps": steps,
                "local.lr": table["eta_0"] / (s * steps),
                # The paper counts its noise in what one replaced row can move, which is twice the clip.
                "recipe.protect": {
                    "rule": "dp-sgd", "sampler": "fixed", "spread": "equal-noise", "noise": 2.0 * sigma,
                },
            }  # fmt: skip
            yield f"sigma_g={sigma}", f"K={steps}", f"sigma_g={sigma},K={steps}", settings, rounds
