"""The public facts of a member in the metrics of its replies: `PrivateTrainer.facts`, as a server reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hush.types import HushError

WHOLE = ("num-examples", "batch-size", "steps")
REAL = ("epsilon", "delta", "noise-multiplier", "clip", "lr")
_MOST = 1e12


def checked_facts(found: Mapping[str, object]) -> dict[str, float]:
    """The facts in a reply's metrics, or a `HushError` that names what is wrong with them."""
    made: dict[str, float] = {}
    for name in (*WHOLE, *REAL):
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise HushError(
                f"reply: {name} is {value!r:.40}; accepted: a finite number, as hush.flower.train_reply sends"
            )
        if not 0 < value < _MOST or (name in WHOLE and value != int(value)):
            raise HushError(
                f"reply: {name} is {value!r:.40}; accepted: a positive number, whole for {', '.join(WHOLE)}"
            )
        made[name] = float(value)
    if made["batch-size"] > made["num-examples"] or made["delta"] >= 1:
        raise HushError("reply: a batch larger than num-examples, or a delta of 1 or more; accepted: a plan's facts")
    return made
