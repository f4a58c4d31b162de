"""What is written about a run: the manifest before it, the result after it."""

from __future__ import annotations

import math
import platform
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hush.config import config_hash
from hush.engines.setup import Federation
from hush.privacy.ledger import Spending
from hush.privacy.weak_guarantees import gathered
from hush.server.participation import nothing_trained, out_of_budget, trained
from hush.types import RoundRecord, RunResult


def versions() -> dict[str, str]:
    """Versions of all that can change a number."""
    found = {"python": platform.python_version()}
    for name in ("hush", "torch", "numpy", "scikit-learn", "dp-accounting"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def manifest(federation: Federation, command: str) -> dict[str, Any]:
    """What is known before the first round."""
    config, primary = federation.config, federation.model.objective.primary
    return {
        "config": config.model_dump(),
        "config_hash": config_hash(config),
        "run": uuid.uuid4().hex,
        "seed": config.seed,
        "recipe": federation.recipe_name,
        "not_covered": list(federation.not_covered()),
        "parameters": federation.model.layout.size,
        "task": federation.model.objective.task,
        "primary": primary.name,
        "metric": {key: getattr(primary, key) for key in ("label", "percent", "higher_is_better")},
        "clients": list(client_names(federation)),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
    }


def outcome(
    federation: Federation, ledgers: Sequence[Spending], records: Sequence[RoundRecord], ended: str,
    names: Sequence[str] = (), metrics: Mapping[str, Any] | None = None,
) -> RunResult:  # fmt: skip
    """The result of a run whose last round is the last record; `names` of clients, where members have none."""
    last, config, spent = records[-1], federation.config, out_of_budget(records)
    names = names or client_names(federation)
    if not trained(records):
        ended = nothing_trained(spent, len(federation.members), names)
    complete = all(len(record.weights) == len(federation.members) for record in records)
    cards, groups = federation.guarantees(ledgers, complete=complete), [member.group for member in federation.members]
    score = {**spread(last.scores), **by_group(last.scores, groups)}
    return RunResult(
        recipe=federation.recipe_name,
        dataset=federation.data.dataset.title,
        model=federation.model.name,
        rounds=last.round,
        seed=config.seed,
        accuracy=score if last.accuracy_per_client else {},
        accuracy_per_client=last.accuracy_per_client,
        score=score,
        score_per_client=last.score_per_client,
        metrics=metrics or {},
        loss=last.loss,
        guarantees=cards,
        not_covered=federation.not_covered(),
        ended=ended,
        seconds=last.seconds,
        versions=versions(),
        config_hash=config_hash(config),
        config=config.model_dump(),
        evaluation=tuple({"round": record.round, **record.evaluation} for record in records if record.evaluation),
        trained=trained(records),
        out_of_budget=spent,
        warnings=(
            *federation.left_out,
            *gathered((card.name or card.client, card.warnings) for card in cards),
            *federation.silent_settings(),
            *_warned(records, names),
        ),
        clients=tuple(names),
    )


def client_names(federation: Federation) -> tuple[str, ...]:
    """The names of the clients in order; none where they have numbers alone."""
    return tuple(member.name for member in federation.members) if any(m.name for m in federation.members) else ()


def _warned(records: Sequence[RoundRecord], names: Sequence[str]) -> tuple[str, ...]:
    """Who counted less than what it declared would have given it: once a client, as in its last such round."""
    found: dict[int, list[RoundRecord]] = {}
    for record in records:
        for client in record.warnings:
            found.setdefault(client, []).append(record)
    return tuple(
        f"{names[client] if names else f'client {client}'}: {rounds[-1].warnings[client]} "
        f"(round {rounds[-1].round}; in {len(rounds)} of {len(records)} rounds)"
        for client, rounds in sorted(found.items())
    )


def spread(values: Sequence[float]) -> Mapping[str, float]:
    """Mean, smallest, largest and sample standard deviation (n - 1); of a single value the last is NaN."""
    return {
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
        "std": statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan,
    }


def by_group(scores: Sequence[float], groups: Sequence[int]) -> dict[str, float]:
    """The mean score of the smallest true cluster and of all others, where there is more than one."""
    sizes = {group: groups.count(group) for group in set(groups)}
    if len(sizes) < 2:
        return {}
    smallest = min(sorted(sizes), key=lambda group: sizes[group])
    return {
        "minority": statistics.fmean(a for a, g in zip(scores, groups, strict=True) if g == smallest),
        "majority": statistics.fmean(a for a, g in zip(scores, groups, strict=True) if g != smallest),
    }
