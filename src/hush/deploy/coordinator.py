"""The coordinator of a run: it enrols the members, drives the round loop, and lets in only what it asked for."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hush.config import Config, config_hash
from hush.data.datasets import Dataset
from hush.deploy import keys, wire
from hush.deploy.audit import Trail
from hush.deploy.enrolled import Enrolled, Fact, assemble, shaped
from hush.deploy.place import Place
from hush.deploy.post import Hub, Post
from hush.deploy.template import code_hash
from hush.deploy.wire import Letter
from hush.engines.cohort import named
from hush.engines.evaluate import evaluate
from hush.engines.outcome import manifest, outcome
from hush.privacy.ledger import BudgetSpentError, Ledger
from hush.privacy.ledger.ledger import stated
from hush.server.loop import Answer, ServerState, serve, short_of_quorum, start
from hush.server.rundir import MANIFEST, ROUNDS, RunDir, read_json, to_json, write_atomically
from hush.types import Decline, HushError, RoundRecord, RunResult, Task, Update

AGREEMENT = "federation.json"
_WORDS_CAP = 1 << 20

Progress = Callable[[RoundRecord, Mapping[str, str]], None]


@dataclass(frozen=True)
class Agreement:
    """What a run was begun with, kept so that it can be taken up again: its name, its members, who left at once."""

    run: str
    facts: tuple[Fact, ...]
    config: Config

    @property
    def names(self) -> list[str]:
        """The members, by number."""
        return [fact.name for fact in self.facts]


class Coordinator:
    """One run of a federation."""

    def __init__(self, place: Place, hub: Hub, test: Dataset) -> None:
        self.place, self.hub, self.test = place, hub, test
        self.trail = Trail(place.server / "audit.jsonl")
        self._public = {name: keys.load_public(pem, name) for name, pem in place.members().items()}
        self._post = Post(hub, place.members(), place.settings)
        self._heads = place.heads()
        self._under_way = False

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
        kept = resume and (out / AGREEMENT).exists()
        agreement = self._kept(out, config) if kept else self._enrolment(config)
        federation = assemble(agreement.config, agreement.facts, self.test)
        directory = self._directory(federation, agreement, out, resume, kept, command)
        self._under_way = True
        state, records = start(federation.terms, federation.starts()), list[RoundRecord]()
        if kept and (held := directory.restore()) is not None:
            state, records = held
            began -= records[-1].seconds
        ledgers = _recharged(federation, records)
        left = self._begin(agreement)

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
        directory.finish(result, named(federation, state.released))
        self.trail.note("ended", run=agreement.run, rounds=result.rounds, why=ended)
        return result

    def _enrolment(self, config: Config) -> Agreement:
        """Ask every member that comes within the time whether it takes part, and with what."""
        run = uuid.uuid4().hex
        says = {
            "run": run, "config": config.model_dump(), "code": code_hash(),
            "schema": {"shape": list(self.test.x.shape[1:]), "classes": self.test.classes},
        }  # fmt: skip
        letters = {name: self._words("enrol", says, name) for name in self._public}
        facts: list[Fact] = []
        for name, reply in self._post.ask(letters, _WORDS_CAP, len(letters), gather=True).items():
            letter = self._opened(name, reply, {})
            if letter.kind == "facts":
                run_, epsilon, delta, relation, samples, _, head = wire.want(
                    letter, "run", "epsilon", "delta", "relation", "samples", "name", "head"
                )
                facts.append(Fact(name, float(epsilon), float(delta), relation, int(samples)))
                self._heads[name] = str(head)
                self.trail.note("enrolled", run=run_, member=name, declared=asdict(facts[-1]))
            else:
                self.trail.note("not enrolled", run=run, member=name, reason=letter.says.get("reason"))
        facts.sort(key=lambda fact: list(self._public).index(fact.name))
        wanted = max(config.quorum, 1)
        if len(facts) < wanted:
            reasons = "; ".join(str(line["reason"]) for line in _last(self.trail, run))[:600]
            raise HushError(
                f"enrolment: {len(facts)} of {len(self._public)} members take part, quorum {wanted}; {reasons}"
            )
        agreed = config.model_copy(update={"data": config.data.model_copy(update={"clients": len(facts)})})
        return Agreement(run, tuple(facts), agreed)

    def _begin(self, agreement: Agreement) -> dict[int, str]:
        """Have every member agree to the whole run. Returns who does not, and why."""
        roster = [asdict(fact) for fact in agreement.facts]
        schema = {"shape": list(self.test.x.shape[1:]), "classes": self.test.classes}
        letters = {}
        for client, name in enumerate(agreement.names):
            says = {
                "run": agreement.run, "config": agreement.config.model_dump(), "code": code_hash(), "schema": schema,
                "client": client, "roster": roster,
            }  # fmt: skip
            letters[name] = self._words("begin", says, name)
        replies = self._post.ask(letters, _WORDS_CAP, agreement.config.quorum)
        left = {}
        for client, name in enumerate(agreement.names):
            letter = self._opened(name, replies[name], {}) if name in replies else None
            if letter is not None and letter.kind == "no":
                left[client] = str(letter.says.get("reason"))
                self.trail.note("does not begin", run=agreement.run, member=name, reason=left[client])
        return left

    def _round(
        self, federation: Enrolled, agreement: Agreement, tasks: Sequence[Task], left: Mapping[int, str]
    ) -> list[Answer]:
        """Send the tasks of a round, and what came back before it closed."""
        answers: list[Answer] = [
            Decline(task.client, task.round, left[task.client], final=True) for task in tasks if task.client in left
        ]
        asked = {agreement.names[task.client]: task for task in tasks if task.client not in left}
        letters = {}
        for name, task in asked.items():
            letter = _letter(agreement.run, task)
            letters[name] = wire.encode(replace(letter, says={**letter.says, "head": self._heads.get(name, "")}))
            self.trail.note("task", **letter.says, member=name, digest=wire.digest(letter))
        cap = wire.ROOM + int(1.1 * 4 * max((task.answer.size for task in tasks), default=0))
        replies = self._post.ask(letters, cap, federation.terms.quorum)
        for name, reply in replies.items():
            answers.append(self._admitted(agreement, name, asked[name], reply))
        return answers

    def _admitted(self, agreement: Agreement, name: str, task: Task, reply: bytes | HushError) -> Answer:
        """A reply as an answer; whatever is wrong with it costs its sender the round."""
        expected = {"vector": ("F32", (task.answer.size,))}
        letter = self._opened(name, reply, expected)
        if letter.kind == "no":
            final = letter.says.get("final") is True
            reason = str(letter.says.get("reason"))[:500]
            self.trail.note("refusal", run=agreement.run, round=task.round, member=name, reason=reason, final=final)
            return Decline(task.client, task.round, reason, final)
        try:
            run, number, client, serial, head, asked, notes = wire.want(
                letter, "run", "round", "client", "serial", "head", "asked", "notes"
            )
            wanted = {"choice"} if "choice" in notes else set()
            wanted |= {"below"} if "clip" in task.notes else set()
            if (run, client) != (agreement.run, name) or set(notes) != wanted:
                raise HushError("it answers another run or member, or says what it was not asked")
            if number == task.round and asked != _digest(run, task):
                raise HushError("it answers another task of this round")
            receipt = stated(task.client, int(number), int(serial), str(run), str(head))
            facts = {key: float(value) for key, value in notes.items()}
        except (HushError, TypeError, ValueError) as error:
            self.trail.note("refused", run=agreement.run, round=task.round, member=name, reason=str(error))
            return Decline(task.client, task.round, f"refused: {error}")
        self._heads[name] = receipt.head
        self.trail.note("update", run=run, round=number, member=name, serial=serial, head=head)
        return Update(task.client, int(number), letter.tensors["vector"], task.answer, receipt, facts)

    def _opened(self, name: str, reply: bytes | HushError, expected: wire.Spec) -> Letter:
        """A member's letter, its signature and header checked; a fault reads as a refusal."""
        try:
            if isinstance(reply, HushError):
                raise reply
            content = keys.opened(self._public[name], reply)
            spec = expected if wire.kind_of(content) == "update" else {}
            letter = wire.decode(content, len(content), spec)
            if letter.kind not in ("update", "facts", "ready", "no") or (letter.kind == "update") != bool(
                letter.tensors
            ):
                raise HushError(f"an answer of kind {letter.kind[:20]!r}")
            return letter
        except HushError as error:
            self.trail.note("refused", member=name, reason=str(error))
            return Letter("no", {"run": "", "reason": f"refused: {error}", "final": False})

    def _words(self, kind: str, says: Mapping[str, Any], name: str) -> bytes:
        return wire.encode(Letter(kind, {**says, "head": self._heads.get(name, "")}))

    def _directory(
        self, federation: Enrolled, agreement: Agreement, out: Path, resume: bool, kept: bool, command: str
    ) -> RunDir:
        content = manifest(federation, command)
        if kept:
            return RunDir.reopen(out, content["config_hash"])
        if resume and not (out / ROUNDS).exists():
            # A run that died before its members were written down has not begun.
            (out / MANIFEST).unlink(missing_ok=True)
        directory = RunDir.create(out, content)
        made = {"run": agreement.run, "facts": [asdict(fact) for fact in agreement.facts]}
        write_atomically(out / AGREEMENT, to_json({**made, "config": agreement.config.model_dump()}))
        return directory

    def _kept(self, out: Path, config: Config) -> Agreement:
        raw = read_json(out / AGREEMENT)
        facts = tuple(Fact(**fact) for fact in raw["facts"])
        agreed = config.model_copy(update={"data": config.data.model_copy(update={"clients": len(facts)})})
        held = read_json(out / MANIFEST).get("config_hash")
        if held != config_hash(agreed):
            raise HushError(f"{out}: holds a run of another config; resume with the file it was started with")
        return Agreement(str(raw["run"]), facts, agreed)

    def _evaluated(self, federation: Enrolled, state: ServerState) -> tuple[tuple[float, ...], float]:
        """Accuracy of each member's model on the public test set, and the mean loss."""
        test = shaped(self.test, federation.config)
        x, y = torch.from_numpy(test.x), torch.from_numpy(test.y)
        x = x if federation.model.features is None else federation.model.features(x)
        models = state.released
        everything = [range(len(y))]
        by_model = [evaluate(federation.model, models, [m], x, y, everything) for m in range(len(models))]
        homes = federation.recipe.assign.homes(range(len(federation.members)), state.slots["assign"])
        accuracies = tuple(by_model[home][0][0] for home in homes)
        return accuracies, sum(by_model[home][1] for home in homes) / len(homes)

    def _budgets(self, agreement: Agreement, ledgers: Sequence[Ledger]) -> dict[str, str]:
        return {name: f"{ledger.left():.3g}" for name, ledger in zip(agreement.names, ledgers, strict=True)}


def _recharged(federation: Enrolled, records: Sequence[RoundRecord]) -> list[Ledger]:
    ledgers = federation.ledgers()
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


def _letter(run: str, task: Task) -> Letter:
    notes = {f"notes.{note}": value for note, value in task.notes.items()}
    return Letter("task", {"run": run, "round": task.round}, {"models": task.models, **notes})


def _digest(run: str, task: Task) -> str:
    return wire.digest(_letter(run, task))


def _last(trail: Trail, run: str) -> list[dict[str, Any]]:
    from hush.deploy.audit import read

    return [line for line in read(trail.path) if line.get("run") == run and line["event"] == "not enrolled"]


def agreement_of(path: Path) -> dict[str, Any]:
    """What is kept of a run's agreement, for `hush federation status`."""
    return dict(json.loads((path / AGREEMENT).read_bytes())) if (path / AGREEMENT).exists() else {}
