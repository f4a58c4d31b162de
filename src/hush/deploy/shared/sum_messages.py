"""Messages of secure sums: what both sides write and read, and which sum they mean by it.

A round with secure aggregation has five steps, of which the third is the ordinary task:

    keys      each member publishes new keys, signed together with the sum that it was asked for
    shares    each verifies the others' signatures, and sends each an encrypted share of its secrets
    task      each trains, and answers with masked numbers
    confirm   each signs the list of those whose numbers are added up
    reveal    each verifies that a threshold of them signed the same list, and reveals shares for it
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hush.deploy.shared.masks import PublicKeys
from hush.deploy.transport.messages import Message, want
from hush.recipes.secure_sums import SumPlan
from hush.types import HushError

KEYS, SHARES, CONFIRM, REVEAL = "keys", "shares", "confirm", "reveal"
STEPS = (KEYS, SHARES, CONFIRM, REVEAL)
_CLOSE = 1e-6  # relative difference of what two machines compute from the same plans
_LONGEST = 64


def sum_request(plan: SumPlan) -> dict[str, Any]:
    """Return a sum as its members are asked for it."""
    return {"clients": list(plan.clients), "weights": plan.weights.tolist(), "step": plan.step}


def checked_sum(own: SumPlan, clients: Any, weights: Any, step: Any) -> SumPlan:
    """Return the sum that is asked for, or raise a `HushError` if it is not the one that follows from the run's plans.

    The last digits may differ between machines, so those of the coordinator are used by all.
    """
    received = weights if isinstance(weights, list) and all(type(each) is float for each in weights) else []
    wanted = own.weights.tolist()
    same = clients == list(own.clients) and len(received) == len(wanted) and type(step) is float
    if not same or not all(
        math.isclose(a, b, rel_tol=_CLOSE, abs_tol=1e-12)
        for a, b in zip([*received, step], [*wanted, own.step], strict=True)
    ):
        raise HushError("secure aggregation: members, weights or step of the sum do not follow from the agreed run")
    return replace(own, weights=torch.tensor(received, dtype=torch.float64), step=step)


def sum_digest(run: str, number: int, attempt: str, plan: SumPlan) -> str:
    """Return a digest of which sum is formed, and in which attempt. Members sign it, so that all mean the same."""
    text = json.dumps([run, number, attempt, plan.threshold, sum_request(plan)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def attempt_of(message: Message) -> tuple[str, int, str]:
    """Return run, round and attempt of a message of these steps, or raise a `HushError`."""
    run, number, attempt = (message.fields.get(key) for key in ("run", "round", "attempt"))
    if not isinstance(run, str) or type(number) is not int or not isinstance(attempt, str) or len(attempt) > _LONGEST:
        raise HushError("secure aggregation: accepted: a run, a round and an attempt")
    return run, number, attempt


def key_fields(keys: PublicKeys) -> dict[str, str]:
    """Return public keys as fields of a message."""
    return {"mask": keys.mask.decode("ascii"), "sealing": keys.sealing.decode("ascii"), "own": keys.own}


def keys_of(message: Message, digest: str, client: int) -> PublicKeys:
    """Return the public keys in a member's message, or raise a `HushError` unless it sent them for this sum."""
    *_, number, received, mask, sealing, own = want(
        message, "run", "round", "attempt", "client", "sum", "mask", "sealing", "own"
    )
    if message.kind != KEYS or number != client or received != digest:
        raise HushError("secure aggregation: keys of another member or for another sum")
    if not all(isinstance(each, str) and each.isascii() and len(each) < 1000 for each in (mask, sealing, own)):
        raise HushError("secure aggregation: accepted: keys in PEM")
    return PublicKeys(mask.encode(), sealing.encode(), own)


def survivors_of(message: Message, digest: str, client: int) -> frozenset[int]:
    """Return whose numbers a member confirms to be added up, or raise a `HushError`."""
    *_, number, received, survivors = want(message, "run", "round", "attempt", "client", "sum", "survivors")
    if message.kind != CONFIRM or number != client or received != digest:
        raise HushError("secure aggregation: a confirmation of another member or for another sum")
    return numbers(survivors)


def numbers(values: Any) -> frozenset[int]:
    """Return client numbers, or raise a `HushError`."""
    if not isinstance(values, list) or any(type(each) is not int for each in values) or len(set(values)) < len(values):
        raise HushError("secure aggregation: accepted: a list of members by number")
    return frozenset(values)


def byte_fields(values: Mapping[int, bytes]) -> dict[str, str]:
    """Return bytes by client number as a field of a message."""
    return {str(client): base64.b64encode(content).decode() for client, content in values.items()}


def bytes_of(values: Any) -> dict[int, bytes]:
    """Return such bytes, or raise a `HushError`."""
    try:
        return {int(client): base64.b64decode(content, validate=True) for client, content in values.items()}
    except (AttributeError, TypeError, ValueError, binascii.Error):
        raise HushError("secure aggregation: accepted: bytes in base64, by member") from None
