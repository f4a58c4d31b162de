"""The coordinator of a run: it enrols the members, drives the round loop, and accepts only what it asked for."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush import models, recipes
from hush.config import Config
from hush.data.datasets import Dataset
from hush.deploy.admin import keys
from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.coordinator.agreement import AGREEMENT, Agreement, new_agreement, read_agreement
from hush.deploy.coordinator.deliveries import deliver
from hush.deploy.coordinator.enrolment import check_asked, check_rows, facts_of, fitting
from hush.deploy.coordinator.exchange import Exchange, Transport, Verdict
from hush.deploy.coordinator.replies import SentTasks, expected, opened, update_of
from hush.deploy.coordinator.secure_round import SecureRound, SumServices
from hush.deploy.member.datasets import schema_of
from hush.deploy.shared import input_means, protocol
from hush.deploy.shared.refusal import FAULT, REFUSAL, RefusalCode, reason_of
from hush.deploy.shared.roster import MEAN, RosterEntry
from hush.deploy.shared.run_spec import (
    as_offered,
    assemble,
    check_objective,
    complete,
    plausible,
    releases_input_mean,
    settled,
    width_of,
    with_fingerprint,
)
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Buffer, EncodedMessage, Message
from hush.engines.client_round import halves
from hush.engines.driver import drive, evaluate, measure, run_rounds
from hush.engines.enrolment import EnrolmentAnswer, combined
from hush.engines.results import manifest
from hush.engines.run_ledgers import approve
from hush.engines.schedules import training
from hush.engines.setup import Federation, fitted, shaped
from hush.privacy.ledger import BudgetSpentError, MemoryLedger
from hush.privacy.round_costs import RoundCosts
from hush.privacy.schedule import ENROLMENT
from hush.recipes.context import State
from hush.recipes.secure_sums import check_recipe
from hush.server.loop import Answer, Answers, ServerState, SummedAnswers, ended_early, plans_of_sums, usable_updates
from hush.server.run_directory import MANIFEST, ROUNDS, RunDir, read_json
from hush.text import printable
from hush.types import Decline, HushError, RoundRecord, RunResult, Task

_WORDS_CAP = 1 << 20
_AGAIN = 3  # so that a member that is online but never answers is not asked again forever

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 15.0  # seconds between two questions to a member that has not decided

PrintLine = Callable[[str], None]
Progress = Callable[[RoundRecord, Mapping[str, str]], None]


class Coordinator:
    """One run of a federation."""

    def __init__(self, place: FederationFolder, hub: Transport, test: Dataset) -> None:
        self.place, self.hub, self.test = place, hub, test
        self.log = AuditLog(place.server / "audit.jsonl")
        self._keys = place.members()
        self._public = {name: keys.load_public(pem, name) for name, pem in self._keys.items()}
        self._exchange = Exchange(hub, self._keys, place.settings)
        self._heads = place.heads()
        self._under_way = False
        self._begun: set[str] = set()
        self._left_out: set[str] = set()
        self._name, self._seconds = "", dict[str, float]()
        self._spent: set[int] = set()
        self._again: Counter[str] = Counter()
        self._purpose, self._dry, self._out = "", False, place.runs
        self._say: PrintLine = lambda words: None

    def run(
        self, config: Config, out: Path, *, resume: bool = False, command: str = "", progress: Progress | None = None,
        purpose: str = "", say: PrintLine = lambda words: None, dry_run: bool = False,
    ) -> RunResult:  # fmt: skip
        """Run a config to the end, saving every round in `out`.

        Args:
            config: The config.
            out: The run directory.
            resume: Whether to resume the run in it.
            command: What started the run, for its manifest.
            progress: Called after each round.
            purpose: What the run is for, as the members' operators see it before they approve it.
            say: Called with what happens before the first round.
            dry_run: Whether members take part with synthetic rows and charge nothing. Nothing is delivered.
        """
        if dry_run:
            # What members release then is in ledgers that are discarded.
            self._dry, self._heads = True, {}
        self._purpose, self._say, self._out = purpose, say, out
        self.hub.open()
        status = "failed"
        try:
            result = self._run(config, out, resume, command, progress)
            status = "completed"
            return result
        except HushError as error:
            with contextlib.suppress(HushError):
                self.log.note("failed", run=self._name, reason=str(error))
            if not self._under_way:
                raise
            raise HushError(f"{error}; the run is saved in {out}: resume with the same command and --resume") from None
        finally:
            self.hub.close(status)

    def _run(self, config: Config, out: Path, resume: bool, command: str, progress: Progress | None) -> RunResult:
        began, config = time.perf_counter(), complete(config, self.test.schema)
        config = with_fingerprint(config, tuple(self.test.x.shape[1:]))
        resumes = resume and (out / AGREEMENT).exists()
        if not resume and out.exists() and any(out.iterdir()):
            # Checked before any member is asked, because enrolment may consume budget.
            raise HushError(f"{out}: not empty; choose another directory, or use --resume to resume the run in it")
        agreement = read_agreement(out, config) if resumes else self._enrolment(config)
        federation = assemble(agreement.config, agreement.facts, self.test, agreement.auto_rate)
        directory = self._directory(federation, agreement, out, resume, resumes, command)
        self._under_way, self._name = True, agreement.run
        members = _Members(self, federation, agreement, progress)
        done = run_rounds(drive(members, directory, resume=resumes, began=began), members.answer)
        result = done.result
        for path in () if self._dry else deliver(self.place, done, agreement, out.name):
            self.log.note("delivery", run=agreement.run, member=path.stem, path=str(path))
        self.log.note("ended", run=agreement.run, rounds=result.rounds, why=result.ended)
        fields = {"run": agreement.run, "rounds": result.rounds}
        self._exchange.close({name: self._words("ended", fields, name) for name in self._begun}, _WORDS_CAP)
        return result

    def _enrolment(self, config: Config) -> Agreement:
        """Ask every member that is online in time whether it takes part, and for its declaration."""
        check_objective(config, self.test.classes)
        if config.secure_aggregation:
            check_recipe(recipes.configured(config)[1])
        run = self._name = f"{messages.DRY if self._dry else ''}{uuid.uuid4().hex}"
        numbers = {name: number for number, name in enumerate(self._public)}
        offer = new_agreement(
            run,
            [RosterEntry(name=name, epsilon=0.0, delta=0.0, relation="add-remove", samples=0) for name in self._public],
            config,
        ).config
        fields = {"run": run, "config": as_offered(offer), "code": str(protocol.own()), "schema": self._schema()}
        out = self._approved(fields, numbers)
        outgoing = {
            name: self._words("enrol", {**fields, "number": number}, name)
            for name, number in numbers.items()
            if out.get(name) == ""
        }
        out = {name: reason for name, reason in out.items() if reason}
        inputs = tuple(self.test.x.shape[1:])
        model = models.build_model(config.model, inputs, self.test.classes, config.seed)
        recipe, _ = fitted(recipes.configured(config)[1], model, inputs)
        centre = releases_input_mean(recipe, config.rounds)
        width = width_of(model) if centre else 0
        expected: messages.Spec = {MEAN: ("F64", (width,))} if centre else {}
        replies = self._exchange.ask(outgoing, _WORDS_CAP + 8 * width, len(outgoing), gather=True) if outgoing else {}
        declared, heard = dict[str, RosterEntry](), dict[str, EnrolmentAnswer]()
        for name, number in numbers.items():
            if name not in replies:
                out |= {name: self._exchange.absent[name]} if name in outgoing else {}
                continue
            message = self._opened(name, replies[name], "facts", expected)
            try:
                if message.kind != "facts":
                    raise HushError(reason_of(message))
                fact, self._heads[name] = facts_of(message, name, run)
                check_asked(recipe, fact)
                check_rows(fact, self.place.settings.max_rows)
                plausible(offer, recipe, fact, number)
                if centre:
                    heard[name] = input_means.checked_mean(offer, recipe, fact, number, message)
                declared[name] = fact
            except Exception as error:  # an invalid declaration excludes its sender only
                out[name] = printable(error)
        facts, short = fitting(config, list(declared.values()))
        self._keep_heads()
        for fact in facts:
            self.log.note("enrolled", run=run, member=fact.name, declared=asdict(fact))
        out |= short
        for name, reason in out.items():
            self._leave_out(run, name, reason)
        wanted = max(config.quorum, 1)
        if len(facts) < wanted:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in out.items())[:600] or "no other member answered"
            raise HushError(
                f"enrolment: {len(facts)} of {len(self._public)} members take part, quorum {wanted}; {reasons}"
            )
        means = [heard[fact.name] for fact in facts] if centre else []
        enrolment = combined(means, recipe, one_model=config.secure_aggregation)
        made = new_agreement(run, facts, config, enrolment, config.local.lr == "auto" and recipe.protect.private)
        return replace(made, config=settled(made.config, facts, self.test))

    def _approved(self, fields: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, str]:
        """Propose a run to every member, and wait until all that are online have decided, or for `approval` seconds.

        Returns why each member does not take part, or an empty text if it approves the run. Nothing is charged,
        whatever the answers are.
        """
        run, found, waiting = fields["run"], dict[str, str](), set(numbers)
        asked_terms = {**fields, "purpose": self._purpose, "members": list(numbers)}
        ends, pause, gather = time.monotonic() + self.place.settings.approval, _FIRST_PAUSE, True
        if offline := sorted(waiting - self._exchange.here()):
            self._say(f"offline: {', '.join(offline)}; waiting up to {self.place.settings.gather:g} s for them")
        while waiting:
            outgoing = {
                name: self._words("propose", {**asked_terms, "number": numbers[name]}, name)
                for name in numbers
                if name in waiting
            }
            replies = self._exchange.ask(outgoing, _WORDS_CAP, len(outgoing) if gather else 1, gather=gather)
            for name, why in self._exchange.absent.items() if gather else ():
                found[name] = why
                self._leave_out(run, name, why)
            waiting, gather = set(), False
            for name, reply in replies.items():
                message = self._opened(name, reply, "approved", {})
                found[name] = reason_of(message) if message.kind == REFUSAL else ""
                if message.kind == REFUSAL and message.fields.get("code") == RefusalCode.PENDING:
                    waiting.add(name)
                elif found[name]:
                    self._leave_out(run, name, found[name])
            if not waiting or time.monotonic() > ends:
                break
            if pause == _FIRST_PAUSE:
                self.log.note("proposed", run=run, waiting=sorted(waiting))
                self._say(
                    f"waiting for approval by {', '.join(sorted(waiting))} (hush federation approve at the member)"
                )
            time.sleep(min(pause, max(0.0, ends - time.monotonic())))
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        for name, reason in found.items():
            self.log.note("proposal", run=run, member=name, answer=reason or "approved")
        return found

    def _leave_out(self, run: str, name: str, reason: str) -> None:
        """Log and say, once, why a member does not take part."""
        if name not in self._left_out:
            self._left_out.add(name)
            self.log.note("not enrolled", run=run, member=name, reason=reason)
            self._say(f"{name} does not take part: {reason}")

    def _schema(self) -> dict[str, Any]:
        return schema_of(self.test).record()

    def _keep_heads(self) -> None:
        if not self._dry:
            self.place.keep_heads(self._heads)

    def begin_all(self, agreement: Agreement, *, resumed: bool) -> dict[int, str]:
        """Ask all members to agree to the whole run. Returns who did not and why; a `HushError` if too few did."""
        left = self._begin(agreement, agreement.names, agreement.config.quorum)
        # A member whose budget is spent leaves the run. One that refuses for another reason may agree later.
        self._check_begun(agreement, {c: why for c, why in left.items() if not resumed or c not in self._spent})
        return left

    def log_round(self, agreement: Agreement, record: RoundRecord) -> None:
        """Log how a round ended, and record the latest heads of the members' ledgers."""
        self._keep_heads()
        words = {agreement.names[client]: reason for client, reason in record.refused.items()}
        senders = [agreement.names[client] for client in record.charged]
        seconds = {name: round(took, 3) for name, took in self._seconds.items()}
        self.log.note("closed", run=agreement.run, round=record.round, answered=senders, refused=words, seconds=seconds)
        for client, warning in record.warnings.items():
            self.log.note(
                "warning", run=agreement.run, round=record.round, member=agreement.names[client], reason=warning
            )

    def _begin(self, agreement: Agreement, names: Sequence[str], quorum: int) -> dict[int, str]:
        """Ask these members to agree to the whole run. Returns who did not, and why."""
        roster = [asdict(fact) for fact in agreement.facts]
        peers = {}
        if agreement.config.secure_aggregation:
            # Members verify each other's keys of a round with these.
            peers = {"peers": {name: self._keys[name].decode("ascii") for name in agreement.names}}
        outgoing = {}
        for name in names:
            client = agreement.names.index(name)
            fields = {
                "run": agreement.run, "config": as_offered(agreement.config), "code": str(protocol.own()),
                "schema": self._schema(), "client": client, "roster": roster, "centre": agreement.centre_name, **peers,
            }  # fmt: skip
            outgoing[name] = self._words("begin", fields, name)
        left = {}
        for name, reply in self._exchange.ask(outgoing, _WORDS_CAP, quorum).items():
            if isinstance(reply, HushError):
                # A lost message is not a refusal: the member is asked again.
                continue
            message = self._opened(name, reply, "ready", {})
            self._begun.add(name)
            if message.kind == REFUSAL:
                client = agreement.names.index(name)
                left[client] = reason_of(message)
                self._spent |= {client} if message.fields.get("final") is True else set()
                self.log.note("does not begin", run=agreement.run, member=name, reason=left[client])
        return left

    def _check_begun(self, agreement: Agreement, left: Mapping[int, str]) -> None:
        """Raise a `HushError` if too few members agree; the saved run is not changed."""
        wanted, names = max(agreement.config.quorum, 1), agreement.names
        if len(names) - len(left) < wanted:
            reasons = "; ".join(f"{names[client]}: {reason}" for client, reason in left.items())[:600]
            raise HushError(
                f"begin: {len(names) - len(left)} of {len(names)} members agree to the run, quorum {wanted}; {reasons}"
            )

    def exchange(
        self, federation: Federation, agreement: Agreement, tasks: Sequence[Task], left: dict[int, str]
    ) -> Answers:
        """Send the tasks of a round, and return the replies that arrived before it ended."""
        # A member that was offline when the run began has not agreed to it, and would refuse every task.
        if late := {name for name in agreement.names if name not in self._begun and self._again[name] < _AGAIN}:
            late &= self._exchange.here()
            self._again.update(late)
            left |= self._begin(agreement, sorted(late), 0)
        self._exclude_revoked(agreement, left)
        self._evict(agreement, left)
        answers: list[Answer] = [
            Decline(task.client, task.round, left[task.client], final=True) for task in tasks if task.client in left
        ]
        asked = {agreement.names[task.client]: task for task in tasks if task.client not in left}
        sent = SentTasks(agreement.run, asked, halves=federation.terms.halves)
        outgoing = sent.encode_each(self._heads)
        for name in asked:
            self.log.note("task", run=agreement.run, round=asked[name].round, member=name, digest=sent.digests[name])
        side = sum(
            release.width(federation.terms.shape)
            for task in tasks[:1]
            for release in federation.terms.stage_table.at(task.round).sent
        )
        cap = messages.ROOM + int(1.1 * (4 * max((task.answer.size for task in tasks), default=0) + 8 * side))
        if federation.terms.sums is not None:
            return self._summed(federation, agreement, asked, sent, cap, answers)
        read: dict[str, Answer] = {}

        def judge(name: str, reply: Buffer | HushError) -> Verdict:
            answer = read[name] = self._admitted(federation, agreement, name, asked[name], sent.digests[name], reply)
            if isinstance(answer, Decline):
                return Verdict.UNUSABLE if answer.fault else Verdict.REFUSAL
            accepted, _ = usable_updates(federation.terms, [asked[name]], [answer])
            return Verdict.USABLE if accepted else Verdict.UNUSABLE

        replies = self._exchange.ask(outgoing, cap, federation.terms.quorum, judge=judge)
        self._seconds = self._exchange.seconds
        silent = [Decline(asked[name].client, asked[name].round, why) for name, why in self._exchange.absent.items()]
        return [*answers, *(read[name] for name in replies), *silent]

    def _summed(
        self, federation: Federation, agreement: Agreement, asked: Mapping[str, Task], sent: SentTasks, cap: int,
        answers: Sequence[Answer],
    ) -> Answers:  # fmt: skip
        """Form the sums of a round with secure aggregation."""
        if not asked:
            return list(answers)
        terms, number = federation.terms, next(iter(asked.values())).round

        def admitted(name: str, reply: Buffer | HushError, attempt: str) -> Answer:
            return self._admitted(federation, agreement, name, asked[name], sent.digests[name], reply, attempt)

        services = SumServices(
            exchange=self._exchange,
            words=self._words,
            opened=lambda name, reply, kind: self._opened(name, reply, kind, {}),
            tasks=lambda more: sent.encode_each(self._heads, more),
            admitted=admitted,
            usable=lambda name, update: bool(usable_updates(terms, [asked[name]], [update])[0]),
            log=self.log,
            out=self._out,
        )
        size = next(iter(asked.values())).answer.size
        plans = plans_of_sums(terms, number)
        secure = SecureRound(services, agreement.run, number, plans, agreement.names, list(asked), size)
        done = secure.collect(cap)
        self._seconds = dict(secure.seconds)
        return SummedAnswers([*answers, *done.answers], done.sums)

    def _exclude_revoked(self, agreement: Agreement, left: dict[int, str]) -> None:
        """Stop sending tasks to members that are no longer listed with the key they enrolled with.

        The SuperLink disconnects them as well, but up to half a second later, which can be several short rounds.
        """
        listed = self.place.members(lambda error: None)
        for client, name in enumerate(agreement.names):
            if client not in left and listed.get(name) != self._keys.get(name):
                left[client] = "revoked"
                self.log.note("revoked", run=agreement.run, member=name)

    def _evict(self, agreement: Agreement, left: dict[int, str]) -> None:
        """Evict members that were online without a usable answer in several consecutive rounds, and notify them."""
        for name, rounds in self._exchange.failing().items():
            client = agreement.names.index(name) if name in agreement.names else -1
            if client < 0 or client in left:
                continue
            left[client] = f"evicted: online but without a usable answer in {rounds} consecutive rounds"
            self.log.note("evicted", run=agreement.run, member=name, reason=left[client])
            self._exchange.tell({name: self._words("evicted", {"run": agreement.run}, name)})

    def _admitted(
        self, federation: Federation, agreement: Agreement, name: str, task: Task, asked: str,
        reply: Buffer | HushError, attempt: str | None = None,
    ) -> Answer:  # fmt: skip
        """Return a reply as an answer; an invalid one excludes its sender from the round.

        With secure aggregation, its numbers are masked for an attempt.
        """
        terms = federation.terms
        small = halves(federation.config)
        wanted = expected(task, terms.stage_table.at(task.round), terms.shape, masked=attempt is not None, halves=small)
        message = self._opened(name, reply, "update", wanted)
        if message.kind == REFUSAL:
            final = message.fields.get("final") is True
            reason = reason_of(message)
            self.log.note("refusal", run=agreement.run, round=task.round, member=name, reason=reason, final=final)
            return Decline(task.client, task.round, reason, final, fault=FAULT in message.fields)
        try:
            update = update_of(message, agreement.run, name, task, asked, attempt, halves=small)
        except Exception as error:  # any error in a reply excludes its sender from the round, and nobody else
            words = printable(error)
            self.log.note("refused", run=agreement.run, round=task.round, member=name, reason=words)
            return Decline(task.client, task.round, f"refused: {words}", fault=True)
        receipt = update.receipt
        self._heads[name] = receipt.head
        self.log.note(
            "update", run=agreement.run, round=update.round, member=name, serial=receipt.serial, head=receipt.head
        )
        return update

    def _opened(self, name: str, reply: Buffer | HushError, kind: str, expected: messages.Spec) -> Message:
        """Return a member's message; an invalid one is treated as a refusal with the coordinator's reason."""
        try:
            return opened(self._public[name], reply, kind, expected)
        except Exception as error:  # the same
            words = printable(error)
            self.log.note("refused", member=name, reason=words)
            return Message(REFUSAL, {"run": "", FAULT: f"refused: {words}", "final": False})

    def _words(self, kind: str, fields: Mapping[str, Any], name: str) -> EncodedMessage:
        return EncodedMessage(messages.encode(Message(kind, {**fields, "head": self._heads.get(name, "")})))

    def _directory(
        self, federation: Federation, agreement: Agreement, out: Path, resume: bool, resumes: bool, command: str
    ) -> RunDir:
        content = manifest(federation, command)
        if resumes:
            # That it is the same config was checked with the agreement.
            return RunDir.reopen(out, str(read_json(out / MANIFEST).get("config_hash")))
        if resume and not (out / ROUNDS).exists():
            # A run that crashed before its members were stored has not begun.
            (out / MANIFEST).unlink(missing_ok=True)
        directory = RunDir.create(out, content)
        agreement.write(out)
        return directory


class _Members:
    """The members of one run on their machines: the `Host` of a deployment."""

    warnings: Sequence[str] = ()
    idle = 0.0

    def __init__(
        self, coordinator: Coordinator, federation: Federation, agreement: Agreement, progress: Progress | None
    ) -> None:
        self._coordinator, self._federation, self._agreement = coordinator, federation, agreement
        self._progress = progress
        self._left: dict[int, str] = {}
        self.names = agreement.names
        self.on_round_end = (self._report,)
        self.ledgers = [
            MemoryLedger(client, policy, federation.schedules[client].plan.accountant)
            for client, policy in enumerate(federation.policies)
        ]
        # As in a member's own ledger: training is a schedule of its own, planned after what enrolment released.
        for ledger, fact, schedule in zip(self.ledgers, agreement.facts, federation.schedules, strict=True):
            if fact.noised:
                with contextlib.suppress(BudgetSpentError):
                    ledger.approve(fact.costs())
                    ledger.reserve(fact.costs(), "", ENROLMENT)
            if planned := training(schedule):
                approve([ledger], [(training(schedule, spare=True), planned)])

    def enrol(self) -> tuple[Federation, State]:
        """Have the enrolled members agree to the whole run."""
        self._left = self._coordinator.begin_all(self._agreement, resumed=False)
        return self._federation, self._agreement.enrolment_state

    def resume(self, state: ServerState, records: Sequence[RoundRecord]) -> Federation:
        """Count what the saved rounds released, and have the members agree again, unless the run is finished."""
        for record in records:
            self._count(record.charged, record.round)
        terms = self._federation.terms
        if state.round < len(terms.participants) and ended_early(terms, state) is None:
            self._left = self._coordinator.begin_all(self._agreement, resumed=True)
        return self._federation

    def answer(self, tasks: list[Task]) -> Answers:
        """Send the tasks of a round, and return the replies that arrived before it ended."""
        return self._coordinator.exchange(self._federation, self._agreement, tasks, self._left)

    def evaluate(self, models: Tensor, placed: Sequence[int], round_number: int) -> tuple[tuple[float, ...], float]:
        """The primary score of each member's model on the public test set, and the mean loss."""
        model, (x, y) = self._federation.model, self._test()
        everything = [range(len(y))]
        by_model = [evaluate(model, models, [m], x, y, everything) for m in range(len(models))]
        accuracies = tuple(by_model[home][0][0] for home in placed)
        return accuracies, sum(by_model[home][1] for home in placed) / len(placed)

    def measure(self, models: Tensor, placed: Sequence[int], round_number: int) -> dict[str, Any]:
        """All metrics of each member's model on the public test set."""
        assignments, (x, y) = sorted(set(placed)), self._test()
        tests = [range(len(y))] * len(assignments)
        found = measure(self._federation.model, models, assignments, x, y, tests, [str(home) for home in assignments])
        by_model = found["per_client"]
        return {**found, "per_client": {n: by_model[str(h)] for n, h in zip(self.names, placed, strict=True)}}

    def _test(self) -> tuple[Tensor, Tensor]:
        """Inputs, behind the model's fixed features, and targets of the public test set."""
        test, features = shaped(self._coordinator.test, self._federation.config), self._federation.model.features
        x, y = torch.from_numpy(test.x), torch.from_numpy(test.y)
        return x if features is None else features(x), y

    def enrolled(self, costs: RoundCosts, records: Sequence[RoundRecord]) -> None:
        """Nothing to tell: whoever follows the run reads it in the run directory."""

    def enrolment_saved(self) -> None:
        """Nothing to note: the agreement was saved when the members enrolled."""

    def _count(self, clients: Sequence[int], number: int) -> None:
        """Charge these clients' ledgers, as seen by the coordinator, with what they released in a round."""
        for client in clients:
            with contextlib.suppress(BudgetSpentError):
                self.ledgers[client].reserve(self._federation.stage(client, number).round_costs, "", number)

    def _report(self, record: RoundRecord) -> None:
        """Count what the members released in a saved round, log it, and report it with the remaining budgets."""
        self._count(record.charged, record.round)
        self._coordinator.log_round(self._agreement, record)
        if self._progress is not None:
            unknown = self._federation.noised_budgets
            left = {
                name: "unknown" if client in unknown else f"{ledger.left():.3g}"
                for client, (name, ledger) in enumerate(zip(self.names, self.ledgers, strict=True))
            }
            self._progress(record, left)
