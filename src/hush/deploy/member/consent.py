"""Consent of a member to a run: proposals wait in its kit until a person approves or declines them.

proposals/DIGEST.json        the preview of a run, written by the member's process
proposals/DIGEST.decision    "approved" or "declined", written by `hush federation approve` and `decline`
proposals/DIGEST.run         the run that uses the approval, written by the member's process

Guarantees:
    - An approval holds for one preview, by its digest over everything that was shown, and for one run. A run that
      differs in anything needs another approval.
    - A run that was approved and charged nothing leaves its approval for the next run of the same preview. After one
      that was charged, the same content is proposed anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hush.config import parse
from hush.deploy.member.policy import MemberPolicy
from hush.deploy.member.preview import Preview, after_json, from_record
from hush.deploy.shared.protocol import read_version
from hush.deploy.shared.refusal import RefusalCode, RefusalError
from hush.server.run_directory import write_atomically
from hush.types import HushError

Decision = Literal["pending", "approved", "declined"]
FOLDER = "proposals"
SHOWN = 12  # digits of a digest that a person sees and types
_MOST_PENDING = 50


@dataclass(frozen=True)
class Proposal:
    """A proposed run: its preview, the decision on it, the run that uses an approval, and when it arrived."""

    preview: Preview
    decision: Decision
    run: str
    arrived: float

    @property
    def name(self) -> str:
        """The first digits of its digest."""
        return self.preview.digest[:SHOWN]


class Consents:
    """The proposals in a member's kit."""

    def __init__(self, kit: Path) -> None:
        self._path = kit / FOLDER

    def listed(self) -> list[Proposal]:
        """All proposals, the newest last."""
        found = [self._read(path) for path in self._path.glob("*.json")]
        return sorted(found, key=lambda each: each.arrived)

    def named(self, name: str | None, decision: Decision | None = None) -> Proposal:
        """Return the proposal whose digest begins with this text, or the only one with this decision."""
        if name is not None:
            found = [each for each in self.listed() if len(name) >= 4 and each.preview.digest.startswith(name)]
        else:
            found = [each for each in self.listed() if decision is None or each.decision == decision]
        if len(found) != 1:
            known = (
                ", ".join(each.name for each in self.listed()) or "none; a coordinator proposes a run when it starts it"
            )
            raise HushError(f"{len(found)} proposals match; give the first digits of one; proposals here: {known}")
        return found[0]

    def decide(self, proposal: Proposal, decision: Literal["approved", "declined"]) -> None:
        """Record a decision; a later one replaces it."""
        write_atomically(self._file(proposal.preview.digest, "decision"), decision.encode())

    def keep(self, preview: Preview) -> tuple[Proposal, bool]:
        """Return what is known of a proposal, and whether it is new; a new one is stored and waits for a decision."""
        path = self._file(preview.digest, "json")
        if path.exists():
            return self._read(path), False
        if sum(each.decision == "pending" for each in self.listed()) >= _MOST_PENDING:
            text = f"{_MOST_PENDING} proposals wait for a decision already; decline those that are not wanted"
            raise RefusalError(RefusalCode.LIMITS, text)
        self._path.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, json.dumps(asdict(preview), indent=2, sort_keys=True).encode())
        return self._read(path), True

    def bind(self, preview: Preview, run: str) -> None:
        """Have a run use the approval."""
        write_atomically(self._file(preview.digest, "run"), run.encode())

    def of_run(self, run: str) -> Proposal | None:
        """Return the proposal whose approval a run uses."""
        for path in self._path.glob("*.run"):
            if _text(path) == run and path.with_suffix(".json").exists():
                return self._read(path.with_suffix(".json"))
        return None

    def _file(self, digest: str, suffix: str) -> Path:
        return self._path / f"{digest}.{suffix}"

    def _read(self, path: Path) -> Proposal:
        try:
            preview = from_record(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise HushError(f"{path}: cannot be read: {error}") from None
        if preview.digest != path.stem:
            raise HushError(f"{path}: was changed after it was written; remove it, and have the run proposed again")
        decision, run = (_text(path.with_suffix(f".{name}")) for name in ("decision", "run"))
        state: Decision = "approved" if decision == "approved" else "declined" if decision else "pending"
        return Proposal(preview, state, run, path.stat().st_mtime)


def asks_why(policy: MemberPolicy, epsilon: float, rounds: int) -> str:
    """Return why a person must approve a run of this cost, or an empty text if the rules of the policy approve it."""
    rules = policy.consent
    if not rules.auto_approve:
        return "consent.auto_approve is off"
    if rules.max_epsilon is not None and epsilon > rules.max_epsilon:
        return f"epsilon {epsilon:.4g} is above consent.max_epsilon {rules.max_epsilon:g}"
    if rules.max_rounds is not None and rounds > rules.max_rounds:
        return f"{rounds} rounds are more than consent.max_rounds {rules.max_rounds}"
    return ""


def decided(consents: Consents, why: str, preview: Preview, run: str, spent: Callable[[str], bool]) -> Proposal:
    """Return the approved proposal of a run, bound to it; or raise a refusal.

    Args:
        consents: The proposals in the kit.
        why: Why a person must approve it.
        preview: What the run asks.
        run: The run.
        spent: Whether a run was charged anything. Its approval is used up then, and the next run of the same content is
            a proposal of its own.
    """
    while True:
        proposal, new = consents.keep(preview)
        if proposal.run in ("", run) or not spent(proposal.run):
            break
        preview = replace(preview, earlier=preview.earlier + 1)
    if proposal.decision == "declined":
        raise RefusalError(RefusalCode.DECLINED, f"proposal {proposal.name} was declined (hush federation decline)")
    if proposal.decision == "pending":
        raise PendingError(f"proposal {proposal.name} waits for a decision: {why}", proposal, new)
    consents.bind(preview, run)
    return replace(proposal, run=run)


class PendingError(RefusalError):
    """The refusal of a run on which nobody has decided; `new` says whether it was proposed for the first time."""

    def __init__(self, text: str, proposal: Proposal, new: bool) -> None:
        super().__init__(RefusalCode.PENDING, text)
        self.proposal, self.new = proposal, new


def differences(
    approved: Preview, config: Mapping[str, Any], code: str, schema: Mapping[str, Any], *, any_code: bool = False
) -> list[str]:
    """Return in which respects the agreement on a run differs from what was approved.

    The number of clients may be smaller, and a learning rate that was left open is computed at enrolment. With
    `any_code` (`accept.code = ["any"]`), other code of the same protocol version is no difference, so that either side
    can be upgraded after the approval.
    """
    # Keys that are newer than the approval have their defaults in it.
    shown = after_json(parse(approved.config).model_dump())
    before, now = ({**each, "data": {**each["data"], "clients": 0}} for each in (shown, config))
    if before["local"]["lr"] == "auto":
        before, now = ({**each, "local": {**each["local"], "lr": 0}} for each in (before, now))
    found = [f"config.{key}" for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    same = code == approved.code or (
        any_code and read_version(code).protocol == read_version(approved.code).protocol > 0
    )
    return [*found, *([] if same else ["code"]), *(["schema"] if schema != approved.schema else [])]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
