"""Words on a live page: durations, progress bars, and the state of a run."""

from __future__ import annotations

import math

from hush.live.follow import FollowedRun
from hush.pages.wording import NONE, safe

_SILENT = 60.0


def duration(seconds: float) -> str:
    """Return a duration as it is read: 31 ms, 8 s, 3 min 05 s, 2 h 10 min."""
    if not math.isfinite(seconds):
        return NONE
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    whole = math.ceil(seconds) if seconds >= 10 else seconds
    if whole < 10:
        return f"{whole:.1f} s" if whole else "0 s"
    minutes, rest = divmod(int(whole), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def meter(done: int, of: int) -> str:
    """Return a progress bar."""
    share = 100 * done / of if of else 0
    words = safe(f"{done} of {of} rounds")
    return (
        f'<div class="meter" role="progressbar" aria-label="{words}" aria-valuemin="0" aria-valuemax="{of}" '
        f'aria-valuenow="{done}"><span style="width:{share:.1f}%"></span></div>'
    )


def state_words(run: FollowedRun, *, stopping: bool) -> str:
    """Return the progress bar of a run and what state it is in."""
    if not run.started:
        return f'<p class="soft">Waiting for a run in {safe(run.path)}.</p>'
    bar = meter(run.rounds, run.planned)
    if run.finished:
        more = "" if run.rounds == run.planned else f": {run.ended}"
        return f"{bar}<p>Finished after round {run.rounds}{safe(more)}. Report: {safe(run.path / 'report.html')}</p>"
    if stopping:
        return f"{bar}<p>Stops after the current round; resume with --resume.</p>"
    silent, usual = run.silent(), run.seconds_left() / max(run.planned - run.rounds, 1)
    if run.rounds and silent > max(_SILENT, 10 * usual):
        return f"{bar}<p>No round for {duration(silent)}: the run may have stopped. If so, resume it with --resume.</p>"
    return f'{bar}<p class="soft">Training.</p>'
