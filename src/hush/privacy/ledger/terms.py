"""The terms of a ledger, fixed for its lifetime: client, policy and accountant; and how they are stored.

Guarantees:
    - `read` and `read_policy` accept the output of `write` and `write_policy`, and nothing else.
    - A lifetime policy can be tightened (a lower epsilon or delta) but never loosened, so that guarantees for earlier
      releases stay valid. A looser policy needs a new ledger, with data that the old one does not cover.

Edge cases:
    - An infinite epsilon is no guarantee. It is stored as null, because JSON cannot represent it.
    - Another relation or unit of privacy is neither stricter nor looser: refused. So is another accountant.
    - A unit is stored unless it is a row, as in ledgers that were made before there were others.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, get_args

from hush.privacy.ledger.errors import BrokenLedgerError
from hush.types import Accountant, HushError, Policy, Relation, Unit, unknown

_FORMAT = 1
_POLICY = {"delta", "epsilon", "relation"}
_UNIT = "unit"


@dataclass(frozen=True)
class LedgerTerms:
    """The client, its policy and its accountant."""

    client: int | str
    policy: Policy
    accountant: Accountant


def check(terms: LedgerTerms) -> None:
    """Raise a `HushError` for invalid terms."""
    client, policy = terms.client, terms.policy
    if type(client) is not int and (type(client) is not str or not client.isprintable() or not 0 < len(client) < 200):
        raise HushError(f"client: found {client!r}; accepted: a number, or a name in printable characters")
    if not policy.epsilon > 0:
        raise HushError(f"epsilon: found {policy.epsilon!r}; accepted: a positive number")
    if not 0 < policy.delta < 1:
        raise HushError(f"delta: found {policy.delta!r}; accepted: a number between 0 and 1, both excluded")
    if policy.relation not in get_args(Relation):
        raise unknown("relation", "relation", policy.relation, get_args(Relation))
    if policy.unit not in get_args(Unit):
        raise unknown("unit", "unit of privacy", policy.unit, get_args(Unit))
    if terms.accountant not in get_args(Accountant):
        raise unknown("accountant", "accountant", terms.accountant, get_args(Accountant))


def check_tighter(new: LedgerTerms, old: LedgerTerms) -> None:
    """Raise a `HushError` unless the new terms are at least as strict as the old ones."""
    check(new)
    for name, wanted, stored in (
        ("epsilon", new.policy.epsilon, old.policy.epsilon),
        ("delta", new.policy.delta, old.policy.delta),
    ):
        if wanted > stored:
            raise HushError(f"{name}: found {wanted:g}; accepted: at most {stored:g}, this ledger's lifetime policy")
    for name, asked, kept in (
        ("relation", new.policy.relation, old.policy.relation),
        ("unit", new.policy.unit, old.policy.unit),
        ("accountant", new.accountant, old.accountant),
    ):
        if asked != kept:
            raise HushError(f"{name}: found {asked}; accepted: {kept}, the value stored in this ledger")


def write_policy(policy: Policy) -> str:
    """Serialise a policy for a row."""
    return _text(_policy_words(policy))


def write(terms: LedgerTerms) -> str:
    """Serialise terms for the first row."""
    words = {"accountant": terms.accountant, "client": terms.client, "format": _FORMAT}
    return _text(words | _policy_words(terms.policy))


def read(text: str) -> LedgerTerms:
    """Parse the output of `write`; any other text is an error."""
    words = _object(text, _POLICY | {"accountant", "client", "format"})
    if words["format"] != _FORMAT:
        raise BrokenLedgerError("entry 1 does not contain the terms of a ledger")
    return _terms(words, words["client"], words["accountant"])


def read_policy(text: str) -> Policy:
    """Parse the output of `write_policy`; any other text is an error."""
    return _terms(_object(text, _POLICY), 0, "pld").policy


def _terms(words: dict[str, Any], client: Any, accountant: Any) -> LedgerTerms:
    epsilon = math.inf if words["epsilon"] is None else words["epsilon"]
    if type(epsilon) not in (int, float) or type(words["delta"]) not in (int, float):
        raise BrokenLedgerError("an entry contains an invalid policy")
    unit = words.get(_UNIT, "row")
    found = LedgerTerms(client, Policy(float(epsilon), float(words["delta"]), words["relation"], unit), accountant)
    try:
        check(found)
    except HushError as error:
        raise BrokenLedgerError(f"an entry contains an invalid policy: {error}") from None
    return found


def _policy_words(policy: Policy) -> dict[str, Any]:
    epsilon = None if policy.epsilon == math.inf else policy.epsilon
    unit = {} if policy.unit == "row" else {_UNIT: policy.unit}
    return {"delta": policy.delta, "epsilon": epsilon, "relation": policy.relation, **unit}


def _object(text: str, keys: set[str]) -> dict[str, Any]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, dict) or set(words) - {_UNIT} != keys:
        raise BrokenLedgerError(f"an entry contains {text[:60]!r} where {', '.join(sorted(keys))} belong")
    return words


def _text(words: dict[str, Any]) -> str:
    return json.dumps(words, sort_keys=True, separators=(",", ":"), allow_nan=False)
