"""Sections of a certificate: what a run guarantees, in sentences for people who are not experts.

Every number comes with a sentence that says what it means, and no formula stands alone. `sections` depends on the facts
alone, so that equal facts give equal sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hush.certificate.facts import Facts
from hush.privacy.noise import SECURE

_ROWS = 10  # of the table; clients with equal numbers share one
_NAMES = 3
_ONE = {"row": "one row of data", "person": "one person's data", "client": "one participant's data"}
_MANY = {"row": "rows", "person": "persons", "client": "participants"}
Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True)
class Section:
    """A heading, sentences, and points of a list."""

    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Content:
    """All that a certificate says.

    Attributes:
        tone: How good the news is.
        headline: The most important sentence.
        summary: What to know first.
        heads: The columns of the table of numbers.
        rows: Its rows.
        reading: How to read the table.
        sections: Everything else.
    """

    tone: Tone
    headline: str
    summary: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    reading: tuple[str, ...]
    sections: tuple[Section, ...]


def content(facts: Facts) -> Content:
    """Return what the certificate of these facts says."""
    tone, headline, summary = _verdict(facts)
    return Content(
        tone=tone,
        headline=headline,
        summary=summary,
        heads=("participant", "protects one of", "epsilon spent", "epsilon allowed", "delta", "right guesses in 100",
               "by common practice"),
        rows=_rows(facts),
        reading=_reading(facts),
        sections=(_who(facts), _whom(), _assumed(facts), _gaps(facts), _audited(facts), _about(facts)),
    )  # fmt: skip


def right_guesses(epsilon: float, delta: float) -> float:
    """Return the largest chance to guess rightly, from even odds, whether a unit's data was used."""
    return min(1.0, (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon)))


def practice(epsilon: float | None) -> str:
    """Return how an epsilon is usually judged (Ponomareva et al. 2023, section 5.2.1)."""
    if epsilon is None:
        return "no guarantee"
    return "strong" if epsilon <= 1.0 else "reasonable" if epsilon <= 10.0 else "weak"


def _verdict(facts: Facts) -> tuple[Tone, str, tuple[str, ...]]:
    clients = facts["clients"]
    unit = _ONE[_unit(clients)]
    if not facts["trained"]:
        return (
            "bad",
            "Nothing was trained",
            ("No participant could afford a round, so nothing was released of its data.",),
        )
    if any(client["noise"] == "none" for client in clients):
        return "bad", "No privacy guarantee", (
            "Updates were sent without noise, or with noise that is not known to suffice. Whoever received them can "
            "learn "
            "about single participants' data.",
        )  # fmt: skip
    if unknown := [client["name"] for client in clients if client["epsilon"] is None]:
        return "warn", "Not all guarantees are known here", (
            f"{_listed(unknown)} declared a budget with noise, which hides what was spent from whoever wrote this. The "
            "participant's own ledger has it.",
        )  # fmt: skip
    epsilons = [client["epsilon"] for client in clients]
    span = f"epsilon {_number(min(epsilons))}" + (
        "" if min(epsilons) == max(epsilons) else f" to {_number(max(epsilons))}"
    )
    if any(client["noise"] != SECURE for client in clients):
        return "warn", "An experiment: not private", (
            "The noise follows from a seed, so whoever knows the seed can remove it. The numbers are what the same run "
            f"would guarantee with secure noise: {span}.",
        )  # fmt: skip
    if any(client["budget"] is not None and client["epsilon"] > client["budget"] * (1 + 1e-6) for client in clients):
        return "bad", "A privacy budget was exceeded", (f"What was spent ({span}) is more than a participant allowed.",)
    worst = max(clients, key=lambda client: float(client["epsilon"]))
    guesses = 100 * right_guesses(worst["epsilon"], worst["delta"])
    lines = (
        f"How much {unit} can show in anything that was sent is bounded: {span}, within every participant's budget.",
        f"At worst somebody who knows everything else guesses rightly {guesses:.1f} times in 100 whether it was "
        "used, where a coin is "
        "right 50 times. Known attacks find far less than such bounds allow; only the bound is guaranteed.",
    )
    if worst["epsilon"] > 10.0 or any(client["warnings"] for client in clients):
        return "warn", "Within every budget, but some guarantees are weak", lines
    return "good", "Protected, within every budget", lines


def _rows(facts: Facts) -> tuple[tuple[str, ...], ...]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for client in facts["clients"]:
        epsilon, delta = client["epsilon"], client["delta"]
        private = client["noise"] != "none"
        guesses = "100" if epsilon is None else f"{100 * right_guesses(epsilon, delta):.1f}"
        key: tuple[str, ...] = (
            _MANY[client["unit"]] if client["unit"] == "client" else f"{client['units']:,} {_MANY[client['unit']]}",
            "no bound" if epsilon is None else _number(epsilon),
            "no limit" if client["budget"] is None else _number(client["budget"]),
            f"{delta:g}",
            guesses,
            practice(epsilon),
        )
        if epsilon is None and private:
            key = (key[0], *["not known here"] * 2, f"{delta:g}", *["not known here"] * 2)
        groups.setdefault(key, []).append(client["name"])
    rows = [(_listed(names), *key) for key, names in groups.items()]
    if len(rows) > _ROWS:
        rest = sum(len(names) for names in list(groups.values())[_ROWS:])
        rows = [*rows[:_ROWS], (f"{rest} more: see the signed file", "", "", "", "", "", "")]
    return tuple(rows)


def _reading(facts: Facts) -> tuple[str, ...]:
    unit = _ONE[_unit(facts["clients"])]
    finite = [client for client in facts["clients"] if client["epsilon"] is not None]
    example: tuple[str, ...] = ()
    if finite:
        worst = max(finite, key=lambda client: float(client["epsilon"]))
        factor = math.exp(min(700.0, worst["epsilon"]))
        example = (
            f"For participant {worst['name']} it is {_number(worst['epsilon'])}: whatever the server saw is at most "
            f"{_times(factor)} times as likely with {unit} as without it.",
        )
    words = "with other data in its place" if any(c["relation"] == "replace-one" for c in finite) else "without it"
    return (
        f"Epsilon says how much {unit} can change what is seen, compared with a world {words}. Smaller is better, "
        "and 0 would mean that nothing depends on the data.",
        *(text if words == "without it" else text.replace("without it", words) for text in example),
        "Delta is a small probability with which this may fail. It should be well below one in the number that is "
        "protected.",
        f"Right guesses: somebody knows everything except whether {unit} was used, with even odds, and guesses from "
        "all "
        "that was sent. A coin is right 50 times in 100. With this guarantee nobody is right more often than the "
        "table says "
        "(that is (e^epsilon + delta) / (1 + e^epsilon)).",
        "Common practice: a guide of 2023 (Ponomareva et al., How to DP-fy ML) calls an epsilon up to 1 strong, up "
        "to 10 reasonable, and "
        "above 10 weak. The redistricting data of the United States census of 2020 were published with 19.61. Such "
        "numbers compare only where the same unit is protected.",
    )  # fmt: skip


def _who(facts: Facts) -> Section:
    unit = _unit(facts["clients"])
    texts = {
        "row": "One row of data of one participant. Whoever has several rows is protected less: with k rows, roughly k "
        "times the epsilon.",
        "person": "One person (a patient, a customer) with all of this person's rows at a participant, however many "
        "they are. A person with rows at several participants is protected at each for what that one sent.",
        "client": "One participant with all of its data: what is bounded is how much its updates can show of anything "
        "in them.",
    }
    groups = [group for client in facts["clients"] for group in client["row_groups"]]
    more: tuple[str, ...] = ()
    if groups:
        listed = sorted({(group["budget"], group["epsilon"]) for group in groups})
        shown = "; ".join(f"budget {_number(budget)}: {_number(epsilon)} spent" for budget, epsilon in listed[:6])
        more = (f"Rows have budgets of their own, each of which holds: {shown}.",)
    how = (
        "The protection holds by mathematics: noise was added before anything left the participant, and no later "
        "analysis of what was sent can weaken it."
    )
    return Section("Who is protected", (texts[unit], how, *more))


def _whom() -> Section:
    return Section(
        "Against whom",
        (
            "Against the server, which sees every update, and so against everybody who sees less: other "
            "participants, users of the model, "
            "anybody to whom it is given. Also if they know all other data, work together, or keep everything for "
            "later.",
            "Not against whoever controls the participant's own computers, where the data are as they are.",
        ),
    )


def _assumed(facts: Facts) -> Section:
    clients = facts["clients"]
    points = [
        "Each participant ran this software unchanged, on a machine that it trusts.",
        "The random numbers are those of the operating system and of AES-256 or ChaCha20, which nobody can predict.",
        "What is called public below may be made public.",
    ]
    if _unit(clients) == "person":
        points.append("The column that names persons is right: two keys for one person make two persons.")
    if facts["lasting"]:
        points.append(
            "Ledgers record every release durably, for the life of the data; the numbers include earlier runs."
        )
    else:
        points.append(
            "The numbers are for this run alone: no ledger outlives it, so other runs on the same data add to them."
        )
    points.append(
        "Each bound rests on a named theorem (docs/proofs.md). Rounding of the noise itself is not covered, unless "
        "it is discrete."
    )
    return Section("What is assumed", points=tuple(points))


def _gaps(facts: Facts) -> Section:
    always = "how long a participant computes, and how much memory it takes, which depend a little on its data"
    return Section("What is not covered", points=(*facts["not_covered"], always))


def _audited(facts: Facts) -> Section:
    audit, recomputed, lines = facts["audit"], facts["recomputed"], list[str]()
    if recomputed is not None:
        lines.append(
            f"All {recomputed['figures']} figures of the guarantee were recomputed from the recorded charges with "
            "another library "
            "(dp-accounting); none differs."
        )
    if audit is None:
        lines.append(
            "This run was not attacked as a test. The software is: its tests plant errors in it and attack every "
            "kind of release "
            "(docs/audit.md), which is evidence about the software and none about this run."
        )
        return Section("What was audited", tuple(lines))
    bound, claim = audit["epsilon_lower"], audit["epsilon_claimed"]
    releases = ", ".join(each["what"] for each in audit["releases"] if each["audited"])
    judged = (
        "The attack found more than the guarantee allows: it must not be relied upon."
        if bound > claim
        else "It found no more than is allowed. An attack that finds little proves nothing; one that found more "
        "would refute the guarantee."
    )
    lines += [
        f"The training of {audit['client']} was repeated and attacked by somebody who sees everything and knows all "
        "other data. The attack "
        f"shows an epsilon of at least {_number(bound)}, with {100 * audit['confidence']:g} % confidence; "
        f"{_number(claim)} is what the "
        f"guarantee allows. {judged}",
        f"Looked at: {releases or 'nothing'}. Not looked at: "
        f"{', '.join(audit['not_audited']) or 'nothing that was released'}.",
    ]
    return Section("What was audited", tuple(lines))


def _about(facts: Facts) -> Section:
    where = {
        "simulation": "a simulation in one process",
        "federation": f"the federation {facts['federation']}",
        "delivery": f"the federation {facts['federation']}, as its coordinator computes it for this member",
    }[facts["kind"]]
    return Section(
        "About the run",
        (
            f"{facts['recipe']}, {facts['model']}, data: {facts['data']}; {facts['rounds']} rounds "
            f"({facts['ended']}); {where}. "
            f"Run {facts['run']}, {facts['started']}; config {facts['config_hash'][:16]}; Hush "
            f"{facts['versions'].get('hush', '?')}, "
            f"PyTorch {facts['versions'].get('torch', '?')}.",
        ),
    )


def _unit(clients: Sequence[Mapping[str, Any]]) -> str:
    return str(clients[0]["unit"]) if clients else "row"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"


def _number(value: float) -> str:
    """A number with three significant digits, rounded up, since it bounds something."""
    if value <= 0.0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    above = math.ceil(round(value / unit, 6)) * unit
    return f"{above:.3g}" if above < 1000 else f"{above:,.0f}"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 100 else f"{factor:,.0f}" if factor < 1e6 else f"{factor:.1g}"
