"""Costs of rounds: what a round of a run costs each client, and the epsilon after any number of them.

A run writes it beside its rounds (`privacy.json`), so that whoever follows the run can compute what has been spent. The
numbers are those of the ledgers: costs are added up, and epsilon is the accountant's bound for all of them together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hush.privacy.accounting.cost import Cost, from_json, to_json
from hush.privacy.ledger.totals import Totals, add_costs, epsilon
from hush.types import Accountant, HushError, Policy

_FILE = "privacy.json"


@dataclass(frozen=True, kw_only=True)
class ClientCosts:
    """The costs of one client; clients with the same ones share a record.

    Attributes:
        policy: Budget, delta and neighbouring relation.
        accountant: Computes epsilon.
        earlier: What was charged before the first round: at enrolment, by earlier runs, and for forfeited rounds.
        stages: The costs of one round of each stage.
        charges: How many charges `earlier` adds up.
        updates: How many steps of training are in `earlier`.
        admitted: The schedules that the privacy filter admitted, where a run without ledger files has several.
    """

    policy: Policy
    accountant: Accountant
    earlier: tuple[Cost, ...]
    stages: tuple[tuple[Cost, ...], ...]
    charges: int = 0
    updates: int = 0
    admitted: tuple[tuple[Cost, ...], ...] = ()

    def epsilon(self, rounds: Mapping[int, int]) -> float:
        """Return what is spent after so many charged rounds of each stage."""
        totals: Totals = add_costs({}, self.earlier)
        for stage, times in rounds.items():
            totals = add_costs(totals, [replace(cost, steps=times * cost.steps) for cost in self.stages[stage]])
        return epsilon(dict(sorted(totals.items())), self.policy, self.accountant)


@dataclass(frozen=True)
class RoundCosts:
    """The costs of all clients, in order of their numbers, and what the clients are called."""

    clients: tuple[ClientCosts, ...]
    names: tuple[str, ...]

    def to_json(self) -> bytes:
        """Return it as a file's content: each distinct record once, and the number of each client's."""
        kinds = list(dict.fromkeys(self.clients))
        number = {kind: place for place, kind in enumerate(kinds)}
        content = {
            "kinds": [_plain(kind) for kind in kinds],
            "clients": [number[client] for client in self.clients],
            "names": list(self.names),
        }
        return json.dumps(content, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> RoundCosts:
        """Read what `to_json` wrote, or raise a `HushError`."""
        try:
            raw = json.loads(content)
            kinds = [_read(each) for each in raw["kinds"]]
            return cls(tuple(kinds[number] for number in raw["clients"]), tuple(map(str, raw["names"])))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise HushError(f"{_FILE}: not written by this version of hush: {error!r}") from None


class SpendingMeter:
    """Adds up the charged rounds of a run, and computes the epsilon that clients have spent."""

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self._rounds: dict[int, dict[int, int]] = {}

    def add(self, charged: Iterable[int], stage: int) -> None:
        """Count a round of this stage for the clients that were charged."""
        for client in charged:
            rounds = self._rounds.setdefault(client, {})
            rounds[stage] = rounds.get(stage, 0) + 1

    def epsilon(self, clients: Iterable[int] | None = None) -> dict[int, float]:
        """Return what these clients have spent, by default all of them; equal ones are computed once."""
        known: dict[tuple[ClientCosts, tuple[tuple[int, int], ...]], float] = {}
        found = {}
        for client in range(len(self.costs.clients)) if clients is None else clients:
            rounds = self._rounds.get(client, {})
            key = (self.costs.clients[client], tuple(sorted(rounds.items())))
            if key not in known:
                known[key] = key[0].epsilon(rounds)
            found[client] = known[key]
        return found


def earlier_costs(totals: Totals, rounds: Sequence[Cost]) -> tuple[Cost, ...]:
    """Return the costs in a ledger's totals that are not those of the given rounds."""
    own = add_costs({}, rounds)
    left = {key: steps - own.get(key, 0) for key, steps in totals.items()}
    return tuple(
        Cost(what="earlier", kind=kind, noise=noise, steps=steps, rate=rate, samples=samples, batch=batch)
        for (kind, noise, rate, samples, batch), steps in left.items()
        if steps > 0
    )


def _plain(client: ClientCosts) -> dict[str, Any]:
    policy = asdict(client.policy)
    return {
        "policy": policy | {"epsilon": policy["epsilon"] if math.isfinite(policy["epsilon"]) else None},
        "accountant": client.accountant,
        "earlier": json.loads(to_json(client.earlier)),
        "stages": [json.loads(to_json(stage)) for stage in client.stages],
        "charges": client.charges,
        "updates": client.updates,
        "admitted": [json.loads(to_json(costs)) for costs in client.admitted],
    }


def _read(raw: Mapping[str, Any]) -> ClientCosts:
    budget = math.inf if raw["policy"]["epsilon"] is None else float(raw["policy"]["epsilon"])
    return ClientCosts(
        policy=Policy(**{**raw["policy"], "epsilon": budget}),
        accountant=raw["accountant"],
        earlier=from_json(json.dumps(raw["earlier"])),
        stages=tuple(from_json(json.dumps(stage)) for stage in raw["stages"]),
        charges=int(raw.get("charges", 0)),
        updates=int(raw.get("updates", 0)),
        admitted=tuple(from_json(json.dumps(costs)) for costs in raw.get("admitted", ())),
    )
