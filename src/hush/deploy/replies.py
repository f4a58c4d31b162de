"""Replies as the coordinator reads them: signature, header, words, and only then an update for the gate."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec

from hush.deploy import keys, wire
from hush.deploy.wire import Letter
from hush.privacy.ledger.ledger import stated
from hush.types import HushError, Task, Update

_NO = "no"


def letter_of(run: str, task: Task) -> Letter:
    """A task as it is sent, but for the head of the member's ledger."""
    notes = {f"notes.{note}": value for note, value in task.notes.items()}
    return Letter("task", {"run": run, "round": task.round}, {"models": task.models, **notes})


def opened(public: ec.EllipticCurvePublicKey, reply: bytes | HushError, kind: str, expected: wire.Spec) -> Letter:
    """A member's letter, its signature and header checked before it is decoded; or a `HushError`.

    `expected` are the numbers in an answer of the kind that is waited for. Any other has none.
    """
    if isinstance(reply, HushError):
        raise reply
    content = keys.opened(public, reply)
    spec = expected if wire.kind_of(content) == kind else {}
    letter = wire.decode(content, len(content), spec)
    if letter.kind not in (kind, _NO):
        raise HushError(f"an answer of kind {letter.kind[:20]!r}")
    return letter


def update_of(letter: Letter, run: str, name: str, task: Task, far: float) -> Update:
    """The update in an answer to a task; or a `HushError` if it answers another, or says what it was not asked.

    `far` is how far from a half an honest fraction of gradients below the clip can be.
    """
    told_run, number, client, serial, head, asked, notes = wire.want(
        letter, "run", "round", "client", "serial", "head", "asked", "notes"
    )
    if type(number) is not int or type(serial) is not int or not isinstance(head, str) or not _numbers(notes):
        raise HushError("its words are not of the kind that was asked for")
    wanted = {"choice"} if "choice" in notes else set()
    wanted |= {"below"} if "clip" in task.notes else set()
    if (told_run, client) != (run, name) or set(notes) != wanted:
        raise HushError("it answers another run or member, or says what it was not asked")
    if "below" in wanted and abs(notes["below"] - 0.5) > far:
        raise HushError(f"its fraction is beyond the {far:.4g} from a half that its plan can reach")
    if number == task.round and asked != wire.digest(letter_of(run, task)):
        raise HushError("it answers another task of this round")
    receipt = stated(task.client, number, serial, run, head[:200])
    facts = {key: float(value) for key, value in notes.items()}
    return Update(task.client, number, letter.tensors["vector"], task.answer, receipt, facts)


def _numbers(notes: object) -> bool:
    return isinstance(notes, dict) and all(type(value) in (int, float) and abs(value) < 1e9 for value in notes.values())
