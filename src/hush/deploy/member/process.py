"""How a member processes messages: its policy decides, its ledger is charged first, its own plan determines the noise.

Nothing in a task changes a sampling rate, a noise multiplier or a number of steps: the member computes them from the
config that it agreed to when the run began. It refuses everything else with a code from a fixed list, and charges
nothing.

No row is read before something is charged. Until then all decisions follow from the message, the policy, the ledger,
the declared schema, and the number of rows if the policy makes it public; after that, from the noisy disclosures.
Therefore neither the content nor the timing of answers and refusals depends on rows before a charge.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush import models, recipes
from hush.config import Config, parse, with_noise
from hush.data.client_rows import persons_of
from hush.data.datasets import Dataset
from hush.data.preprocessing import mapped
from hush.data.schema import Schema, check_fits, from_record
from hush.deploy.admin import keys
from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.member import opening
from hush.deploy.member.consent import Consents, PendingError, asks_why, decided, differences
from hush.deploy.member.disclosures import Disclosures, count_is_noised, group, numbers
from hush.deploy.member.policy import (
    ANY,
    MemberPolicy,
    check_code,
    check_imports,
    check_model,
    check_offer,
    check_plans,
    check_protocol,
    check_size,
    check_steps,
    unattended,
)
from hush.deploy.member.preview import Preview, after_json, check_words, preview
from hush.deploy.member.secure_sums import SecureSums, checked_peers
from hush.deploy.member.synthetic import synthetic_rows
from hush.deploy.member.task_checks import check_header, checked
from hush.deploy.shared import protocol, run_spec, sum_messages
from hush.deploy.shared.extras import RELEASES
from hush.deploy.shared.refusal import RefusalCode, RefusalError, refusal, refusing
from hush.deploy.shared.roster import BUDGET, IMPACT, RosterEntry
from hush.deploy.shared.run_spec import MemberSpec
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message, want
from hush.engines import client_round
from hush.engines.noisy_counts import on_rows
from hush.engines.run_ledgers import approve
from hush.engines.schedules import training
from hush.engines.setup import fitted, shaped
from hush.models import Model
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError, Ledger, totals
from hush.privacy.persons import Persons
from hush.privacy.schedule import ENROLMENT, Stage
from hush.privacy.side_release import ReleaseShape
from hush.recipes import Recipe
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.server import half_precision
from hush.server.loop import plans_of_sums
from hush.server.run_directory import write_atomically
from hush.text import printable
from hush.training import memory
from hush.training.train import train
from hush.types import HushError, Receipt, Task

_SYNTHETIC = 1000  # synthetic rows of a member whose number of rows is not public
DECLARED = (COUNT, BUDGET, IMPACT, CENTRE)
_RETRIES = (
    "a process that crashes after a charge repeats the round at an additional charge; this run's budget covers {} "
    "such repeats"
)
_EVICTED = (
    "the coordinator has evicted this member from the run: it received no usable answer in time in several "
    "consecutive rounds"
)


def _person_sizes(data: Dataset) -> Tensor:
    """The number of rows of each person; rows lie one person after the other."""
    if data.person is None:
        raise HushError(
            'budget.unit: "person" needs to know which person each row is about; accepted with it: person in '
            "schema.toml or data.person in the policy, the column with their keys"
        )
    sizes = [len(rows) for rows in persons_of(data)]
    return torch.tensor(sizes, dtype=torch.int64)


@dataclass(frozen=True)
class Offer:
    """A run offered by a coordinator that the policy and the declared schema accept."""

    config: Config
    name: str
    recipe: Recipe
    schema: Schema
    model: Model


def _content(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is begun with, apart from the version of the coordinator's code, which is checked by itself."""
    return {**fields, "code": "", "config": parse(fields["config"]).model_dump()}


def _spending(balance: Mapping[str, float]) -> str:
    return f"epsilon spent {balance['spent']:.4g}, left {balance['left']:.4g}"


class Node:
    """The message handler of a member."""

    def __init__(
        self, name: str, policy: MemberPolicy, data: Dataset, ledger: Ledger, path: Path, key: keys.PrivateKey,
        held_out: Dataset | None = None,
    ) -> None:  # fmt: skip
        self.name, self.policy, self.data, self.ledger = name, policy, data, ledger
        self.held_out = held_out or replace(data, x=data.x[:0], y=data.y[:0])
        self.schema = data.schema or Schema(shape=data.x.shape[1:])
        self._sizes = _person_sizes(data) if policy.budget.unit == "person" else None
        self.log = AuditLog(path / "audit.jsonl")
        self.consents = Consents(path)
        self._runs = path / "runs"
        self._runs.mkdir(exist_ok=True)
        self._key = key
        self._own: dict[str, tuple[str, MemberSpec]] = {}
        self._fitting: set[str] = set()
        self._by_person: set[str] = set()
        self._cached_inputs: tuple[object, Tensor, Tensor] | None = None
        self._sums = SecureSums(self._runs)
        self._dry: tuple[str, Node] | None = None
        self._is_dry = False
        self.seconds = 0.0
        self.say: Callable[[str], None] = lambda words: None

    @property
    def units(self) -> int:
        """The number of its rows, or of persons where they are the unit of privacy."""
        return len(self.data.y) if self._sizes is None else len(self._sizes)

    def _persons(self, config: Config) -> Persons | None:
        """Whose its rows are, where persons are the unit of privacy."""
        return None if self._sizes is None else Persons(self._sizes, config.privacy.rows_per_person)

    def handle(self, content: messages.Buffer) -> tuple[bytes, Receipt | None]:
        """Return the signed answer to a message, and the receipt to mark as sent afterwards."""
        fields: Mapping[str, Any] = {}
        if not self._is_dry and (run := messages.dry_run_of(content)):
            return self._dry_answer(run, content), None

        def accept(kind: str, words: Mapping[str, Any], found: messages.Spec) -> None:
            nonlocal fields
            fields = words
            self._accept(kind, words, found)

        try:
            with refusing(RefusalCode.MESSAGE):
                message = messages.decode(content, self.policy.message_cap, accept)
            return self._answer(message)
        except OSError:
            # A disk error is not caused by the coordinator, and is not reported to it.
            raise
        except Exception as error:  # no message from a coordinator may terminate the member
            run, number = str(fields.get("run", ""))[:80], printable(fields.get("round", 0), 20)
            answer = refusal(run, error)
            why = {"code": answer.fields["code"], "reason": printable(error), "final": answer.fields["final"]}
            try:
                self.log.note("refused", run=run, round=number, **why, **self.balance())
            except HushError:
                # If the disk or the ledger fails here too, report the original error.
                raise error from None
            return self._signed(answer), None

    def _dry_answer(self, run: str, content: messages.Buffer) -> bytes:
        """Return the answer to a message of a dry run: from a member with synthetic rows and a ledger in memory.

        The rows of this member are not read, and their number is used only if the policy makes it public. So nothing
        that is answered can depend on them, and nothing is charged.
        """
        if not self.policy.accept.dry_runs:
            error = RefusalError(RefusalCode.OFFER, "dry runs are not accepted by this member (accept.dry_runs)")
            self.log.note("refused", run=run, reason=str(error))
            return self._signed(refusal(run, error))
        if self._dry is None or self._dry[0] != run:
            self.log.note("dry run", run=run)
            path = self._runs.parent / "dry-runs"
            path.mkdir(exist_ok=True)
            public = self.policy.enrol.samples == "public"
            sizes = [len(each.y) if public else _SYNTHETIC for each in (self.data, self.held_out)]
            rows, held_out = (synthetic_rows(self.schema, size, self.data.classes, at) for at, size in enumerate(sizes))
            if self.policy.budget.unit == "person":
                rows = replace(rows, person=np.arange(len(rows.y)))
            ledger = Ledger.in_memory(self.name, self.policy.for_life, self.policy.budget.accountant)
            made = Node(self.name, unattended(self.policy), rows, ledger, path, self._key, held_out)
            made._is_dry = True
            self._dry = (run, made)
        node = self._dry[1]
        payload, receipt = node.handle(content)
        if receipt is not None:
            node.ledger.sent(receipt)
        return bytes(payload)

    def _accept(self, kind: str, fields: Mapping[str, Any], found: messages.Spec) -> None:
        """Raise a `HushError` if a message announces tensors that its kind, or the recipe of its run, does not have."""
        if kind == "task":
            own, number = self._invited(fields.get("run"), fields.get("round"))
            with refusing(RefusalCode.TASK):
                check_header(own, number, found)
        elif found:
            raise HushError(f"message: {kind[:40]!r} must not contain tensors")

    def _invited(self, run: Any, number: Any) -> tuple[MemberSpec, int]:
        """Return the run of a task and its round, if this member takes part in it."""
        with refusing(RefusalCode.MESSAGE):
            self._state(run)
        own = self.agreed(run)
        known = type(number) is int and 1 <= number <= len(own.participants)
        if not known or own.client not in own.participants[number - 1]:
            raise RefusalError(RefusalCode.TASK, f"task: this member does not take part in round {number!r:.20}")
        return own, number

    def _answer(self, message: Message) -> tuple[bytes, Receipt | None]:
        if message.kind in ("propose", "enrol", "begin"):
            self._version(message.fields)
        if message.kind in ("propose", "enrol", "begin", "task", sum_messages.KEYS):
            self._check_open(message)
        if message.kind == "propose":
            return self._propose(message), None
        if message.kind == "enrol":
            return self._enrol(message)
        if message.kind == "begin":
            return self._begin(message), None
        if message.kind == "task":
            return self._task(message)
        if message.kind in sum_messages.STEPS:
            return self._sum(message), None
        if message.kind == "evicted":
            return self._evicted(message), None
        if message.kind == "ended":
            return self._ended(message), None
        text = f"message: unknown kind {message.kind[:40]!r}; accepted: propose, enrol, begin, task, evicted, ended, "
        text += ", ".join(sum_messages.STEPS)
        raise RefusalError(RefusalCode.MESSAGE, text)

    def _check_open(self, message: Message) -> None:
        """Raise a refusal outside the hours of the policy, or for one run too many within 24 hours."""
        with refusing(RefusalCode.MESSAGE):
            run = str(message.fields.get("run"))
            self._state(run)
        with refusing(RefusalCode.CLOSED):
            opening.check_hours(self.policy.limits.hours)
            opening.check_runs(self._runs, run, self.policy.limits.runs_per_day)

    def _propose(self, message: Message) -> bytes:
        """Answer whether this run is approved here; a run that nobody has decided on waits in the kit."""
        with refusing(RefusalCode.MESSAGE):
            run, _, code, _, number, _, text, names = want(
                message, "run", "config", "code", "schema", "number", "head", "purpose", "members"
            )
            purpose, members = check_words(text, names, self.name)
        offer = self._offer(message.fields)
        found = self._preview(offer, number, code, purpose, members)
        if why := asks_why(self.policy, found.epsilon, found.rounds):
            try:
                proposal = decided(self.consents, why, found, run, lambda other: bool(self.ledger.charged(other)))
            except PendingError as error:
                if error.new:
                    self.log.note(
                        "proposed", run=run, proposal=error.proposal.preview.digest, purpose=printable(purpose)
                    )
                    self.say(
                        f"{self.name}: a run waits for approval: hush federation preview KIT, then approve or decline "
                        f"{error.proposal.name}"
                    )
                raise
            self.log.note("approved", run=run, proposal=proposal.preview.digest)
        else:
            self.log.note("approved", run=run, proposal="by the rules of the policy", purpose=printable(purpose))
        return self._signed(Message("approved", {"run": run, "head": self.ledger.head}))

    def _preview(self, offer: Offer, number: int, code: str, purpose: str, members: tuple[str, ...]) -> Preview:
        """Return what a run asks of this member, planned by its own policy. No row is read."""
        config = offer.config
        disclosures = self._disclosures(offer, number)
        fact = disclosures.expected(run_spec.supposed_rows(config, number))
        with refusing(RefusalCode.LIMITS):
            check_steps(self.policy, config, offer.recipe, [fact.samples] * config.data.clients)
        with refusing(RefusalCode.CONFIG):
            spec = run_spec.expected_spec(config, fact, number, self.policy.one_run, offer.schema)
        with refusing(RefusalCode.LIMITS):
            check_plans(self.policy, spec.schedule)
        several = any(stage.choose for stage in spec.stage_table.specs)
        return preview(
            spec, self.policy, purpose=purpose, members=members, config=config, code=code, recipe=offer.name,
            models=offer.recipe.assign.models if several else 1,
        )  # fmt: skip

    def _check_consent(self, run: str, offer: Offer, code: str) -> Preview | None:
        """Return the approved preview of a run, or None if the rules of the policy decide; else raise a refusal."""
        proposal = self.consents.of_run(run)
        if proposal is None:
            if not self.policy.consent.auto_approve:
                raise RefusalError(RefusalCode.PENDING, "this run was not approved at this member")
            return None
        if proposal.decision != "approved":
            raise RefusalError(RefusalCode.DECLINED, f"proposal {proposal.name} was declined")
        config, schema = after_json(offer.config.model_dump()), after_json(offer.schema.record())
        with refusing(RefusalCode.PENDING):
            found = differences(proposal.preview, config, code, schema, any_code=ANY in self.policy.accept.code)
        if found:
            text = f"the run differs from what was approved as {proposal.name}: {', '.join(found)}"
            raise RefusalError(RefusalCode.PENDING, text)
        return proposal.preview

    def _check_standing(self, run: str) -> None:
        """Raise a refusal if the approval of a run that began was withdrawn, or is used by another run."""
        proposal = self.consents.of_run(run)
        if proposal is None:
            raise RefusalError(RefusalCode.PENDING, "another run uses the approval of this one")
        if proposal.decision != "approved":
            raise RefusalError(RefusalCode.DECLINED, f"proposal {proposal.name} was declined after the run began")

    def _check_spending(self, approved: Preview | None, own: MemberSpec, names: Sequence[str]) -> None:
        """Raise a refusal if a run would cost more than was approved, or has members that were not in the preview."""
        wanted = totals.add_costs({}, own.costs())
        epsilon = totals.epsilon(wanted, self.policy.one_run, self.policy.budget.accountant)
        if approved is None:
            if why := asks_why(self.policy, epsilon, own.schedule.rounds):
                raise RefusalError(RefusalCode.PENDING, why)
            return
        if epsilon > approved.limit or own.schedule.rounds > approved.rounds:
            text = f"{own.schedule.rounds} rounds of epsilon {epsilon:.4g} in total exceed what was approved"
            raise RefusalError(RefusalCode.PENDING, text)
        if unknown := sorted(set(names) - set(approved.members)):
            text = f"members that were not in what was approved: {printable(', '.join(unknown))}"
            raise RefusalError(RefusalCode.PENDING, text)

    def _version(self, fields: Mapping[str, Any]) -> protocol.Version:
        """Return the version that a coordinator states, or raise a refusal if this member's cannot take part with it.

        Checked before anything else is read: with another protocol version, all of it may mean something else.
        """
        with refusing(RefusalCode.MESSAGE):
            theirs = protocol.read_version(fields["code"])
        with refusing(RefusalCode.PROTOCOL):
            check_protocol(theirs)
        return theirs

    def _offer(self, fields: Mapping[str, Any]) -> Offer:
        """Return what a coordinator offers, if the policy and the declared schema accept it. No row is read."""
        theirs = self._version(fields)
        with refusing(RefusalCode.CONFIG):
            config = with_noise(parse(fields["config"]), lasting=True)
        with refusing(RefusalCode.LIMITS):
            check_size(self.policy, config)
        with refusing(RefusalCode.OFFER):
            check_imports(self.policy, config)
        with refusing(RefusalCode.CONFIG):
            name, recipe = recipes.configured(config)
        with refusing(RefusalCode.OFFER):
            check_offer(self.policy, config, name, recipe)
        with refusing(RefusalCode.SOFTWARE):
            check_code(self.policy, theirs)
        with refusing(RefusalCode.SCHEMA):
            schema = from_record(fields["schema"])
            check_fits(self.schema, schema)
        with refusing(RefusalCode.CONFIG):
            run_spec.check_objective(config, schema.classes or 0)
        with refusing(RefusalCode.LIMITS):
            check_model(self.policy, schema.classes or 0)
            check_model(self.policy, models.parameters(config.model, schema.input_shape, schema.classes or 0))
        with refusing(RefusalCode.LEDGER):
            self.ledger.check_head(fields["head"])
        with refusing(RefusalCode.CONFIG):
            model = models.build_model(config.model, schema.input_shape, schema.classes or 0, config.seed)
            recipe, _ = fitted(recipe, model, schema.input_shape)
        with refusing(RefusalCode.LIMITS):
            check_model(self.policy, model.layout.size)
        return Offer(config, name, recipe, schema, model)

    def _enrol(self, message: Message) -> tuple[bytes, Receipt | None]:
        """Answer whether this member takes part, and with which declaration; repeated requests get the same answer."""
        with refusing(RefusalCode.MESSAGE):
            run, _, code, _, number, _ = want(message, "run", "config", "code", "schema", "number", "head")
        offer = self._offer(message.fields)
        approved = self._check_consent(run, offer, code)
        disclosures = self._disclosures(offer, number)
        costs = disclosures.costs()
        if costs and approved is None and self.policy.consent.has_rules:
            found = self._preview(offer, number, code, "", ())
            if why := asks_why(self.policy, found.epsilon, found.rounds):
                raise RefusalError(RefusalCode.PENDING, why)
        if not costs:
            return self._facts(run, offer.name, disclosures, self.ledger.head), None
        attempt = self._attempt(run, ENROLMENT)
        if attempt == 0:
            kept = self.ledger.sealed(run, ENROLMENT)
            if kept is None:
                text = "enrolment: the noisy answer for this run was already sent and is no longer stored"
                raise RefusalError(RefusalCode.ENROLMENT, text)
            self.log.note("resent", run=run, round=ENROLMENT)
            return kept[1], kept[0]
        self._affordable(run, costs)

        def make(receipt: Receipt) -> bytes:
            return self._facts(run, offer.name, disclosures, receipt.head)

        return self._released(run, ENROLMENT, costs, attempt, make)

    def _facts(self, run: str, recipe: str, disclosures: Disclosures, head: str) -> bytes:
        fact, tensors = disclosures.drawn()
        if disclosures.costs():
            # The run must later list exactly these values: they are all that others may learn about the true ones.
            write_atomically(self._disclosed_file(run), json.dumps(asdict(fact), sort_keys=True).encode())
        self.log.note("enrolled", run=run, recipe=recipe, declared=asdict(fact), **self.balance())
        return self._signed(Message("facts", {"run": run, **asdict(fact), "head": head}, tensors))

    def _disclosures(self, offer: Offer, number: int) -> Disclosures:
        """Return this member's disclosures for a run, with the noise from its own schedule."""
        config, recipe = offer.config, offer.recipe
        with refusing(RefusalCode.MESSAGE):
            if type(number) is not int or not 0 <= number < config.data.clients:
                raise HushError(f"enrolment: number {number!r:.20} of {config.data.clients} members")
        fact = self._public_fact(offer)
        noisy = centre = 0.0
        if recipe.stage_table(config.rounds).of[ENROLMENT] >= 0:
            with refusing(RefusalCode.LIMITS):
                check_steps(self.policy, config, recipe, [fact.samples] * config.data.clients)
            with refusing(RefusalCode.CONFIG):
                schedule, stage = run_spec.enrolment(config, recipe, fact, number, self.policy.one_run)
            # Enrolment is charged before the run begins, so not for a run that would be refused then.
            with refusing(RefusalCode.LIMITS):
                check_plans(self.policy, schedule)
            noisy, centre = (stage.noise_of(what) if stage is not None else 0.0 for what in (COUNT, CENTRE))
            if centre:
                with refusing(RefusalCode.CONFIG):
                    run_spec.width_of(offer.model)
        replayed = config.privacy.noise == "seeded"
        first, second = (
            noise.Seeded(config.seed, number, ENROLMENT) if replayed and asked else noise.Secure()
            for asked in (noisy > 0, True)
        )
        # The simulation draws a count before the mean.
        second.normal(1, torch.float64)
        wanted = numbers(self.policy, self.units, recipe, noisy)
        return Disclosures(
            fact=fact,
            numbers=wanted,
            centre=centre,
            rows=lambda: (self._inputs(offer)[0], self._persons(config)),
            source=first,
            mean_source=second,
        )

    def _public_fact(self, offer: Offer) -> RosterEntry:
        """The public part of this member's declaration; a noisy number of rows is 1 here."""
        with refusing(RefusalCode.ENROLMENT):
            cluster = group(self.policy, offer.recipe)
        noised = count_is_noised(self.policy, offer.recipe, offer.config.rounds)
        rows = 1 if noised else self.units
        marks: dict[str, tuple[float, float]] = {COUNT: (0.0, 0.0)} if noised else {}
        one = self.policy.one_run
        return RosterEntry(
            name=self.name, epsilon=one.epsilon, delta=one.delta, relation=one.relation, unit=one.unit, samples=rows,
            group=cluster, noised=marks,
        )  # fmt: skip

    def _disclosed_fact(self, run: str, offer: Offer) -> RosterEntry:
        """Return what this member disclosed for a run, or would disclose if nothing is noisy; else raise a refusal."""
        path = self._disclosed_file(run)
        if path.exists():
            return RosterEntry(**json.loads(path.read_bytes()))
        fact = self._public_fact(offer)
        wanted = numbers(self.policy, fact.samples, offer.recipe, 0.0)
        enrolment = offer.recipe.stage_table(offer.config.rounds).of[ENROLMENT] >= 0
        if enrolment or any(number.noise for number in wanted.values()):
            raise RefusalError(RefusalCode.ENROLMENT, "begin: this member has not enrolled in this run")
        declared = {name: number.noised(lambda: 0.0) for name, number in wanted.items()}
        return replace(fact, epsilon=declared["epsilon"], factor=declared.get("factor"))

    def _inputs(self, offer: Offer) -> tuple[Tensor, Tensor]:
        """The rows as inputs of a run's model, and their labels; cached for one run at a time."""
        config = offer.config
        kind = (config.model.model_dump_json(), config.data.rows, config.seed, offer.schema)
        if self._cached_inputs is None or self._cached_inputs[0] != kind:
            self._cached_inputs = (kind, *self._as_inputs(offer, self.data))
        return self._cached_inputs[1], self._cached_inputs[2]

    def _as_inputs(self, offer: Offer, data: Dataset) -> tuple[Tensor, Tensor]:
        x, y = mapped(data.x, data.y, self.schema, offer.schema)
        given, features = torch.from_numpy(shaped(replace(data, x=x), offer.config).x), offer.model.features
        return given if features is None else features(given), torch.from_numpy(y)

    def _begin(self, message: Message) -> bytes:
        """Agree to a run as a whole. Its config is fixed from now on."""
        with refusing(RefusalCode.MESSAGE):
            more = [name for name in ("peers",) if name in message.fields]
            run, client, roster, *_ = want(
                message, "run", "client", "roster", "config", "code", "schema", "centre", "head", *more
            )
            path = self._state(run)
        own = self._computed(message.fields)
        agreed = json.dumps(dict(message.fields, head=""), sort_keys=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before and _content(json.loads(before)) != _content(json.loads(agreed)):
            text = "begin: this run was started with a different config, roster or code"
            raise RefusalError(RefusalCode.AGREEMENT, text)
        first = next(stage for stage in own.schedule.stages if stage.spec.train)
        if self.ledger.charged(run) == () and not self.ledger.affords(first.round_costs, run):
            raise BudgetSpentError(f"client {self.name}: the remaining budget does not cover a single round")
        if before != agreed:
            # The first time, and after an upgrade of the coordinator between two rounds.
            write_atomically(path, agreed.encode())
        self._own[run] = (agreed, own)
        self._approve(run, own)
        spare = own.config.privacy.retries
        self.log.note("began", run=run, client=client, members=len(roster), retries=spare, **self.balance())
        if not before:
            self.say(f"{self.name}: {own.schedule.rounds} rounds are planned; {_RETRIES.format(spare)}")
        return self._signed(Message("ready", {"run": run, "head": self.ledger.head}))

    def _computed(self, fields: Mapping[str, Any]) -> MemberSpec:
        """Return a run as this member would take part in it, or raise a refusal. No row is read."""
        offer = self._offer(fields)
        approved = self._check_consent(fields["run"], offer, fields["code"])
        config, recipe = offer.config, offer.recipe
        with refusing(RefusalCode.CONFIG):
            if config.local.lr == "auto":
                raise HushError("begin: local.lr is not resolved; accepted: a number")
        with refusing(RefusalCode.ENROLMENT):
            client, facts = fields["client"], [RosterEntry(**fact) for fact in fields["roster"]]
            if type(client) is not int or not 0 <= client < len(facts) or facts[client].name != self.name:
                raise HushError(f"begin: the roster does not list {self.name} as number {client!r:.20}")
            if len(facts) != config.data.clients:
                raise HushError(f"begin: a roster of {len(facts)} for {config.data.clients} members")
            if facts[client] != self._disclosed_fact(fields["run"], offer):
                raise HushError(
                    "begin: the roster's data about this member differs from what it declared, or from its current data"
                )
            if set(facts[client].costs()) != {
                cost for cost in self.ledger.charged(fields["run"]) if cost.what in DECLARED
            }:
                raise HushError("begin: the roster's noise for this member differs from what was charged")
        with refusing(RefusalCode.LIMITS):
            check_steps(self.policy, config, recipe, [fact.samples for fact in facts])
        with refusing(RefusalCode.CONFIG):
            own = run_spec.member_spec(config, facts, client, self.policy.one_run, offer.schema)
        with refusing(RefusalCode.LIMITS):
            check_plans(self.policy, own.schedule)
        with refusing(RefusalCode.CONFIG):
            if run_spec.releases_input_mean(recipe, config.rounds) != bool(fields["centre"]):
                raise HushError(
                    "begin: an input mean that the recipe does not use, or none although the recipe needs one"
                )
        self._check_spending(approved, own, [fact.name for fact in facts])
        if approved is not None:
            self._by_person.add(fields["run"])
        if config.secure_aggregation:
            own = self._with_sums(own, facts, fields.get("peers"))
        return replace(own, centre=str(fields["centre"]))

    def _with_sums(self, own: MemberSpec, facts: Sequence[RosterEntry], peers: Any) -> MemberSpec:
        """Return a run with the sums that it forms, by the plans of all members, and with the others' keys."""
        policy = self.policy.secure_aggregation
        with refusing(RefusalCode.CONFIG):
            terms = run_spec.sum_terms(own.config, facts, own.model, own.recipe, own.schema)
        with refusing(RefusalCode.SUM):
            names = [fact.name for fact in facts]
            keys_of_all = checked_peers(peers, names, own.client, self._key.public_key(), policy.peers)
        with refusing(RefusalCode.LIMITS):
            least = min(plan.threshold for plan in plans_of_sums(terms, 1))
            if least < policy.min_sum:
                raise HushError(
                    f"secure aggregation: sums of {least} members would do; accepted: {policy.min_sum} or more "
                    "(secure_aggregation.min_sum)"
                )
        return replace(own, sums=terms, peers=keys_of_all)

    def _sum(self, message: Message) -> bytes:
        """Answer a step of secure aggregation. Nothing in it depends on rows, and nothing is charged."""
        own, _ = self._invited(message.fields.get("run"), message.fields.get("round"))
        if message.fields["run"] in self._by_person:
            self._check_standing(message.fields["run"])
        with refusing(RefusalCode.SUM):
            return self._signed(self._sums.answer(message, own))

    def agreed(self, run: str) -> MemberSpec:
        """Return the agreed run, from memory or from the file that survives this process."""
        if run not in self._own:
            path = self._state(run)
            if not path.exists():
                raise RefusalError(RefusalCode.AGREEMENT, "task: this member has not agreed to this run")
            agreed = path.read_text(encoding="utf-8")
            own = self._computed(json.loads(agreed))
            self._own[run] = (agreed, own)
            self._approve(run, own)
        return self._own[run][1]

    def _task(self, message: Message) -> tuple[bytes, Receipt | None]:
        """Charge, train and seal; or return the same bytes for a repeated task."""
        with refusing(RefusalCode.MESSAGE):
            run, number, head, *sums = want(
                message, "run", "round", "head", *(each for each in ("attempt", "shares") if each in message.fields)
            )
        own, number = self._invited(run, number)
        with refusing(RefusalCode.LEDGER):
            self.ledger.check_head(head)
        with refusing(RefusalCode.TASK):
            task = checked(own, message, number, self.policy.bounds)
            asked = messages.digest(Message("task", {"run": run, "round": number}, message.tensors))
        if run in self._by_person:
            self._check_standing(run)
        with refusing(RefusalCode.SUM):
            if (own.sums is not None) != (len(sums) == 2):
                raise HushError("task: with shares although the run has no secure sums, or without although it has")
            masked = self._sums.masking(run, number, *sums) if sums else None
        stage = own.schedule.stages[own.stage_table.of[number]]
        # A coordinator saves a round before it asks for the next one: it will not ask for earlier answers again.
        self.ledger.acknowledge(run, number)
        attempt = self._attempt(run, number)
        if attempt == 0:
            with refusing(RefusalCode.TASK):
                return self._outgoing(*self._repeated_answer(run, number, asked), masked)
        self._affordable(run, stage.round_costs, own)

        def make(receipt: Receipt) -> bytes:
            began = time.perf_counter()
            payload = self._trained(own, task, stage, receipt, asked)
            self.seconds = time.perf_counter() - began
            return payload

        return self._outgoing(*self._released(run, number, stage.round_costs, attempt, make), masked)

    def _outgoing(
        self, payload: bytes, receipt: Receipt | None, masked: Callable[[Message], Message] | None
    ) -> tuple[bytes, Receipt | None]:
        """Return what is sent of a sealed answer: the same bytes, or with secure aggregation a masked copy."""
        if masked is None:
            return payload, receipt
        return self._signed(masked(messages.decode(keys.opened(self.public, payload), len(payload)))), receipt

    def _attempt(self, run: str, number: int) -> int:
        """Return the attempt at a round that may be charged now, or 0 if an answer is sealed for it."""
        # Messages are handled one at a time: a charge that is not sealed now was left by a process that died.
        self.ledger.forfeit_unsealed(run, number)
        return self.ledger.next_attempt(run, number)

    def _evicted(self, message: Message) -> bytes:
        """The coordinator has evicted this member because its answers were too slow or not usable."""
        with refusing(RefusalCode.MESSAGE):
            run, _ = want(message, "run", "head")
        self.agreed(run)
        self.log.note("evicted", run=run, reason=_EVICTED, **self.balance())
        self.say(f"{self.name}: {_EVICTED}")
        return self._signed(Message("ready", {"run": run, "head": self.ledger.head}))

    def _ended(self, message: Message) -> bytes:
        """The coordinator has ended the run: nothing of it is asked for again."""
        with refusing(RefusalCode.MESSAGE):
            run, _, rounds = want(message, "run", "head", "rounds")
            if type(rounds) is not int or not 0 <= rounds < 1 << 31:
                raise HushError(f"ended: {rounds!r:.20} rounds")
        self.agreed(run)
        self.ledger.acknowledge(run)
        balance = self.balance()
        self.log.note("ended", run=run, rounds=rounds, **balance)
        self.say(f"{self.name}: run {run[:8]} has ended after {rounds} rounds; {_spending(balance)}")
        return self._signed(Message("ready", {"run": run, "head": self.ledger.head}))

    def sent(self, receipt: Receipt, taken: bool, size: int) -> None:
        """Log and say that an answer was sent, and what was spent so far; `taken`: the coordinator waited for it."""
        balance = self.balance()
        event = "sent" if taken else "late"
        self.log.note(
            event, run=receipt.run, round=receipt.round, seconds=round(self.seconds, 4), bytes=size, **balance
        )
        if receipt.round == ENROLMENT:
            what = "enrolment"
        else:
            what = f"round {receipt.round} of {len(self.agreed(receipt.run).participants)}, {self.seconds:.1f} s"
        late = "" if taken else "too late: the round was closed; "
        self.say(f"{self.name}: run {receipt.run[:8]}, {what}: {late}{_spending(balance)}")

    def _released(
        self, run: str, number: int, costs: tuple[Cost, ...], attempt: int, make: Callable[[Receipt], bytes]
    ) -> tuple[bytes, Receipt]:
        """Charge, then compute what is released, and seal it."""
        receipt = self.ledger.reserve(costs, run, number, attempt)
        self.log.note("charged", run=run, round=number, attempt=attempt, costs=[asdict(cost) for cost in costs])
        try:
            payload = make(receipt)
            self.ledger.seal(receipt, payload)
            return payload, receipt
        except BaseException:
            # Nothing was released, but the charge remains.
            self.ledger.forfeit(receipt)
            raise

    def _trained(self, own: MemberSpec, task: Task, stage: Stage, receipt: Receipt, asked: str) -> bytes:
        config = own.config
        shared = own.recipe.protect.shared_draws
        source = client_round.source(config, own.client, task.round, shared=shared)
        offer = Offer(config, "", own.recipe, own.schema, own.model)
        x, y = self._inputs(offer)
        evaluates = any(release.held_out for release in stage.spec.sent)
        held_x, held_y = self._as_inputs(offer, self.held_out) if evaluates else (None, None)
        shape = ReleaseShape(
            inputs=tuple(x.shape[1:]), classes=own.schema.classes or 0, parameters=own.model.layout.size,
            loss_clip=config.privacy.loss_clip,
        )  # fmt: skip
        client = client_round.Client(
            recipe=own.recipe,
            config=config,
            model=own.model,
            x=x,
            y=y,
            first_row=0,
            source=source,
            shape=shape,
            pull=own.recipe.local.pull(),
            output=own.output,
            persons=self._persons(config),
            held_x=held_x,
            held_y=held_y,
        )
        done = client_round.work(task, receipt, on_rows(stage, self.units) if own.noised else stage, client)
        (vector,) = train(own.model, x, y, [done.job], self._examples(own), config.engine.precision)
        update = client_round.sealed(done, vector)
        fields = {
            "run": receipt.run, "round": task.round, "client": self.name, "serial": receipt.serial,
            "head": receipt.head, "asked": asked, "choice": update.side.choice,
        }  # fmt: skip
        side = {f"{RELEASES}{what}": answer for what, answer in update.side.releases.items()}
        vector = update.vector
        if client_round.halves(config):
            vector, fields["exponent"] = half_precision.halved(vector)
        return self._signed(Message("update", fields, {"vector": vector, **side}))

    def _examples(self, own: MemberSpec) -> int:
        """The number of examples that training processes at a time. A config can lower it but not raise it."""
        usual = memory.physical_batch(own.model, torch.device("cpu"), 1)
        wanted = own.config.engine.physical_batch
        return min(usual if wanted == "auto" else wanted, usual, self.policy.examples(own.model.layout.size))

    def _repeated_answer(self, run: str, number: int, asked: str) -> tuple[bytes, Receipt | None]:
        kept = self.ledger.sealed(run, number)
        if kept is None:
            raise HushError(f"task: round {number} was already answered, and the answer is no longer stored")
        receipt, payload = kept
        before = messages.decode(keys.opened(self._key.public_key(), payload), len(payload)).fields["asked"]
        if before != asked:
            raise HushError(
                f"task: round {number} was already answered for a different model; it is not answered again"
            )
        self.log.note("resent", run=run, round=number)
        return payload, receipt

    def _affordable(self, run: str, costs: tuple[Cost, ...], own: MemberSpec | None = None) -> None:
        """Raise `BudgetSpentError` if this run would spend more than the policy allows for one run."""
        policy = self.policy.one_run
        wanted = totals.add_costs({}, (*self.ledger.charged(run), *costs))
        if own is not None and run in self._fitting and totals.within(wanted, totals.add_costs({}, own.costs())):
            return
        spent = totals.epsilon(wanted, policy, self.policy.budget.accountant)
        if not totals.fits(spent, policy):
            raise BudgetSpentError(
                f"client {self.name}: epsilon {spent:.4g} in this run would exceed the {policy.epsilon:.4g} of one run"
            )

    def _approve(self, run: str, own: MemberSpec) -> None:
        """Check once that the whole run fits the budget, so that single rounds need not be checked again."""
        policy, whole = self.policy.one_run, totals.add_costs({}, own.costs())
        if totals.fits(totals.epsilon(whole, policy, self.policy.budget.accountant), policy):
            self._fitting.add(run)
        reserved = (*own.disclosed, *training(own.schedule, spare=True))
        approve([self.ledger], [(reserved, own.costs())], run)

    @property
    def public(self) -> keys.PublicKey:
        """The public key that verifies its answers."""
        return self._key.public_key()

    def balance(self) -> dict[str, float]:
        """Epsilon spent and left, for the audit log."""
        return {"spent": round(self.ledger.filtered(), 6), "left": round(self.ledger.left(), 6)}

    def _disclosed_file(self, run: str) -> Path:
        """The file that stores what was disclosed for a run."""
        return self._state(run).with_suffix(".disclosed.json")

    def _state(self, run: str) -> Path:
        if not isinstance(run, str) or not run.isascii() or not run.isalnum() or len(run) > 64:
            raise HushError(f"run {run!r:.40}: accepted: letters and digits")
        return self._runs / f"{run}.json"

    def _signed(self, message: Message) -> bytes:
        return keys.signed(self._key, *messages.pieces(message))
