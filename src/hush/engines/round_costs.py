"""Round costs of a run's clients, from its ledgers and schedules: what callbacks and the run directory receive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hush.engines.setup import Federation
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import Spending
from hush.privacy.plan import UPDATE
from hush.privacy.round_costs import ClientCosts, RoundCosts, earlier_costs
from hush.types import RoundRecord

_UNKNOWN = Cost(what="not known here", kind="gaussian", noise=0.0, steps=1)


def round_costs_of(federation: Federation, ledgers: Sequence[Spending], records: Sequence[RoundRecord]) -> RoundCosts:
    """Return what each client's rounds cost, and what its ledger holds besides the rounds in the records."""
    done = Counter((client, record.stage) for record in records for client in record.charged)
    shared: dict[ClientCosts, ClientCosts] = {}
    made = []
    for member, ledger in zip(federation.members, ledgers, strict=True):
        client, terms = member.client, ledger.terms
        stages = tuple(stage.round_costs for stage in federation.schedules[client].stages)
        own = [
            replace(cost, steps=done[client, stage] * cost.steps)
            for stage, costs in enumerate(stages)
            for cost in costs
            if done[client, stage]
        ]
        charged = sum(client in record.charged for record in records)
        updates = sum(steps for (what, _), steps in ledger.released().items() if what == UPDATE)
        # No epsilon follows from a budget that was declared with noise: a cost without noise says so.
        unknown = (_UNKNOWN,) if client in federation.noised_budgets else ()
        one = ClientCosts(
            policy=replace(terms.policy, epsilon=math.inf if unknown else federation.budget(client, ledger)),
            accountant=terms.accountant,
            earlier=(*earlier_costs(ledger.totals(), own), *unknown),
            stages=stages,
            charges=ledger.rounds - charged,
            updates=updates - sum(cost.steps for cost in own if cost.what == UPDATE),
            admitted=ledger.admitted(),
        )
        made.append(shared.setdefault(one, one))
    return RoundCosts(tuple(made), tuple(member.name or str(member.client) for member in federation.members))
