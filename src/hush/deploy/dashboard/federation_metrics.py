"""Metrics of a federation at its coordinator, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hush.deploy.dashboard.exposition import Sample, counter, exposed, gauge
from hush.deploy.dashboard.federation_state import FederationState


def federation_metrics(state: FederationState, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, for what a request accepts."""
    return exposed(_collected(state), accept)


def _collected(state: FederationState) -> Iterator[Any]:
    members = sorted(state.members.values(), key=lambda each: each.name)

    def each(values: Iterator[tuple[str, float]]) -> list[Sample]:
        return [({"member": name}, value) for name, value in values]

    yield gauge("hush_up", "Whether hush federation serve is running.", [({}, float(state.up))])
    yield gauge("hush_members", "Members whose key is registered.", [({}, float(sum(m.listed for m in members)))])
    yield gauge(
        "hush_member_online", "Whether a member is online; revoked members are left out.",
        each((m.name, float(m.online)) for m in members if m.listed),
    )  # fmt: skip
    yield gauge(
        "hush_member_last_seen_timestamp_seconds", "When the last request of a member arrived.",
        each((m.name, m.heard) for m in members if m.heard is not None),
    )  # fmt: skip
    yield counter("hush_member_updates", "Updates that arrived.", each((m.name, float(m.answers)) for m in members))
    yield counter(
        "hush_member_refusals", "Rounds and runs without a usable answer: refusals, refused answers, absence.",
        each((m.name, float(m.refusals)) for m in members),
    )  # fmt: skip
    yield gauge(
        "hush_member_answer_seconds", "How long the latest update of a member took since its task was sent.",
        each((m.name, m.seconds[-1]) for m in members if m.seconds),
    )  # fmt: skip
    yield from _of_run(state)
    yield gauge(
        "hush_certificate_expiry_timestamp_seconds", "When a certificate expires.",
        [({"certificate": found.name}, found.ends.timestamp()) for found in state.certificates],
    )  # fmt: skip
    waiting = state.preparing[1].waiting if state.preparing else ()
    yield gauge("hush_approvals_waited_for", "Members that have not decided on a run.", [({}, float(len(waiting)))])
    yield counter(
        "hush_log_events",
        "Events in the audit log.",
        [({"level": k}, float(n)) for k, n in sorted(state.levels.items())],
    )


def _of_run(state: FederationState) -> Iterator[Any]:
    """Yield the metrics of the latest run."""
    run = state.run
    if run is None:
        return
    name = {"run": run.path.name}
    yield gauge("hush_run_round", "Rounds that the latest run has done.", [(name, float(run.rounds))])
    yield gauge("hush_run_rounds_planned", "Rounds that the latest run is planned for.", [(name, float(run.planned))])
    yield gauge("hush_run_finished", "Whether the latest run has finished.", [(name, float(run.finished))])
    if run.rounds:
        yield gauge("hush_run_last_round_timestamp_seconds", "When its latest round ended.", [(name, run.read_at)])
        score, label = run.columns["mean"][-1], {**name, "metric": run.metric.label}
        yield gauge("hush_run_score", "Its score on the public test set after the latest round.", [(label, score)])
    weights = [({**name, "member": run.name(client)}, mean) for client, mean in run.mean_weights().items()]
    yield gauge("hush_run_member_weight", "Mean weight of a member's updates in the latest run.", weights)
    left = state.left(run)
    yield gauge(
        "hush_run_member_epsilon_left", "Epsilon declared for the latest run, less what the answers cost.",
        [({**name, "member": member}, value) for member, (value, _) in left.items()],
    )  # fmt: skip
