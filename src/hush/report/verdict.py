"""The first thing a reader must know: whether this run was private, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hush.report.read import RunView
from hush.report.words import count
from hush.types import Guarantee

Tone = Literal["good", "plain", "warn", "bad"]
_SLACK = 1e-6
UNPROTECTED = "none"


@dataclass(frozen=True)
class Verdict:
    """A headline, a short mark for tables, and the sentences that explain it. Texts are not yet escaped."""

    tone: Tone
    mark: str
    headline: str
    words: tuple[str, ...]


def over_budget(guarantee: Guarantee) -> bool:
    """Whether a client spent more than it had allowed."""
    spent, budget = guarantee.epsilon_spent, guarantee.epsilon_budget
    return spent is not None and budget is not None and spent > budget * (1 + _SLACK)


def unprotected(view: RunView) -> int:
    """How many clients sent updates without noise; before the result is there, the rounds tell."""
    if view.guarantees:
        return sum(guarantee.noise == UNPROTECTED for guarantee in view.guarantees)
    planned = {client: noise for record in view.records for client, noise in record.noise_planned.items()}
    return sum(noise == 0 for noise in planned.values())


def verdict(view: RunView) -> Verdict:
    """Judge a run."""
    bare = unprotected(view)
    state = () if view.finished else (_unfinished(view),)
    if bare:
        return _bare(view, bare, state)
    broken = _broken(view.guarantees)
    if view.noise != "secure":
        words = (
            "Whoever knows the seed can draw the same noise again and subtract it. Each epsilon on this page is what "
            "the same run would promise with secure noise. For experiments only.",
        )
        tone: Tone
        tone, also = ("bad", ", over budget") if broken else ("warn", "")
        mark = f"replayable noise{also}"
        return Verdict(tone, mark, "Not private: replayable noise", (*words, *broken, *state))
    if broken:
        return Verdict("bad", "over budget", "A promise was broken", (*broken, *state))
    if not view.finished:
        return Verdict("plain", "not finished", f"Not finished: round {view.rounds} of {view.planned_rounds}", state)
    words = ("Each client's updates were noised with secure noise, and none spent more than its own budget.",)
    return Verdict("good", "within budget", "Private toward the server, within every budget", words)


def _bare(view: RunView, bare: int, state: Sequence[str]) -> Verdict:
    known = len(view.guarantees) or view.clients
    everyone = bare == known or not view.guarantees
    whom = "" if everyone else f" for {bare} of {count(known, 'client')}"
    words = (
        f"{'The clients' if everyone else 'These clients'} send their updates without noise, so the server can learn "
        "about any of their training examples. Use it only to see what privacy costs.",
    )
    return Verdict("bad", "no privacy", f"No privacy{whom}", (*words, *state))


def _broken(guarantees: Sequence[Guarantee]) -> tuple[str, ...]:
    number = sum(map(over_budget, guarantees))
    if not number:
        return ()
    whose = "its" if number == 1 else "their"
    return (f"{number} of {count(len(guarantees), 'client')} spent more than {whose} own budget.",)


def _unfinished(view: RunView) -> str:
    return (
        f"Round {view.rounds} of {view.planned_rounds}, not finished. The rounds that are done have cost privacy "
        "already; what each client spent, and what no epsilon covers, is written when the run ends."
    )
