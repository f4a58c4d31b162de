"""A statement of the content of a ledger file, for users and auditors. Only `adopt` changes a ledger.

Guarantees:
    - Spending is computed from the costs of every row, after the whole ledger has been checked.
    - `export` returns every row as it is stored, so that a third party can recompute the hashes and the epsilon.

Edge cases:
    - For a damaged ledger `describe` reports the damage and no numbers, which would prove nothing.
    - A file that is not a ledger, or has a newer version, is a `HushError`. Infinity is None, for JSON.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hush.privacy import ledger_check
from hush.privacy.accounting.cost import of_group
from hush.privacy.ledger import account, book, ledger, totals, witness
from hush.privacy.ledger.errors import BrokenLedgerError
from hush.privacy.ledger_check import Figure
from hush.types import HushError


def describe(path: str | Path) -> dict[str, Any]:
    """Return the client, epsilon spent and left, and the state of the charges."""
    try:
        rows, ledger_book, vouched = ledger.examine(path)
    except BrokenLedgerError as error:
        return {"path": str(path), "chain_ok": False, "fault": str(error)}
    policy, accountant = ledger_book.terms.policy, ledger_book.terms.accountant
    spent, filtered = totals.epsilon(ledger_book.totals, policy, accountant), account.filtered(ledger_book)
    states = Counter(charge.state for charge in ledger_book.charges.values())
    charges = Counter(charge.row.run for charge in ledger_book.charges.values())
    return {
        "path": str(path),
        "chain_ok": True,
        "client": ledger_book.terms.client,
        "policy": {
            "epsilon": _finite(policy.epsilon),
            "delta": policy.delta,
            "relation": policy.relation,
            "unit": policy.unit,
        },
        "accountant": accountant,
        "spent": _finite(spent),
        "filtered": _finite(filtered),
        "spent_by_row_budget": _by_row_budget(ledger_book),
        "left": _finite(totals.remaining(filtered, policy)),
        "planned": _planned(ledger_book),
        "rows": len(rows),
        "charges": {state: states[state] for state in (book.RESERVED, book.READY, book.SENT, book.BURNED)},
        "runs": [{"run": run, "rounds": ledger_book.rounds_of(run), "charges": n} for run, n in charges.items()],
        "head": rows[-1].head,
        "witnessed": vouched,
        "adopted": [
            {"row": row.seq, "at": row.at, "key": row.detail} for row in ledger_book.notes if row.kind == book.ADOPTED
        ],
        "replaces": [row.detail for row in ledger_book.notes if row.kind == book.REPLACES],
    }


def _by_row_budget(ledger_book: book.Book) -> dict[str, float | None]:
    """The epsilon that rows with budgets of their own have spent, by that budget; empty if there are none."""
    costs = [cost for charge in ledger_book.charges.values() for cost in book.costs_of(charge.row.detail)]
    budgets = sorted({budget for cost in costs for budget, _ in cost.groups})
    policy, accountant = ledger_book.terms.policy, ledger_book.terms.accountant
    spent = {b: totals.epsilon(totals.add_costs({}, of_group(costs, b)), policy, accountant) for b in budgets}
    return {f"{budget:g}": _finite(epsilon) for budget, epsilon in spent.items()}


def _planned(ledger_book: book.Book) -> dict[str, Any]:
    """What the privacy filter counts in: the first schedule, and what others were converted to."""
    return {
        "first": [asdict(cost) for cost in totals.totals_as_costs(ledger_book.first)],
        "converted": [asdict(planned.conversion) for planned in ledger_book.planned],
    }


def verify(path: str | Path) -> int:
    """Check the whole ledger and return its number of rows, or raise a `HushError`."""
    rows, _ = ledger.inspect(path)
    return len(rows)


def adopt(path: str | Path) -> None:
    """Register a ledger that was moved here with this machine's witness, and record the adoption."""
    ledger.Ledger.adopt(path).close()


def retire(path: str | Path) -> list[str]:
    """Release the paths of deleted ledgers, at this path or in this directory; returns the paths."""
    given_up = witness.here().retire(Path(path))
    if not given_up:
        raise HushError(f"{path}: no ledger is recorded at this path; accepted: the path of a ledger, or its directory")
    return [place.path for place in given_up]


def export(path: str | Path) -> Iterator[dict[str, Any]]:
    """Return every row, oldest first, after the whole ledger has been checked."""
    rows, _ = ledger.inspect(path)
    return (row._asdict() for row in rows)


def check(path: str | Path) -> list[Figure]:
    """Return every figure of a ledger file, or of the cards of a run, as stated and as recomputed by `ledger_check`."""
    path = Path(path)
    if not path.is_dir():
        found = describe(path)
        if not found["chain_ok"]:
            raise HushError(str(found["fault"]))
        return ledger_check.compared_rows([row._asdict() for row in ledger.inspect(path)[0]], found)
    facts, result = (_json(path / name) for name in ("manifest.json", "result.json"))
    discrete = int(facts["parameters"]) if facts["config"]["privacy"].get("discrete") else 0
    if facts.get("ledgers") is None:
        return ledger_check.compared_run(path, discrete)
    figures: list[Figure] = []
    for file in sorted(Path(facts["ledgers"]).glob("*.ledger")):
        rows, ledger_book = ledger.inspect(file)
        if any(ledger_book.terms.client in (card["name"], card["client"]) for card in result["guarantees"]):
            figures += ledger_check.compared_rows([row._asdict() for row in rows], result, discrete)
    clients = {figure.client for figure in figures}
    missing = [c["name"] or c["client"] for c in result["guarantees"] if not clients & {c["name"], c["client"]}]
    if missing:
        raise HushError(f"{facts['ledgers']}: no ledger of client {missing[0]}; accepted: the ledgers of the run")
    return figures


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise HushError(f"{path}: no such file; accepted: a ledger file, or the directory of a finished run") from None
    except (OSError, ValueError) as error:
        raise HushError(f"{path}: cannot be read: {error}") from None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
