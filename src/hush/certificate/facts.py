"""Facts of a certificate, read from the directory of a run or from a model that a federation delivered.

Guarantees:
    - Everything is read from what the run wrote; nothing is computed here but what `hush ledger check` recomputes.
    - `of_delivery` depends on the delivered certificate.json alone, so that it can be verified from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.privacy.ledger import statement
from hush.server.run_directory import MANIFEST, RESULT, plain, read_json
from hush.types import HushError

Facts = Mapping[str, Any]
FORMAT = "hush certificate 1"
_AUDITED = (
    "client", "kind", "epsilon_claimed", "epsilon_lower", "delta", "relation", "confidence", "runs", "canaries",
    "rounds", "steps", "releases", "not_audited", "noise",
)  # fmt: skip


def of_run(directory: Path, audit: Path | None = None, *, recompute: bool = True) -> dict[str, Any]:
    """Return the facts of a finished run.

    Args:
        directory: The run directory.
        audit: What `hush audit --json` printed for this run, if it was audited.
        recompute: Whether all figures are computed again by `hush ledger check`.

    Raises:
        HushError: The run is not finished, the audit is of something else, or a figure differs when it is recomputed.
    """
    manifest, result = read_json(directory / MANIFEST), read_json(directory / RESULT)
    cards = result["guarantees"]
    federation = _federation(directory)
    return {
        "format": FORMAT,
        "kind": "simulation" if federation is None else "federation",
        "federation": federation,
        "run": manifest["run"],
        "started": manifest["started"],
        "recipe": result["recipe"],
        "model": result["model"],
        "data": result["dataset"],
        "rounds": result["rounds"],
        "ended": result["ended"],
        "trained": result["trained"],
        "lasting": federation is not None or manifest.get("ledgers") is not None,
        "clients": [_client(card) for card in cards],
        "not_covered": list(result["not_covered"]),
        "warnings": list(result["warnings"]),
        "audit": None if audit is None else _audit(audit, cards),
        "recomputed": _recomputed(directory) if recompute else None,
        "config_hash": result["config_hash"],
        "versions": dict(result["versions"]),
    }


def of_delivery(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a delivered certificate.json: those of one member."""
    try:
        return {
            "format": FORMAT,
            "kind": "delivery",
            "federation": content["federation"],
            "run": content["id"],
            "started": content["delivered"],
            "recipe": content["recipe"],
            "model": content["model"],
            "data": f"those of {len(content['members'])} members",
            "rounds": content["rounds"],
            "ended": content["ended"],
            "trained": True,
            "lasting": True,
            "clients": [_client({**content["guarantee"], "name": content["member"]})],
            "not_covered": list(content["not_covered"]),
            "warnings": list(content["warnings"]),
            "audit": None,
            "recomputed": None,
            "config_hash": content["config_hash"],
            "versions": dict(content["versions"]),
        }
    except (KeyError, TypeError) as error:
        raise HushError(f"certificate.json: not written by this version of hush: {error!r}") from None


def _client(card: Mapping[str, Any]) -> dict[str, Any]:
    """What the certificate says of one client; null stands for an infinite epsilon."""
    spent = card["epsilon_spent"]
    by_filter = card.get("epsilon_filter", spent)
    return {
        "name": card["name"] or str(card["client"]),
        "unit": card.get("unit", "row"),
        "protects": card.get("protects", ""),
        "relation": card["relation"],
        "epsilon": None if spent is None or by_filter is None else max(spent, by_filter),
        "budget": card["epsilon_budget"],
        "delta": card["delta"],
        "units": card["samples"],
        "noise": card["noise"],
        "accountant": card["accountant"],
        "row_groups": [
            {key: each[key] for key in ("budget", "units", "epsilon")} for each in card.get("row_groups", ())
        ],
        "warnings": list(card["warnings"]),
    }


def _federation(directory: Path) -> str | None:
    """The name of the federation whose run this is; runs are in a folder of the coordinator's."""
    if not (directory / "federation.json").exists():
        return None
    place = directory.resolve().parent.parent / "federation.toml"
    return place.parent.name if place.exists() else "unknown"


def _audit(path: Path, cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An audit's result, if it can be one of this run."""
    try:
        found = dict(json.loads(path.read_bytes()))
        kept = {key: found[key] for key in _AUDITED}
        card = cards[int(kept["client"])]
    except FileNotFoundError:
        raise HushError(f"{path}: no such file; accepted: the output of hush audit FILE.toml --json") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise HushError(f"{path}: not the output of hush audit FILE.toml --json: {error!r}") from None
    spent = card["epsilon_spent"]
    same = (kept["delta"], kept["relation"]) == (card["delta"], card["relation"])
    if not same or spent is None or not math.isclose(spent, kept["epsilon_claimed"], rel_tol=0.02):
        raise HushError(
            f"{path}: audits a claim of {kept['epsilon_claimed']:.4g} at delta {kept['delta']:g} ({kept['relation']}); "
            f"the card of client {card['client']} says {spent if spent is None else f'{spent:.4g}'} at "
            f"{card['delta']:g} "
            f"({card['relation']}); accepted: an audit of the same config"
        )
    return dict(plain({**kept, "client": card["name"] or str(card["client"])}))


def _recomputed(directory: Path) -> dict[str, int]:
    found = statement.check(directory)
    wrong = [each for each in found if not each.agrees]
    if wrong:
        raise HushError(
            f"{directory}: {len(wrong)} figures differ when they are recomputed (first: client {wrong[0].client}, "
            f"{wrong[0].name}); see hush ledger check {directory}"
        )
    return {"figures": sum(each.stated is not None for each in found), "differ": 0}
