"""The privacy verdict of a run: headline and explanation at the top of its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hush.pages.document import Tone
from hush.pages.wording import count
from hush.report.read import RunView
from hush.server.participation import nothing_trained, out_of_budget, spent_words
from hush.types import Guarantee

_SLACK = 1e-6
UNPROTECTED = "none"


@dataclass(frozen=True)
class Verdict:
    """A headline, a short label for tables, and the explanation. Texts are not yet escaped."""

    tone: Tone
    mark: str
    headline: str
    words: tuple[str, ...]


def over_budget(guarantee: Guarantee) -> bool:
    """Return whether a client spent more than its budget."""
    spent, budget = guarantee.epsilon_spent, guarantee.epsilon_budget
    return spent is not None and budget is not None and spent > budget * (1 + _SLACK)


def unprotected(view: RunView) -> int:
    """Return the number of clients that sent updates without noise, from the result or from the rounds so far."""
    if view.guarantees:
        return sum(guarantee.noise == UNPROTECTED for guarantee in view.guarantees)
    planned = {client: noise for record in view.records for client, noise in record.noise_planned.items()}
    return sum(noise == 0 for noise in planned.values())


def verdict(view: RunView) -> Verdict:
    """Return the verdict of a run."""
    if view.untrained:
        return _untrained(view)
    bare, spent = unprotected(view), out_of_budget(view.records)
    state = () if view.finished else (_unfinished(view),)
    if spent:
        state = (f"{spent_words(spent, view.clients, view.names)}.", *state)
    if bare:
        return _bare(view, bare, state)
    broken = _broken(view.guarantees)
    if view.noise != "secure":
        words = (
            "Anyone who knows the seed can reproduce the noise and subtract it. Each epsilon on this page is the "
            "guarantee that the same run would have with secure noise. For experiments only.",
        )
        tone: Tone
        tone, also = ("bad", ", over budget") if broken else ("warn", "")
        mark = f"seeded noise{also}"
        return Verdict(tone, mark, "Not private: seeded noise", (*words, *broken, *state))
    if broken:
        return Verdict("bad", "over budget", "A privacy budget was exceeded", (*broken, *state))
    if not view.finished:
        return Verdict("plain", "not finished", f"Not finished: round {view.rounds} of {view.planned_rounds}", state)
    words = ("All updates contain secure noise, and no client spent more than its own budget.",)
    if any(guarantee.warnings for guarantee in view.guarantees):
        headline = "Within every budget, but some guarantees are weak"
        return Verdict("warn", "weak guarantee", headline, (*words, *state))
    return Verdict("good", "within budget", "Private against the server, within every budget", (*words, *state))


def _untrained(view: RunView) -> Verdict:
    spent = out_of_budget(view.records)
    headline = "Nothing was trained" + (": all budgets are exhausted" if len(spent) == view.clients else "")
    said = nothing_trained(spent, view.clients, view.names)
    words = (f"{said[0].upper()}{said[1:]}.", "All scores on this page are those of the initial model.")
    return Verdict("bad", "nothing trained", headline, words)


def _bare(view: RunView, bare: int, state: Sequence[str]) -> Verdict:
    known = len(view.guarantees) or view.clients
    everyone = bare == known or not view.guarantees
    whom = "" if everyone else f" for {bare} of {count(known, 'client')}"
    words = (
        f"{'The clients' if everyone else 'These clients'} send their updates without noise, so the server can learn "
        "about any of their training examples. Use this only to measure the cost of privacy.",
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
        f"Round {view.rounds} of {view.planned_rounds}, not finished. The completed rounds have already "
        "consumed budget; the amounts, and what is not covered, are reported when the run ends."
    )
