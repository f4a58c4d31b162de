"""The public facts of a member: what its plan says, in the metrics of its replies, and how a server reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hush.private_trainer import PrivateTrainer
from hush.types import HushError

# `num-examples` is Flower's own name.
WHOLE = ("num-examples", "batch-size", "steps")
REAL = ("epsilon", "delta", "noise-multiplier", "clip", "lr")
_MOST = 1e12


def facts_of(trainer: PrivateTrainer) -> dict[str, int | float]:
    """What a client declares: all of it follows from its plan, and nothing from its rows but their number."""
    plan, policy = trainer.plan, trainer.policy
    return {
        "num-examples": plan.counted,
        "batch-size": plan.batch,
        "steps": plan.steps,
        "epsilon": policy.epsilon,
        "delta": policy.delta,
        "noise-multiplier": plan.noise_multiplier,
        "clip": plan.clip,
        "lr": trainer.lr,
    }


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
