"""A round with secure aggregation at the coordinator, which sees keys, encrypted shares and masked numbers alone.

Masked numbers are added up as they arrive, and only their sum is kept. A member that is missing in a step is not asked
in the next ones; a sum of which too few members are left is given up. What a member charged for an answer that ends in
no sum stays charged.

The members of a sum are noted in the run directory before anybody is asked to confirm them. If the coordinator crashes
then, the resumed run asks for the same sum again, since members confirm no other one for that round.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.coordinator.exchange import Exchange, Verdict
from hush.deploy.shared import sum_messages
from hush.deploy.shared.masks import PublicKeys, unmask
from hush.deploy.shared.refusal import FAULT, REFUSAL, reason_of
from hush.deploy.shared.sum_messages import CONFIRM, KEYS, REVEAL, SHARES
from hush.deploy.transport.messages import Buffer, EncodedMessage, Message
from hush.recipes.secure_sums import Sum, SumPlan
from hush.server.loop import Answer, SummedAnswers
from hush.server.run_directory import read_json, to_json, write_atomically
from hush.types import Decline, HushError, Update, VectorFacts

SURVIVORS = "survivors.json"
_CAP = 1 << 20

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SumServices:
    """What a round needs of its coordinator.

    Attributes:
        exchange: The exchange of messages.
        words: Encodes a message to a member.
        opened: Opens a member's signed message; an invalid one is a refusal with the coordinator's reason.
        tasks: Encodes the tasks, with more fields for each member.
        admitted: Reads the answer to a task, with the masked numbers as its vector.
        usable: Whether the round may use an answer.
        log: The audit log.
        out: The run directory.
    """

    exchange: Exchange
    words: Callable[[str, Fields, str], EncodedMessage]
    opened: Callable[[str, Buffer | HushError, str], Message]
    tasks: Callable[[Mapping[str, Fields]], Mapping[str, EncodedMessage]]
    admitted: Callable[[str, Buffer | HushError, str], Answer]
    usable: Callable[[str, Update], bool]
    log: AuditLog
    out: Path


@dataclass(kw_only=True)
class _Progress:
    """One sum, as far as it has come; `left` are the members that are still part of it, by name."""

    plan: SumPlan
    names: Mapping[int, str]
    digest: str
    left: set[str]
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    signed_keys: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    total: Tensor | None = None
    confirmed: dict[int, bytes] = field(default_factory=dict)
    revealed: dict[int, tuple[dict[int, bytes], dict[int, bytes]]] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    found: Sum | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """The client number of each member."""
        return {name: client for client, name in self.names.items()}


class SecureRound:
    """The sums of one round."""

    def __init__(
        self, services: SumServices, run: str, number: int, plans: Sequence[SumPlan], names: Sequence[str],
        asked: Sequence[str], size: int,
    ) -> None:  # fmt: skip
        self._services, self._run, self._number, self._size = services, run, number, size
        self._attempt = uuid.uuid4().hex
        self.seconds: Mapping[str, float] = {}  # how long each answer to a task took
        self._answers: dict[str, Answer] = {}
        before = _noted(services.out, number)
        self._sums = []
        for plan in plans:
            of = {client: names[client] for client in plan.clients}
            left = {name for name in of.values() if name in asked}
            if before and (same := {of[client] for client in plan.clients if client in before}):
                left &= same
            digest = sum_messages.sum_digest(run, number, self._attempt, plan)
            self._sums.append(_Progress(plan=plan, names=of, digest=digest, left=left))
        self._clients = {name: client for each in self._sums for client, name in each.names.items()}

    def collect(self, cap: int) -> SummedAnswers:
        """Run all steps. Returns each member's answer, without its numbers, and the sums that were formed.

        `cap` is the maximum size of an answer to a task.
        """
        self._step(KEYS, self._keys_fields, self._take_keys)
        self._step(SHARES, self._shares_fields, self._take_shares)
        self._masked(cap)
        if any(each.survivors for each in self._sums):
            note = {"round": self._number, "clients": sorted(c for each in self._sums for c in each.survivors)}
            write_atomically(self._services.out / SURVIVORS, to_json(note))
            self._step(CONFIRM, self._confirm_fields, self._take_confirmation)
            self._step(REVEAL, self._reveal_fields, self._take_revealed)
        for each in self._going():
            self._unmask(each)
        return SummedAnswers(list(self._answers.values()), [each.found for each in self._sums if each.found])

    def _going(self) -> list[_Progress]:
        """The sums of which enough members are left."""
        return [each for each in self._sums if len(each.left) >= each.plan.threshold]

    def _of(self, name: str) -> _Progress:
        return next(each for each in self._sums if name in each.numbers)

    def _step(
        self, kind: str, fields: Callable[[_Progress], Fields], take: Callable[[_Progress, int, Message, bytes], None]
    ) -> None:
        """Ask all who are left in sums that are going; who does not answer usably is left out from now on."""
        outgoing: dict[str, EncodedMessage] = {}
        for each in self._going():
            said = {"run": self._run, "round": self._number, "attempt": self._attempt, **fields(each)}
            outgoing |= {name: self._services.words(kind, said, name) for name in sorted(each.left)}
        if not outgoing:
            return
        arrived: set[str] = set()
        why: dict[str, str] = {}

        def judge(name: str, reply: Buffer | HushError) -> Verdict:
            each = self._of(name)
            message = self._services.opened(name, reply, kind)
            if message.kind == REFUSAL:
                why[name] = reason_of(message)
                if name not in self._answers:
                    final = message.fields.get("final") is True
                    self._answers[name] = self._declined(name, why[name], final=final, fault=FAULT in message.fields)
                return Verdict.UNUSABLE if FAULT in message.fields else Verdict.REFUSAL
            try:
                if [message.fields.get(key) for key in ("run", "round", "attempt", "client")] != [
                    self._run, self._number, self._attempt, each.numbers[name],
                ]:  # fmt: skip
                    raise HushError("it answers another step")
                take(each, each.numbers[name], message, b"" if isinstance(reply, HushError) else bytes(reply))
            except Exception as error:  # any error in a reply leaves its sender out, and nobody else
                why[name] = f"refused: {error}"
                if name not in self._answers:
                    self._answers[name] = self._declined(name, why[name], fault=True)
                return Verdict.UNUSABLE
            arrived.add(name)
            return Verdict.USABLE

        least = sum(each.plan.threshold for each in self._going())
        self._services.exchange.ask(outgoing, _CAP, least, judge=judge)
        missing = sorted(set(outgoing) - arrived)
        for each in self._going():
            each.left &= arrived
        for name in missing:
            if name not in self._answers:
                self._answers[name] = self._declined(
                    name, f"no answer in step {kind} of secure aggregation", fault=True
                )
        if missing:
            reasons = {name: why.get(name, "no answer") for name in missing}
            self._services.log.note("missing", run=self._run, round=self._number, step=kind, members=reasons)

    def _declined(self, name: str, reason: str, *, final: bool = False, fault: bool = False) -> Decline:
        return Decline(self._clients[name], self._number, reason, final, fault)

    def _keys_fields(self, each: _Progress) -> Fields:
        return sum_messages.sum_request(each.plan)

    def _take_keys(self, each: _Progress, client: int, message: Message, reply: bytes) -> None:
        each.keys[client] = sum_messages.keys_of(message, each.digest, client)
        each.signed_keys[client] = reply

    def _shares_fields(self, each: _Progress) -> Fields:
        present = {each.numbers[name] for name in each.left}
        return {
            "keys": sum_messages.byte_fields({c: content for c, content in each.signed_keys.items() if c in present})
        }

    def _take_shares(self, each: _Progress, client: int, message: Message, reply: bytes) -> None:
        shares = sum_messages.bytes_of(message.fields.get("shares"))
        if set(shares) != set(each.keys) - {client}:
            raise HushError("its shares are not for those that sent keys")
        each.shares[client] = shares

    def _masked(self, cap: int) -> None:
        """Send the tasks, and add up the masked numbers of the answers that can be used."""
        going = self._going()
        more: dict[str, Fields] = {}
        for each in going:
            senders = {each.numbers[name] for name in each.left}
            for name in sorted(each.left):
                own = each.numbers[name]
                shares = {client: each.shares[client][own] for client in senders if client != own}
                more[name] = {"attempt": self._attempt, "shares": sum_messages.byte_fields(shares)}
        if not more:
            return
        arrived: set[str] = set()

        def judge(name: str, reply: Buffer | HushError) -> Verdict:
            if name in arrived:
                # Asked again after a restart of the SuperLink, a member sends the same numbers.
                return Verdict.USABLE
            each = self._of(name)
            answer = self._answers[name] = self._services.admitted(name, reply, self._attempt)
            if isinstance(answer, Decline):
                return Verdict.UNUSABLE if answer.fault else Verdict.REFUSAL
            numbers = answer.vector
            hidden = VectorFacts(self._size, str(torch.float32), 0.0)
            answer = self._answers[name] = replace(answer, vector=torch.empty(0), vector_facts=hidden)
            if not self._services.usable(name, answer):
                return Verdict.UNUSABLE
            each.total = numbers if each.total is None else each.total.add_(numbers)
            arrived.add(name)
            return Verdict.USABLE

        least = sum(each.plan.threshold for each in going)
        for each in going:
            each.shares = {each.numbers[name]: {} for name in each.left}
        self._services.exchange.ask(self._services.tasks(more), cap, least, judge=judge)
        self.seconds = self._services.exchange.seconds
        for each in going:
            each.left &= arrived
            if len(each.left) >= each.plan.threshold:
                each.survivors = tuple(sorted(each.numbers[name] for name in each.left))

    def _confirm_fields(self, each: _Progress) -> Fields:
        return {"survivors": list(each.survivors)}

    def _take_confirmation(self, each: _Progress, client: int, message: Message, reply: bytes) -> None:
        if sum_messages.survivors_of(message, each.digest, client) != frozenset(each.survivors):
            raise HushError("it confirms another sum")
        each.confirmed[client] = reply

    def _reveal_fields(self, each: _Progress) -> Fields:
        enough = dict(sorted(each.confirmed.items())[: each.plan.threshold])
        return {"confirmed": sum_messages.byte_fields(enough)}

    def _take_revealed(self, each: _Progress, client: int, message: Message, reply: bytes) -> None:
        masks, secrets = (sum_messages.bytes_of(message.fields.get(key)) for key in ("masks", "secrets"))
        if set(masks) != set(each.survivors) or set(secrets) != set(each.shares) - set(each.survivors):
            raise HushError("it reveals shares of other members")
        each.revealed[client] = (masks, secrets)

    def _unmask(self, each: _Progress) -> None:
        if each.total is None:
            return
        try:
            total = unmask(each.total, each.keys, each.shares, each.survivors, each.revealed, each.plan.threshold)
        except HushError as error:
            self._services.log.note("sum lost", run=self._run, round=self._number, reason=str(error))
            return
        each.found = Sum(each.plan, each.survivors, total)
        self._services.log.note(
            "summed", run=self._run, round=self._number, members=[each.names[client] for client in each.survivors],
            threshold=each.plan.threshold,
        )  # fmt: skip


def _noted(out: Path, number: int) -> frozenset[int]:
    """Return the members whose sum was to be formed when this round was begun before; none if it was not."""
    if not (out / SURVIVORS).exists():
        return frozenset()
    found = read_json(out / SURVIVORS)
    return frozenset(found["clients"]) if found["round"] == number else frozenset()
