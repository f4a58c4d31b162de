"""The coordinator of a run: it enrols the members, drives the round loop, and lets in only what it asked for."""

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

from hush import models, recipes
from hush.config import Config
from hush.data.datasets import Dataset
from hush.deploy import centres, keys, wire
from hush.deploy.agreement import AGREEMENT, Agreement, agreed, kept
from hush.deploy.audit import Trail
from hush.deploy.courses import fraction
from hush.deploy.enrolled import Enrolled, assemble, plausible, settled, shaped, tells_centre, width_of
from hush.deploy.facts import MEAN, Fact
from hush.deploy.gathering import check_asked, facts_of, fitting
from hush.deploy.place import Place
from hush.deploy.post import Hub, Post
from hush.deploy.replies import letter_of, opened, update_of
from hush.deploy.template import code_hash
from hush.deploy.wire import Letter
from hush.engines.cohort import named
from hush.engines.enrol import Told
from hush.engines.evaluate import evaluate
from hush.engines.outcome import manifest, outcome
from hush.privacy.course import ENROLMENT
from hush.privacy.ledger import BudgetSpentError, Ledger
from hush.server.loop import Answer, ServerState, gate, serve, short_of_quorum, start
from hush.server.rundir import MANIFEST, ROUNDS, RunDir
from hush.types import Decline, HushError, RoundRecord, RunResult, Task, Update

_WORDS_CAP = 1 << 20
_AGAIN = 3  # who is there and says nothing is not asked for ever

Progress = Callable[[RoundRecord, Mapping[str, str]], None]


class Coordinator:
    """One run of a federation."""

    def __init__(self, place: Place, hub: Hub, test: Dataset) -> None:
        self.place, self.hub, self.test = place, hub, test
        self.trail = Trail(place.server / "audit.jsonl")
        self._public = {name: keys.load_public(pem, name) for name, pem in place.members().items()}
        self._post = Post(hub, place.members(), place.settings)
        self._heads = place.heads()
        self._under_way = False
        self._begun: set[str] = set()
        self._spent: set[int] = set()
        self._again: Counter[str] = Counter()

    def run(
        self, config: Config, out: Path, *, resume: bool = False, command: str = "", progress: Progress | None = None
    ) -> RunResult:
        """Run a config to its end, keeping every round in `out`."""
        self.hub.open()
        status = "failed"
        try:
            result = self._run(config, out, resume, command, progress)
            status = "completed"
            return result
        except HushError as error:
            if not self._under_way:
                raise
            raise HushError(f"{error}; the run is kept in {out}: go on with the same command and --resume") from None
        finally:
            self.hub.close(status)

    def _run(self, config: Config, out: Path, resume: bool, command: str, progress: Progress | None) -> RunResult:
        began = time.perf_counter()
        held = resume and (out / AGREEMENT).exists()
        if not resume and out.exists() and any(out.iterdir()):
            # Before anyone is asked: to enrol may cost a member some of its budget.
            raise HushError(f"{out}: not empty; give another directory, or --resume to go on with a run in it")
        agreement = kept(out, config) if held else self._enrolment(config)
        federation = assemble(agreement.config, agreement.facts, self.test, agreement.paced)
        directory = self._directory(federation, agreement, out, resume, held, command)
        self._under_way = True
        state, records = start(federation.terms, federation.starts(), agreement.told), list[RoundRecord]()
        if held and (saved := directory.restore()) is not None:
            state, records = saved
            began -= records[-1].seconds
        ledgers = _recharged(federation, agreement, records)
        done = state.round == len(federation.terms.schedule) or short_of_quorum(federation.terms, state) is not None
        left = {} if done else self._begin(agreement, agreement.names, agreement.config.quorum)
        # Who has spent its budget leaves a run. Who refuses for another reason may yet agree, and does not end it.
        self._check_begun(agreement, {c: why for c, why in left.items() if not records or c not in self._spent})

        def keep(new: ServerState, record: RoundRecord) -> None:
            accuracy, loss = self._evaluated(federation, new)
            done = replace(record, accuracy_per_client=accuracy, loss=loss, seconds=time.perf_counter() - began)
            records.append(done)
            _recharge(federation, ledgers, done)
            directory.save(new, done)
            self.place.keep_heads(self._heads)
            words = {agreement.names[client]: reason for client, reason in done.refused.items()}
            answered = [agreement.names[client] for client in done.charged]
            self.trail.note("closed", run=agreement.run, round=done.round, answered=answered, refused=words)
            if progress is not None:
                progress(done, self._budgets(agreement, ledgers))

        loop = serve(federation.terms, state, keep)
        try:
            tasks = next(loop)
            while True:
                tasks = loop.send(self._round(federation, agreement, tasks, left))
        except StopIteration as end:
            state = end.value
        ended = short_of_quorum(federation.terms, state) or "all rounds are done"
        result = outcome(federation, ledgers, records, ended)
        directory.finish(result, named(federation, federation.plain(state.released, state.slots["protect"])))
        self.trail.note("ended", run=agreement.run, rounds=result.rounds, why=ended)
        return result

    def _enrolment(self, config: Config) -> Agreement:
        """Ask every member that comes within the time whether it takes part, and with what."""
        run = uuid.uuid4().hex
        offer = agreed(run, [Fact(name, 0.0, 0.0, "add-remove", 0) for name in self._public], config).config
        says = {"run": run, "config": offer.model_dump(), "code": code_hash(), "schema": self._schema()}
        letters = {
            name: self._words("enrol", {**says, "number": number}, name) for number, name in enumerate(self._public)
        }
        _, recipe = recipes.parse(config.recipe, config.mode)
        centre = tells_centre(recipe, config.rounds)
        width = (
            width_of(models.build(config.model, tuple(self.test.x.shape[1:]), self.test.classes, config.seed))
            if centre
            else 0
        )
        expected: wire.Spec = {MEAN: ("F64", (width,))} if centre else {}
        replies = self._post.ask(letters, _WORDS_CAP + 8 * width, len(letters), gather=True)
        declared, heard, out = dict[str, Fact](), dict[str, Told](), dict[str, str]()
        for number, name in enumerate(self._public):
            if name not in replies:
                continue
            letter = self._opened(name, replies[name], "facts", expected)
            try:
                if letter.kind != "facts":
                    raise HushError(str(letter.says.get("reason"))[:500])
                fact, self._heads[name] = facts_of(letter, name, run)
                check_asked(recipe, fact)
                plausible(offer, fact, number)
                if centre:
                    heard[name] = centres.told(offer, fact, number, letter)
                declared[name] = fact
            except Exception as error:  # whatever a stranger declares keeps the stranger out, and nobody else
                out[name] = str(error)
        facts, short = fitting(config, list(declared.values()))
        self.place.keep_heads(self._heads)
        for fact in facts:
            self.trail.note("enrolled", run=run, member=fact.name, declared=asdict(fact))
        out |= short
        for name, reason in out.items():
            self.trail.note("not enrolled", run=run, member=name, reason=reason)
        wanted = max(config.quorum, 1)
        if len(facts) < wanted:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in out.items())[:600] or "nobody else came"
            raise HushError(
                f"enrolment: {len(facts)} of {len(self._public)} members take part, quorum {wanted}; {reasons}"
            )
        joined = centres.joined([heard[fact.name] for fact in facts]) if centre else None
        made = agreed(run, facts, config, joined, config.local.lr == "auto")
        return replace(made, config=settled(made.config, facts, self.test))

    def _schema(self) -> dict[str, Any]:
        return {"shape": list(self.test.x.shape[1:]), "classes": self.test.classes}

    def _begin(self, agreement: Agreement, names: Sequence[str], quorum: int) -> dict[int, str]:
        """Have these members agree to the whole run. Returns who does not, and why."""
        roster = [asdict(fact) for fact in agreement.facts]
        letters = {}
        for name in names:
            client = agreement.names.index(name)
            says = {
                "run": agreement.run, "config": agreement.config.model_dump(), "code": code_hash(),
                "schema": self._schema(), "client": client, "roster": roster, "centre": agreement.centre_name,
            }  # fmt: skip
            letters[name] = self._words("begin", says, name)
        left = {}
        for name, reply in self._post.ask(letters, _WORDS_CAP, quorum).items():
            if isinstance(reply, HushError):
                # Lost on its way, which is no refusal: it is asked again.
                continue
            letter = self._opened(name, reply, "ready", {})
            self._begun.add(name)
            if letter.kind == "no":
                client = agreement.names.index(name)
                left[client] = str(letter.says.get("reason"))
                self._spent |= {client} if letter.says.get("final") is True else set()
                self.trail.note("does not begin", run=agreement.run, member=name, reason=left[client])
        return left

    def _check_begun(self, agreement: Agreement, left: Mapping[int, str]) -> None:
        """Raise a `HushError` if too few agree: the run stays as it is until they do."""
        wanted, names = max(agreement.config.quorum, 1), agreement.names
        if len(names) - len(left) < wanted:
            reasons = "; ".join(f"{names[client]}: {reason}" for client, reason in left.items())[:600]
            raise HushError(
                f"begin: {len(names) - len(left)} of {len(names)} members agree to the run, quorum {wanted}; {reasons}"
            )

    def _round(
        self, federation: Enrolled, agreement: Agreement, tasks: Sequence[Task], left: dict[int, str]
    ) -> list[Answer]:
        """Send the tasks of a round, and what came back before it closed."""
        # Who was away when the run began has not agreed to it, and would refuse every task.
        if late := {name for name in agreement.names if name not in self._begun and self._again[name] < _AGAIN}:
            late &= self._post.here()
            self._again.update(late)
            left |= self._begin(agreement, sorted(late), 0)
        answers: list[Answer] = [
            Decline(task.client, task.round, left[task.client], final=True) for task in tasks if task.client in left
        ]
        asked = {agreement.names[task.client]: task for task in tasks if task.client not in left}
        letters = {}
        for name, task in asked.items():
            letter = letter_of(agreement.run, task)
            letters[name] = wire.encode(replace(letter, says={**letter.says, "head": self._heads.get(name, "")}))
            self.trail.note("task", **letter.says, member=name, digest=wire.digest(letter))
        cap = wire.ROOM + int(1.1 * 4 * max((task.answer.size for task in tasks), default=0))
        read: dict[str, Answer] = {}

        def counts(name: str, reply: bytes | HushError) -> bool:
            answer = read[name] = self._admitted(federation, agreement, name, asked[name], reply)
            return isinstance(answer, Update) and bool(gate(federation.terms, [asked[name]], [answer])[0])

        replies = self._post.ask(letters, cap, federation.terms.quorum, counts=counts)
        return [*answers, *(read[name] for name in replies)]

    def _admitted(
        self, federation: Enrolled, agreement: Agreement, name: str, task: Task, reply: bytes | HushError
    ) -> Answer:
        """A reply as an answer; whatever is wrong with it costs its sender the round."""
        letter = self._opened(name, reply, "update", {"vector": ("F32", (task.answer.size,))})
        if letter.kind == "no":
            final = letter.says.get("final") is True
            reason = str(letter.says.get("reason"))[:500]
            self.trail.note("refusal", run=agreement.run, round=task.round, member=name, reason=reason, final=final)
            return Decline(task.client, task.round, reason, final)
        try:
            stage = federation.stage(task.client, task.round)
            update = update_of(letter, agreement.run, name, task, fraction(stage, agreement.facts[task.client]))
        except Exception as error:  # whatever a stranger wrote costs the stranger the round, and nobody else
            self.trail.note("refused", run=agreement.run, round=task.round, member=name, reason=str(error))
            return Decline(task.client, task.round, f"refused: {error}")
        receipt = update.receipt
        self._heads[name] = receipt.head
        self.trail.note(
            "update", run=agreement.run, round=update.round, member=name, serial=receipt.serial, head=receipt.head
        )
        return update

    def _opened(self, name: str, reply: bytes | HushError, kind: str, expected: wire.Spec) -> Letter:
        """A member's letter; a fault reads as a refusal."""
        try:
            return opened(self._public[name], reply, kind, expected)
        except Exception as error:  # the same
            self.trail.note("refused", member=name, reason=str(error))
            return Letter("no", {"run": "", "reason": f"refused: {error}", "final": False})

    def _words(self, kind: str, says: Mapping[str, Any], name: str) -> bytes:
        return wire.encode(Letter(kind, {**says, "head": self._heads.get(name, "")}))

    def _directory(
        self, federation: Enrolled, agreement: Agreement, out: Path, resume: bool, held: bool, command: str
    ) -> RunDir:
        content = manifest(federation, command)
        if held:
            return RunDir.reopen(out, content["config_hash"])
        if resume and not (out / ROUNDS).exists():
            # A run that died before its members were written down has not begun.
            (out / MANIFEST).unlink(missing_ok=True)
        directory = RunDir.create(out, content)
        agreement.write(out)
        return directory

    def _evaluated(self, federation: Enrolled, state: ServerState) -> tuple[tuple[float, ...], float]:
        """Accuracy of each member's model on the public test set, and the mean loss."""
        test = shaped(self.test, federation.config)
        x, y = torch.from_numpy(test.x), torch.from_numpy(test.y)
        x = x if federation.model.features is None else federation.model.features(x)
        released = federation.plain(state.released, state.slots["protect"])
        everything = [range(len(y))]
        by_model = [evaluate(federation.model, released, [m], x, y, everything) for m in range(len(released))]
        homes = federation.recipe.assign.homes(range(len(federation.members)), state.slots["assign"])
        accuracies = tuple(by_model[home][0][0] for home in homes)
        return accuracies, sum(by_model[home][1] for home in homes) / len(homes)

    def _budgets(self, agreement: Agreement, ledgers: Sequence[Ledger]) -> dict[str, str]:
        return {name: f"{ledger.left():.3g}" for name, ledger in zip(agreement.names, ledgers, strict=True)}


def _recharged(federation: Enrolled, agreement: Agreement, records: Sequence[RoundRecord]) -> list[Ledger]:
    ledgers = federation.ledgers()
    for ledger, fact in zip(ledgers, agreement.facts, strict=True):
        if fact.noised:
            with contextlib.suppress(BudgetSpentError):
                ledger.reserve_costs(fact.costs(), "", ENROLMENT)
    for record in records:
        _recharge(federation, ledgers, record)
    return ledgers


def _recharge(federation: Enrolled, ledgers: Sequence[Ledger], record: RoundRecord) -> None:
    """Count what members have released, as the coordinator saw it."""
    for client in record.charged:
        try:
            ledgers[client].reserve_costs(federation.stage(client, record.round).costs(), "", record.round)
        except BudgetSpentError:
            continue
