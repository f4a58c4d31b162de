"""Secure sums at a member: it masks its updates, and reveals shares for one sum of a round, of enough members.

What is sent in these steps does not depend on rows: masks and keys are random numbers. The update itself is charged,
computed and sealed as without secure aggregation; masks are added to a copy of it on its way out.

Guarantees:
    - Weights, members and range of a sum are those that follow from the agreed run, or nothing is sent.
    - The keys of others are used only if signed with the keys that the run began with.
    - For a round a member confirms a single list of those whose numbers are added up, also after a crash (the list is
      on its disk before it is sent), and reveals nothing unless a threshold of them confirmed the same one. Since any
      two thresholds have a member in common, no second sum of the round can be formed, from which the difference to
      the first would be one member's update.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.deploy.admin import keys
from hush.deploy.shared import sum_messages
from hush.deploy.shared.masks import MaskedMember
from hush.deploy.shared.run_spec import MemberSpec
from hush.deploy.shared.sum_messages import CONFIRM, KEYS, SHARES
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Buffer, Message, want
from hush.recipes.secure_sums import SumPlan
from hush.server.loop import plans_of_sums
from hush.server.run_directory import write_atomically
from hush.types import HushError

_LARGEST_ANSWER = 1 << 20


@dataclass(kw_only=True)
class _Attempt:
    """An attempt at the sum of a round. It is lost with the process."""

    round: int
    name: str
    plan: SumPlan
    digest: str
    member: MaskedMember
    masked: bool = False


class SecureSums:
    """The sums that a member takes part in, one attempt for each run at a time."""

    def __init__(self, records: Path) -> None:
        self._records = records
        self._attempts: dict[str, _Attempt] = {}

    def answer(self, message: Message, own: MemberSpec) -> Message:
        """Return the answer to a message of these steps, or raise a `HushError`."""
        run, number, name = sum_messages.attempt_of(message)
        said = {"run": run, "round": number, "attempt": name, "client": own.client}
        if message.kind == KEYS:
            attempt = self._begun(message, own, run, number, name)
            found: Mapping[str, Any] = {"sum": attempt.digest, **sum_messages.key_fields(attempt.member.keys)}
        elif message.kind == SHARES:
            found = {"shares": sum_messages.byte_fields(self._shares(message, own, self._attempt(run, number, name)))}
        elif message.kind == CONFIRM:
            attempt = self._attempt(run, number, name)
            found = {"sum": attempt.digest, "survivors": sorted(self._confirmed(message, run, attempt))}
        else:
            alive, missing = self._revealed(message, own, run, self._attempt(run, number, name))
            found = {"masks": sum_messages.byte_fields(alive), "secrets": sum_messages.byte_fields(missing)}
        return Message(message.kind, {**said, **found})

    def masking(self, run: str, number: int, name: Any, shares: Any) -> Callable[[Message], Message]:
        """Take the shares that come with a task. Returns what turns the sealed answer into the one that is sent.

        Raises a `HushError`, before anything is charged, if this member cannot mask its answer.
        """
        attempt = self._attempt(run, number, name)
        attempt.member.receive(sum_messages.bytes_of(shares))

        def masked(message: Message) -> Message:
            quantised = attempt.plan.quantised(attempt.member.client, message.tensors["vector"])
            attempt.masked = True
            tensors = {**message.tensors, "vector": attempt.member.masked(quantised)}
            return Message(message.kind, {**message.fields, "attempt": attempt.name}, tensors)

        return masked

    def _attempt(self, run: str, number: int, name: Any) -> _Attempt:
        found = self._attempts.get(run)
        if found is None or (found.round, found.name) != (number, name):
            raise HushError(
                f"secure aggregation: this process has no keys for round {number}; a member that was restarted takes "
                "part again from the next round on"
            )
        return found

    def _begun(self, message: Message, own: MemberSpec, run: str, number: int, name: str) -> _Attempt:
        """Return the attempt that a message begins, with new keys unless it was begun before."""
        *_, clients, weights, step, _ = want(message, "run", "round", "attempt", "clients", "weights", "step", "head")
        if own.sums is None:
            raise HushError("secure aggregation: the agreed run does without it")
        mine = next(plan for plan in plans_of_sums(own.sums, number) if own.client in plan.clients)
        plan = sum_messages.checked_sum(mine, clients, weights, step)
        digest = sum_messages.sum_digest(run, number, name, plan)
        attempt = self._attempts.get(run)
        if attempt is not None and attempt.digest == digest:
            return attempt
        if attempt is not None and attempt.round > number:
            raise HushError(f"secure aggregation: round {attempt.round} has begun; round {number} is over")
        made = _Attempt(
            round=number, name=name, plan=plan, digest=digest, member=MaskedMember(own.client, plan.threshold)
        )
        self._attempts[run] = made
        return made

    def _shares(self, message: Message, own: MemberSpec, attempt: _Attempt) -> dict[int, bytes]:
        *_, received = want(message, "run", "round", "attempt", "head", "keys")
        found = {
            client: sum_messages.keys_of(_signed_by(own, client, content), attempt.digest, client)
            for client, content in sum_messages.bytes_of(received).items()
            if _within(client, attempt.plan)
        }
        return attempt.member.shares(found)

    def _confirmed(self, message: Message, run: str, attempt: _Attempt) -> frozenset[int]:
        *_, received = want(message, "run", "round", "attempt", "head", "survivors")
        survivors, member = sum_messages.numbers(received), attempt.member
        if not attempt.masked or member.client not in survivors or not survivors <= member.summed:
            raise HushError("secure aggregation: a sum without this member, or of others than those that are masked")
        if len(survivors) < attempt.plan.threshold:
            raise HushError(
                f"secure aggregation: a sum of {len(survivors)} members; accepted: {attempt.plan.threshold} or more"
            )
        before = self._confirmation(run)
        # With other weights, however close, the difference of two sums of the same members would tell something.
        same = sum_messages.sum_digest(run, attempt.round, "", attempt.plan)
        now = {"round": attempt.round, "survivors": sorted(survivors), "sum": same}
        if before["round"] > attempt.round or (before["round"] == attempt.round and before != now):
            raise HushError("secure aggregation: this member has confirmed another sum of this round, or a later round")
        if before["round"] < attempt.round:
            write_atomically(self._record(run), json.dumps(now).encode())
        return survivors

    def _revealed(
        self, message: Message, own: MemberSpec, run: str, attempt: _Attempt
    ) -> tuple[dict[int, bytes], dict[int, bytes]]:
        *_, received = want(message, "run", "round", "attempt", "head", "confirmed")
        mine = self._confirmation(run)
        if mine["round"] != attempt.round:
            raise HushError("secure aggregation: this member has not confirmed a sum of this round")
        survivors = frozenset(mine["survivors"])
        agreeing = {
            client
            for client, content in sum_messages.bytes_of(received).items()
            if client in survivors
            and sum_messages.survivors_of(_signed_by(own, client, content), attempt.digest, client) == survivors
        }
        if len(agreeing) < attempt.plan.threshold:
            raise HushError(
                f"secure aggregation: {len(agreeing)} members confirmed this sum; accepted: {attempt.plan.threshold} "
                "or more"
            )
        return attempt.member.reveal(survivors)

    def _confirmation(self, run: str) -> dict[str, Any]:
        """Return what this member last confirmed in a run; round 0 if nothing."""
        record = self._record(run)
        found: dict[str, Any] = json.loads(record.read_bytes()) if record.exists() else {"round": 0}
        return found

    def _record(self, run: str) -> Path:
        return self._records / f"{run}.sum"


def _within(client: int, plan: SumPlan) -> bool:
    if client not in plan.clients:
        raise HushError("secure aggregation: keys of a member that is not in this sum")
    return True


def _signed_by(own: MemberSpec, client: int, content: Buffer) -> Message:
    """Return another member's message, or raise a `HushError` unless it is signed with the key that the run has."""
    public = own.peers.get(client)
    if public is None:
        raise HushError("secure aggregation: a member without a key")
    inner = keys.opened(public, content)
    return messages.decode(inner, _LARGEST_ANSWER, {})


def checked_peers(
    pems: Any, names: list[str], own: int, public: keys.PublicKey, pinned: Mapping[str, str]
) -> dict[int, keys.PublicKey]:
    """Return the members' public keys by number, or raise a `HushError`.

    Args:
        pems: The keys in PEM, by name.
        names: The members of the run.
        own: The number of this member.
        public: Its own key.
        pinned: The fingerprints that this member's policy knows, by name; if there are any, all must be among them.
    """
    if not isinstance(pems, dict) or set(pems) != set(names) or not all(isinstance(pem, str) for pem in pems.values()):
        raise HushError("secure aggregation: accepted: a public key for each member of the run")
    found = {client: keys.load_public(pems[name].encode(), f"the key of {name}") for client, name in enumerate(names)}
    if len({keys.fingerprint(key) for key in found.values()}) < len(found):
        raise HushError("secure aggregation: two members have the same key")
    if keys.fingerprint(found[own]) != keys.fingerprint(public):
        raise HushError("secure aggregation: the key listed for this member is not its own")
    for client, key in found.items():
        if pinned and client != own and pinned.get(names[client]) != keys.fingerprint(key):
            raise HushError(
                f"secure aggregation: {names[client]} has a key with fingerprint {keys.fingerprint(key)}, which "
                "secure_aggregation.peers does not list for it"
            )
    return found
