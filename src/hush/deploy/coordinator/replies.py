"""Replies as the coordinator parses them: signature, header and fields are checked before the update is validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from hush.deploy.admin import keys
from hush.deploy.shared.extras import EXTRAS, RELEASES, packed
from hush.deploy.shared.refusal import REFUSAL
from hush.deploy.transport import messages
from hush.deploy.transport.messages import EncodedMessage, Message
from hush.privacy.ledger.ledger import claimed_receipt
from hush.privacy.schedule import RoundSpec
from hush.privacy.side_release import ReleaseShape
from hush.server.half_precision import restored
from hush.types import HushError, SideAnswers, Task, Update

_SMALL = 64
_EXPONENT = 160  # of two, within which the numbers of an update lie


def task_message(run: str, task: Task, *, halves: bool = False) -> Message:
    """Return a task as it is sent, without the head of the member's ledger; `halves`: models as 16-bit numbers."""
    extras = {f"{EXTRAS}{name}": value for name, value in packed(task.extras).items()}
    models = task.models.half() if halves else task.models
    return Message("task", {"run": run, "round": task.round}, {"models": models, **extras})


class SentTasks:
    """The tasks of a round as they are sent. Members with the same task share its encoding and its digest.

    Attributes:
        digests: By member, the digest of its task, which its answer repeats.
    """

    def __init__(self, run: str, asked: Mapping[str, Task], *, halves: bool = False) -> None:
        self._groups: dict[tuple[object, ...], tuple[Message, list[str]]] = {}
        self.digests: dict[str, str] = {}
        for name, task in asked.items():
            same = _contents(task_message(run, task))
            if same not in self._groups:
                self._groups[same] = (task_message(run, task, halves=halves), [])
            self._groups[same][1].append(name)
        for message, names in self._groups.values():
            self.digests |= dict.fromkeys(names, messages.digest(message))

    def encode_each(
        self, heads: Mapping[str, str], more: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, EncodedMessage]:
        """Return the messages by member, each with the latest head of its ledger.

        With `more` fields for some members, only these get one.
        """
        made: dict[str, EncodedMessage] = {}
        for message, names in self._groups.values():
            each = {
                name: {"head": heads.get(name, ""), **({} if more is None else more[name])}
                for name in names
                if more is None or name in more
            }
            made |= messages.encode_each(message, each)
        return made


def _contents(message: Message) -> tuple[object, ...]:
    """What tells tasks of a round apart: large tensors by where they are in memory, others by their values."""
    return tuple(
        (name, str(value.dtype), tuple(value.shape), *_identity(value))
        for name, value in sorted(message.tensors.items())
    )


def _identity(value: Tensor) -> tuple[object, ...]:
    return (value.data_ptr(), value.stride()) if value.numel() > _SMALL else tuple(value.flatten().tolist())


def expected(
    task: Task, spec: RoundSpec, shape: ReleaseShape, *, masked: bool = False, halves: bool = False
) -> messages.Spec:
    """The types and shapes of the tensors in an answer to a task: `masked` are integers, `halves` of 16 bits."""
    side = {f"{RELEASES}{release.what}": ("F64", (release.width(shape),)) for release in spec.sent}
    return {"vector": ("I32" if masked else "F16" if halves else "F32", (task.answer.size,)), **side}


def opened(
    public: ec.EllipticCurvePublicKey, reply: messages.Buffer | HushError, kind: str, expected: messages.Spec
) -> Message:
    """Return a member's message after checking signature and header, or raise a `HushError`.

    `expected` lists the tensors of an answer of the expected kind. Messages of other kinds contain none.
    """
    if isinstance(reply, HushError):
        raise reply
    content = keys.opened(public, reply)
    spec = expected if messages.kind_of(content) == kind else {}
    message = messages.decode(content, len(content), spec)
    if message.kind not in (kind, REFUSAL):
        raise HushError(f"an answer of kind {message.kind[:20]!r}")
    if message.kind == REFUSAL:
        messages.want(message, "run", "code", "final")
    return message


def update_of(
    message: Message, run: str, name: str, task: Task, digest: str, attempt: str | None = None, *, halves: bool = False
) -> Update:
    """Return the update in an answer to a task, or raise a `HushError` if it answers another run, member or task.

    `digest` is that of the task as it was sent, `attempt` the one of secure aggregation, `halves` whether updates are
    sent as 16-bit numbers.
    """
    answered_run, number, client, serial, head, asked, choice, *more = messages.want(
        message, "run", "round", "client", "serial", "head", "asked", "choice",
        *(() if attempt is None else ("attempt",)), *(("exponent",) if halves else ()),
    )  # fmt: skip
    if attempt is not None and more[0] != attempt:
        raise HushError("it is masked for another attempt")
    if type(number) is not int or type(serial) is not int or not isinstance(head, str):
        raise HushError("its fields do not have the requested types")
    if choice is not None and type(choice) is not int:
        raise HushError("its choice is not an integer")
    if (answered_run, client) != (run, name):
        raise HushError("it answers another run or member")
    if number == task.round and asked != digest:
        raise HushError("it answers another task of this round")
    receipt = claimed_receipt(task.client, number, serial, run, head[:200])
    tensors = dict(message.tensors)
    vector = tensors.pop("vector")
    if halves:
        if type(more[-1]) is not int or abs(more[-1]) > _EXPONENT:
            raise HushError("its exponent is not that of an update")
        vector = restored(vector, more[-1])
    releases = {name.removeprefix(RELEASES): answer for name, answer in tensors.items()}
    return Update(
        client=task.client,
        round=number,
        vector=vector,
        layout=task.answer,
        receipt=receipt,
        side=SideAnswers(choice=choice, releases=releases),
    )
