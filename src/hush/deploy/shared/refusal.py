"""The refusal of a member: one code of a fixed list, and nothing else.

A code follows from the message, the member's policy and its ledger. Figures, paths and error texts stay in the member's
own log, because any of them may depend on its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from hush.deploy.transport.messages import Message
from hush.privacy.ledger import BrokenLedgerError, BudgetSpentError
from hush.types import HushError

REFUSAL = "no"
FAULT = "fault"


class RefusalCode(StrEnum):
    """Why a member refuses."""

    MESSAGE = "message"
    PENDING = "pending"
    DECLINED = "declined"
    CLOSED = "closed"
    PROTOCOL = "protocol"
    SOFTWARE = "software"
    OFFER = "offer"
    CONFIG = "config"
    SCHEMA = "schema"
    LIMITS = "limits"
    ENROLMENT = "enrolment"
    AGREEMENT = "agreement"
    TASK = "task"
    SUM = "sum"
    BUDGET = "budget"
    LEDGER = "ledger"
    FAILED = "failed"


MEANING: Mapping[RefusalCode, str] = {
    RefusalCode.MESSAGE: "the message is malformed or of an unknown type",
    RefusalCode.PENDING: "nobody has approved the run at the member yet (hush federation preview KIT)",
    RefusalCode.DECLINED: "the member declined the run",
    RefusalCode.CLOSED: "its policy allows no run at this hour, or no further run within 24 hours",
    RefusalCode.PROTOCOL: "its version of Hush and the coordinator's have different protocol versions (hush federation "
    "doctor shows both)",
    RefusalCode.SOFTWARE: "its policy (accept.code) does not list the code of both sides",
    RefusalCode.OFFER: "its policy ([accept]) does not accept the recipe, the model, the noise or the releases",
    RefusalCode.CONFIG: "no valid plan exists for the config",
    RefusalCode.SCHEMA: "its schema does not match the run's",
    RefusalCode.LIMITS: "the run exceeds the limits of its policy ([limits])",
    RefusalCode.ENROLMENT: "the run's data about this member differs from what it declared, or it has not enrolled",
    RefusalCode.AGREEMENT: "it has not agreed to this run, or has agreed to a different run with this name",
    RefusalCode.TASK: "the task does not belong to the agreed run, or its round was already answered",
    RefusalCode.SUM: "the sum of this round is not the agreed one, or the member has lost its keys for it",
    RefusalCode.BUDGET: "its budget is exhausted",
    RefusalCode.LEDGER: "its ledger is an old copy or a different ledger",
    RefusalCode.FAILED: "the member failed; see its own log",
}


class RefusalError(HushError):
    """A refusal: a code for the coordinator, and a text for the member's own log."""

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def refusing(code: RefusalCode) -> Iterator[None]:
    """Convert errors within to a refusal with this code, except disk errors and errors that have a code."""
    try:
        yield
    except (OSError, RefusalError, BudgetSpentError, BrokenLedgerError):
        raise
    except Exception as error:  # anything in a coordinator's message may be invalid
        text = str(error) if isinstance(error, HushError) else f"invalid message: {error!r}"
        raise RefusalError(code, text) from error


_FINAL = (RefusalCode.BUDGET, RefusalCode.DECLINED)


def code_of(error: Exception) -> RefusalCode:
    """The code with which an error is answered."""
    if isinstance(error, RefusalError):
        return error.code
    if isinstance(error, BudgetSpentError):
        return RefusalCode.BUDGET
    return RefusalCode.LEDGER if isinstance(error, BrokenLedgerError) else RefusalCode.FAILED


def refusal(run: str, error: Exception) -> Message:
    """The answer to a refused message: its size depends on the code alone."""
    code = code_of(error)
    return Message(REFUSAL, {"run": run, "code": code.value, "final": code in _FINAL})


def reason_of(message: Message) -> str:
    """A refusal in words, on the coordinator's side: no text comes from the wire.

    `FAULT` is an error that the coordinator itself found in an answer; members do not send it.
    """
    if FAULT in message.fields:
        return str(message.fields[FAULT])
    found = str(message.fields.get("code"))
    known = {code.value: words for code, words in MEANING.items()}
    return known.get(found, "unknown reason")
