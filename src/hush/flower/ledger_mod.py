"""The ledger mod of a Flower client: no reply leaves that the client's ledger has not charged and sealed.

The trainer charges, since a charge belongs to what is trained; the mod checks that it did, once for the round.

Guarantees:
    - Only training messages reach the app. A reply is let through if the ledger holds a sealed answer for its run and
      round, and every array in it is one that this answer released.
    - Metrics leave if they are the facts of the plan, as sealed, or are listed in `public`, which the card names as not
      covered. Records of another kind do not leave.
    - An error of the app is reported to the server without its text, which may contain rows; the client's log has it.

Edge cases:
    - A message of evaluation is refused: metrics of held-out rows are not noised. Evaluate on the server, on public
      rows.
    - Mods that come after this one, and other programs on the machine, can send what they like.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from hush.flower.reply import run_and_round
from hush.privacy.ledger import BudgetSpentError, Ledger, witness
from hush.private_trainer import array_print, sealed_release
from hush.simulation import path_argument
from hush.types import HushError, Policy

_log = logging.getLogger("hush")
CARD = "guarantee"
_TRAIN = "train"
_CONFIG = "config"
Call = Callable[[Message, Context], Message]


def ledger_mod(
    ledger: str | Path | Callable[[Context], str | Path],
    *,
    policy: Policy | None = None,
    public: Sequence[str] = (),
    config: str = _CONFIG,
) -> Callable[[Message, Context, Call], Message]:
    """A mod for `ClientApp(mods=[...])` that lets a reply leave only if the client's ledger has charged and sealed it.

    Every reply gets the record `guarantee`: epsilon spent and left, delta, and what is not covered.

    Args:
        ledger: The ledger file of the client's `hush.PrivateTrainer`; or a function of Flower's context, for apps that
            are several clients.
        policy: The budget for the life of the ledger: a looser one is tightened to it before anything is trained.
        public: Names of metrics that may leave without noise. No epsilon covers them.
        config: The name of the record with `server-round`.
    """
    if policy is not None and not isinstance(policy, Policy):
        raise HushError(f"policy: found {type(policy).__name__}; accepted: hush.Policy(epsilon=1.0, delta=1e-5)")
    if isinstance(public, str) or not all(isinstance(name, str) for name in public):
        raise HushError(f"public: found {public!r:.80}; accepted: a list of names of metrics")
    allowed = frozenset(public)

    def mod(message: Message, context: Context, call_next: Call) -> Message:
        try:
            kind = message.metadata.message_type.partition(".")[0]
            if kind != _TRAIN:
                return _refused(message, f"{kind} messages are not answered: metrics of rows would leave without noise")
            path = path_argument("ledger", ledger(context) if callable(ledger) else ledger)
            run, number = run_and_round(message, config)
            if policy is not None:
                _keep(path, policy)
            reply = call_next(message, context)
            if reply.has_error():
                return _refused(message, "the client could not train; its log says why")
            return _carded(path, reply, run, number, allowed)
        except BudgetSpentError as error:
            _log.warning("%s", error)
            return _refused(message, "budget spent: the client's ledger does not cover this round")
        except Exception:  # its text may hold what nobody may learn
            _log.exception("refused a message")
            return _refused(message, "the client refused; its log says why")

    return mod


def _keep(path: Path, policy: Policy) -> None:
    """Have the ledger keep this policy or a stricter one."""
    with witness.here().locked():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            Ledger.create(path, path.stem, policy).close()
            return
        with Ledger.open(path) as ledger:
            kept = ledger.terms.policy
            if kept.relation != policy.relation:
                raise HushError(
                    f"policy: found {policy.relation}, and {path} keeps {kept.relation}; accepted: the same"
                )
            ledger.tighten(Policy(min(kept.epsilon, policy.epsilon), min(kept.delta, policy.delta), kept.relation))


def _carded(path: Path, reply: Message, run: str, number: int, public: frozenset[str]) -> Message:
    """The reply with the guarantee card, if the ledger released all of it; else a `HushError`."""
    if not path.exists():
        raise HushError(f"{path}: no ledger; accepted: that of the hush.PrivateTrainer in the app")
    with Ledger.open(path) as ledger:
        kept = ledger.sealed(run, number)
        if kept is None:
            raise HushError(f"{path}: nothing is charged and sealed for this round; accepted: what a trainer released")
        policy, release = ledger.terms.policy, sealed_release(kept[1])
        card = {
            "epsilon-spent": ledger.spent(),
            "epsilon-left": ledger.left(),
            "epsilon-budget": policy.epsilon,
            "delta": policy.delta,
            "relation": policy.relation,
            "accountant": ledger.terms.accountant,
            "not-covered": [
                *release.not_covered,
                *(f"{name}: a metric that leaves without noise" for name in sorted(public)),
            ],
        }
    content: RecordDict = reply.content
    for record in content.array_records.values():
        if other := [name for name, array in record.items() if array_print(array.numpy()) not in release.prints]:
            raise HushError(f"reply: {', '.join(other)[:200]} is not what the ledger released; accepted: its weights")
    metrics = [pair for record in content.metric_records.values() for pair in record.items()]
    own = release.facts.items()
    if other := [name for name, value in metrics if name not in public and (name, value) not in own]:
        raise HushError(f"reply: the metrics {', '.join(other)[:200]} are not noised; accepted: names listed in public")
    if content.config_records:
        raise HushError(f"reply: config records {', '.join(content.config_records)}; accepted: none")
    content[CARD] = ConfigRecord(card)
    return reply


def _refused(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=f"hush: {reason}"), reply_to=message)
