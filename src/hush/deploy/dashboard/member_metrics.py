"""Metrics of a member, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hush.deploy.dashboard.exposition import Sample, counter, exposed, gauge
from hush.deploy.dashboard.member_state import MemberState


def member_metrics(state: MemberState, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, for what a request accepts."""
    return exposed(_collected(state), accept)


def _collected(state: MemberState) -> Iterator[Any]:
    def one(value: float | None) -> list[Sample]:
        return [] if value is None else [({}, float(value))]

    yield gauge("hush_up", "Whether hush federation join is running.", one(state.up))
    yield gauge("hush_connected", "Whether it reaches the SuperLink.", one(state.connected))
    yield gauge(
        "hush_last_contact_timestamp_seconds", "When it last reached the SuperLink.",
        one(state.process.get("contact") or None),
    )  # fmt: skip
    ledger = state.ledger
    if ledger:
        yield gauge("hush_ledger_ok", "Whether the ledger is complete and unchanged.", one(ledger["chain_ok"]))
    if ledger.get("chain_ok"):
        yield gauge("hush_epsilon_spent", "Epsilon that all runs have spent.", one(ledger["filtered"]))
        yield gauge("hush_epsilon_left", "Epsilon left for all runs.", one(ledger["left"]))
        yield gauge("hush_epsilon_budget", "Epsilon that all runs may spend.", one(ledger["policy"]["epsilon"]))
    yield counter("hush_updates_sent", "Updates that were sent in time.", one(state.updates))
    yield counter("hush_updates_late", "Updates that were sent after their round was closed.", one(state.late))
    yield counter("hush_sent_bytes", "Bytes of the answers that were sent.", one(state.bytes))
    yield gauge("hush_answer_seconds", "How long the latest answer was worked on.", one(state.seconds or None))
    yield counter(
        "hush_refusals", "Messages that were refused, by code.",
        [({"code": code}, float(number)) for code, number in sorted(state.refused.items())],
    )  # fmt: skip
    yield gauge("hush_proposals_waiting", "Runs that wait for a decision.", one(len(state.waiting)))
    run = state.run
    if run is not None and run.rounds:
        yield gauge("hush_run_round", "The latest round that was answered.", one(run.round))
        yield gauge("hush_run_rounds_planned", "Rounds that the latest run is planned for.", one(run.rounds))
    yield counter(
        "hush_log_events",
        "Events in the audit log.",
        [({"level": k}, float(n)) for k, n in sorted(state.levels.items())],
    )
