"""Participation of the members of a federation: rounds used, refusals with their latest reason, and traffic."""

from __future__ import annotations

from hush.pages.document import Cell, table
from hush.pages.wording import NONE, count
from hush.report.read import RunView

_HEADS = (
    ("member", "text"),
    ("updates used", ""),
    ("released", ""),
    ("refused or absent", ""),
    ("latest reason", "text"),
)


def members_table(view: RunView) -> str:
    """Return the table of members with its heading."""
    rows: list[list[Cell]] = []
    for client in range(view.clients):
        name = view.name(client)
        used = sum(client in record.weights for record in view.records)
        released = sum(client in record.charged for record in view.records)
        missing = len(view.records) - used
        reason = next((r.refused[client] for r in reversed(view.records) if client in r.refused), NONE)
        rows.append([
            (name, name, "text"), (used, str(used), ""), (released, str(released), ""), (missing, str(missing), ""),
            (reason, reason, "text wrap"),
        ])  # fmt: skip
    up, down = (sum(getattr(r, name) for r in view.records) for name in ("bytes_up", "bytes_down"))
    traffic = f" Traffic: {up / 1e6:.1f} MB from the members, {down / 1e6:.1f} MB to them." if up or down else ""
    words = f"Over {count(len(view.records), 'round')}; a released update that was not used is charged all the same."
    return f'<h2 id="members">Members</h2><p class="soft">{words}{traffic}</p>{table(_HEADS, rows, "Members")}'
