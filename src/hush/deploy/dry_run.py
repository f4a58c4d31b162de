"""A dry run at a member on synthetic rows: what its policy says, what the run would cost, what would remain.

Nothing is sent, and no ledger is opened for writing. The member's rows are only counted, and checked against their
schema.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hush import models
from hush.config import Config
from hush.data.datasets import Dataset
from hush.data.preprocessing import mapped
from hush.data.schema import Schema, check_fits
from hush.deploy.admin import audit_log, keys
from hush.deploy.admin.folders import Kit
from hush.deploy.coordinator.agreement import Agreement, new_agreement
from hush.deploy.coordinator.enrolment import facts_of
from hush.deploy.coordinator.replies import task_message
from hush.deploy.member import datasets
from hush.deploy.member import policy as law
from hush.deploy.member.process import Node
from hush.deploy.member.synthetic import synthetic_rows
from hush.deploy.shared import protocol
from hush.deploy.shared.refusal import REFUSAL
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.shared.run_spec import (
    as_offered,
    assemble,
    complete,
    releases_input_mean,
    settled,
    width_of,
    with_fingerprint,
)
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.engines.setup import fitted
from hush.privacy.ledger import Ledger, account, book, totals
from hush.privacy.ledger.ledger import inspect
from hush.recipes import configured
from hush.recipes.secure_sums import check_recipe
from hush.server.loop import serve, start
from hush.types import HushError

_RUN = "check"


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The result of a dry run.

    Attributes:
        refused: Why the member would refuse, or an empty text.
        epsilon: The cost of the whole run.
        spent: Epsilon spent so far.
        left: The remaining lifetime budget.
        left_after: The lifetime budget that would remain after the run.
        rounds: The number of rounds in which the member would take part.
        steps: Noisy steps per round.
        noise: The noise multiplier.
        seconds: The measured duration of a round.
        warnings: What to consider before joining.
    """

    refused: str = ""
    epsilon: float = 0.0
    spent: float = 0.0
    left: float = 0.0
    left_after: float = 0.0
    rounds: int = 0
    steps: int = 0
    noise: float = 0.0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()


def dry_run(kit: Kit, policy_path: Path, data: Path, config: Config, run_schema: Schema | None = None) -> DryRun:
    """Dry-run a config. `run_schema` is the schema of the run, if known; otherwise the member's own is used."""
    policy = law.load(policy_path)
    dataset = datasets.load(
        data, label=policy.data.label, loader=policy.data.loader, declared=datasets.declared(kit.path),
        columns=policy.data.columns, person=policy.data.person,
    )  # fmt: skip
    own = dataset.schema or Schema(shape=dataset.x.shape[1:])
    schema = run_schema or replace(own, classes=own.classes or dataset.classes)
    if schema.classes is None:
        schema = replace(schema, classes=own.classes or dataset.classes)
    check_fits(own, schema)
    charged = inspect(kit.ledger)[1] if kit.ledger.exists() else book.Book()
    life, accountant = policy.for_life, policy.budget.accountant
    spent = account.filtered(charged, life)
    found = DryRun(
        spent=spent, left=totals.remaining(spent, life), warnings=tuple(filter(None, [law.lifetime_warning(policy)]))
    )
    kept = max(1, round((1 - policy.data.held_out) * len(dataset.y)))
    person = None if dataset.person is None else dataset.person[:kept]
    made = replace(synthetic_rows(own, kept, schema.classes or 1), person=person)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.in_memory(kit.member, life, accountant)
        try:
            alone, config = _alone(law.unattended(policy, always=True), config)
            node = Node(kit.member, alone, made, ledger, Path(folder), keys.new_key())
            law.check_imports(policy, config)
            config = with_fingerprint(complete(config, schema), schema.input_shape)
            seconds = _first_round(node, config, schema)
        except HushError as error:
            return replace(found, refused=str(error))
        finally:
            ledger.close()
        part = node.agreed(_RUN)
    costs = part.costs()
    after = account.filtered(charged, life, costs)
    warnings = found.warnings
    if not totals.fits(after, life):
        warnings += (
            "warning: the remaining budget does not cover the whole run; the member would leave before the end",
        )
    return replace(
        found, epsilon=totals.epsilon(totals.add_costs({}, costs), policy.one_run, accountant),
        left_after=totals.remaining(after, life), rounds=part.schedule.rounds, steps=part.schedule.plan.steps,
        noise=part.schedule.plan.noise_multiplier, seconds=seconds, warnings=warnings,
    )  # fmt: skip


def _alone(policy: law.MemberPolicy, config: Config) -> tuple[law.MemberPolicy, Config]:
    """Return policy and config without secure aggregation, for which one member is too few; its costs are the same."""
    if not config.secure_aggregation:
        return policy, config
    law.check_imports(policy, config)
    check_recipe(configured(config)[1])
    lenient = policy.secure_aggregation.model_copy(update={"required": False})
    return (
        policy.model_copy(update={"secure_aggregation": lenient}),
        config.model_copy(update={"secure_aggregation": False}),
    )


def _first_round(node: Node, config: Config, schema: Schema) -> float:
    """Enrol, begin, and answer the first round with this member; return how long the round took."""
    offer = new_agreement(
        _RUN,
        [
            RosterEntry(name=f"m{at}", epsilon=0.0, delta=0.0, relation="add-remove", samples=0)
            for at in range(config.data.clients)
        ],
        config,
    )
    fields: dict[str, Any] = {"run": _RUN}
    fields |= {"config": as_offered(offer.config), "code": str(protocol.own()), "schema": schema.record()}
    fact, _ = facts_of(_answer_of(node, Message("enrol", {**fields, "number": 0, "head": ""})), node.name, _RUN)
    facts = [fact, *(replace(fact, name=f"m{at}", noised={}) for at in range(1, config.data.clients))]
    x, y = mapped(node.data.x, node.data.y, node.schema, schema)
    test = replace(node.data, x=x, y=y, classes=schema.classes or 1)
    run = _with_centre(new_agreement(_RUN, facts, settled(offer.config, facts, test)), test)
    fields |= {"config": as_offered(run.config), "client": 0, "roster": [asdict(each) for each in facts]}
    _answer_of(node, Message("begin", {**fields, "centre": run.centre_name, "head": ""}))
    federation = assemble(run.config, facts, test)
    state = start(federation.terms, federation.starts(), run.enrolment_state)
    number = next(at for at, members in enumerate(federation.terms.participants) if 0 in members)
    tasks = next(serve(federation.terms, replace(state, round=number), lambda new, record: None))
    message = task_message(_RUN, next(task for task in tasks if task.client == 0), halves=federation.terms.halves)
    began = time.perf_counter()
    _answer_of(node, replace(message, fields={**message.fields, "head": ""}))
    return time.perf_counter() - began


def _with_centre(run: Agreement, test: Dataset) -> Agreement:
    inputs = tuple(test.x.shape[1:])
    model = models.build_model(run.config.model, inputs, test.classes, run.config.seed)
    recipe, _ = fitted(configured(run.config)[1], model, inputs)
    if not releases_input_mean(recipe, run.config.rounds):
        return run
    return replace(run, centre=torch.zeros(width_of(model)))


def _answer_of(node: Node, message: Message) -> Message:
    payload, _ = node.handle(messages.encode(message))
    content = keys.opened(node.public, payload)
    answer = messages.decode(content, len(content))
    if answer.kind == REFUSAL:
        note: Mapping[str, Any] = audit_log.read(node.log.path)[-1]
        raise HushError(f"{answer.fields['code']}: {note['reason']}")
    return answer
