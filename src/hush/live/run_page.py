"""The live page of one run: its fragments, from what has been read of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from hush.live.follow import FollowedRun
from hush.live.source import Fragment
from hush.live.words import duration, state_words
from hush.pages.chart import Axis, Chart, Rule, Series, ordered, scaled
from hush.pages.document import panel, table, tiles
from hush.pages.wording import NONE, capital, figure
from hush.stop_request import request_stop, stop_requested

_POINTS = 12  # rounds for which the epsilon of all clients is computed
_LINES = 12  # clients with a line of their own in a legend


class RunSource:
    """Shows the run in a directory."""

    kind = "live"
    parts = ("state", "tiles", "score", "loss", "weights", "noise", "evaluation", "members", "privacy")

    def __init__(self, path: Path, run: FollowedRun | None = None) -> None:
        self.run = run or FollowedRun(path)
        self._stopping = False
        self._spent: dict[int, float] = {}

    @property
    def title(self) -> str:
        """Recipe and dataset, or the directory before the run has begun."""
        manifest = self.run.manifest
        if not manifest:
            return str(self.run.path)
        return f"{manifest['recipe']} on {manifest.get('data', {}).get('name', manifest['config']['data']['name'])}"

    def refresh(self) -> bool:
        """Read what is new."""
        news, before = self.run.refresh(), self._stopping
        self._stopping = stop_requested(self.run.path)
        return news or before != self._stopping

    def stoppable(self) -> bool:
        """Whether the run goes on."""
        return self.run.started and not self.run.finished

    def stop(self) -> str:
        """Ask the run to stop after its current round."""
        request_stop(self.run.path)
        return "The run stops after the current round; it can then be resumed with --resume."

    def fragments(self) -> Iterator[Fragment]:
        """Yield all parts; what the accountant computes comes last."""
        run = self.run
        yield "state", state_words(run, stopping=self._stopping)
        if not run.started:
            return
        yield "tiles", tiles([_round(run), *_scores(run), _spent(run, self._spent), _left(run)])
        yield "score", panel(_score(run))
        yield "loss", panel(_loss(run))
        yield "weights", panel(_weights(run))
        yield "noise", panel(_noise(run))
        if run.evaluations:
            yield "evaluation", panel(_evaluation(run))
        if run.refusals or run.federation:
            yield "members", _members(run)
        self._spent = run.epsilon_at(run.rounds)
        yield "privacy", panel(_privacy(run))
        yield "tiles", tiles([_round(run), *_scores(run), _spent(run, self._spent), _left(run)])


def _round(run: FollowedRun) -> tuple[str, str, str]:
    return ("Round", f"{run.rounds} of {run.planned}", f"{run.clients} {'members' if run.federation else 'clients'}")


def _scores(run: FollowedRun) -> list[tuple[str, str, str]]:
    metric, values = run.metric, [score for score in run.scores if math.isfinite(score)]
    if not values:
        return [(f"Mean {metric.label}", NONE, "no round evaluated yet")]
    mean = ("Mean " if not run.federation else "") + metric.label
    rows = [(capital(mean), metric.shown(statistics.fmean(values)), f"loss {figure(run.columns['loss'][-1], 3)}")]
    if not run.federation:
        worst = (min if metric.higher_is_better else max)(values)
        rows.append(("Worst client", metric.shown(worst), f"client {run.name(run.scores.index(worst))}"))
    return rows


def _spent(run: FollowedRun, spent: dict[int, float]) -> tuple[str, str, str]:
    """Return the largest share of a budget that is spent."""
    if run.costs is None or not spent:
        return ("Budget spent", "…" if run.costs is not None else NONE, f"largest share of any {_who(run)}")
    if any(math.isinf(value) for value in spent.values()):
        return ("Budget spent", "∞", "no noise, no privacy")
    share = {c: value / run.costs.clients[c].policy.epsilon for c, value in spent.items()}
    most = max(share, key=share.__getitem__)
    return (
        "Budget spent",
        f"{100 * share[most]:.0f}%",
        f"at most: {_named(run, most)}, ε {figure(spent[most], 3)}",
    )


def _left(run: FollowedRun) -> tuple[str, str, str]:
    if run.finished:
        return ("Time", duration(run.columns["seconds"][-1] if run.rounds else 0.0), "finished")
    done = duration(run.columns["seconds"][-1]) if run.rounds else "0 s"
    return ("Time left", duration(run.seconds_left()), f"{done} so far")


def _who(run: FollowedRun) -> str:
    return "member" if run.federation else "client"


def _named(run: FollowedRun, client: int) -> str:
    """Return a client with its name; that of a federation's member needs no other word."""
    return run.name(client) if run.federation else f"client {run.name(client)}"


def _rounds_axis() -> Axis:
    return Axis(title="round", scale="round")


def _score(run: FollowedRun) -> Chart:
    metric, columns = run.metric, run.columns
    title = f"{capital(metric.label)} by round"
    if not run.rounds:
        return Chart(key="score", title=title, words="The first round has not ended yet.")
    line = Series(
        name="mean", x=columns["round"], y=columns["mean"],
        low=[] if run.federation else columns["low"], high=[] if run.federation else columns["high"],
    )  # fmt: skip
    words = (
        "On the coordinator's public test set." if run.federation else "Mean over clients; band: worst to best client."
    )
    meaning = f"{metric.shown(columns['mean'][-1])} after round {run.rounds}."
    return Chart(
        key="score", title=title, words=words, meaning=meaning, x=_rounds_axis(),
        y=Axis(title=metric.label, percent=metric.percent), series=[line],
    )  # fmt: skip


def _loss(run: FollowedRun) -> Chart:
    if not run.rounds:
        return Chart(key="loss", title="Loss by round", words="The first round has not ended yet.")
    return Chart(
        key="loss", title="Loss by round", words="Mean over all test rows.",
        meaning=f"{figure(run.columns['loss'][-1], 3)} after round {run.rounds}.", x=_rounds_axis(),
        y=Axis(title="loss"), series=[Series(name="loss", x=run.columns["round"], y=run.columns["loss"], colour="c3")],
    )  # fmt: skip


def _weights(run: FollowedRun) -> Chart:
    mean, title = run.mean_weights(), f"Weight per {_who(run)}"
    if not mean:
        return Chart(key="weights", title=title, words="No update has been used yet.")
    last = {int(client): float(value or 0.0) for client, value in run.last["weights"].items()}
    names = tuple(run.name(client) for client in mean)
    x = [float(number) for number in range(len(mean))]
    parts = [
        Series(kind="bars", name="mean weight", x=x, y=list(mean.values())),
        Series(kind="ticks", name="last round", x=x, y=[last.get(c, math.nan) for c in mean], colour="c1"),
    ]
    most = max(mean, key=mean.__getitem__)
    return Chart(
        key="weights", title=title, words="Mean over rounds, and the last round; dashed: equal weights.",
        meaning=f"{_named(run, most)} has the largest mean weight, {figure(mean[most], 3)}.",
        x=Axis(title=_who(run), scale="category", categories=names), y=Axis(title="weight", from_zero=True),
        series=parts, rules=[Rule(1 / len(mean))], legend=True,
    )  # fmt: skip


def _noise(run: FollowedRun) -> Chart:
    title = "Noise in the last round"
    found = {
        int(client): (float(planned), float(run.last["noise_estimated"].get(client) or math.nan))
        for client, planned in run.last.get("noise_planned", {}).items()
        if planned
    }
    if not found:
        return Chart(key="noise", title=title, words=f"The {_who(run)}s of the last round added no noise.")
    chosen = sorted(found)
    x = [float(number) for number in range(len(chosen))]
    planned, estimated = zip(*(found[client] for client in chosen), strict=True)
    parts = [Series(kind="ticks", name="planned", x=x, y=planned, colour="quiet")]
    ratios = [e / p for p, e in found.values() if math.isfinite(e)]
    meaning = "This recipe does not estimate noise."
    if ratios:
        parts.append(Series(kind="points", name="estimated", x=x, y=estimated))
        meaning = f"The median estimate is {figure(statistics.median(ratios), 3)} times the planned noise."
    return Chart(
        key="noise", title=title, words="Expected squared norm of the noise in an update.", meaning=meaning,
        x=Axis(title=_who(run), scale="category", categories=tuple(run.name(client) for client in chosen)),
        y=scaled("noise", [value for value in (*planned, *estimated) if math.isfinite(value)]),
        series=parts, legend=True,
    )  # fmt: skip


def _evaluation(run: FollowedRun) -> Chart:
    """Return the chart of the figures from noised counts on held-out rows; those that the noise hides are left out."""
    metric = str(run.manifest["config"].get("evaluation", {}).get("metric", "accuracy"))
    found = [each for each in run.evaluations if metric in each]
    title, key = f"{capital(metric)} on held-out rows", "evaluation"
    words = f"From noised counts of all {_who(run)}s; whiskers: two standard errors of the noise."
    if not found:
        return Chart(key=key, title=title, wide=True, words=f"{words} The noise hides all figures so far.")
    x, y = [float(each["model_of_round"]) for each in found], [float(each[metric]) for each in found]
    errors = [2 * float(each[f"{metric}_error"]) for each in found]
    points = Series(
        kind="points", name=metric, x=x, y=y, low=[v - e for v, e in zip(y, errors, strict=True)],
        high=[v + e for v, e in zip(y, errors, strict=True)],
    )  # fmt: skip
    meaning = f"{figure(y[-1], 3)} ± {figure(errors[-1], 2)} for the model after round {x[-1]:.0f}."
    return Chart(
        key=key, title=title, words=words, meaning=meaning, wide=True, x=_rounds_axis(), y=Axis(title=metric),
        series=[points],
    )  # fmt: skip


def _privacy(run: FollowedRun) -> Chart:
    title = "Privacy spent by round"
    if run.costs is None or not run.rounds:
        return Chart(key="privacy", title=title, words="Known after the first round.", wide=True)
    # Powers of two, so that the rounds of one drawing are among those of the next.
    step = 1
    while run.rounds / step > _POINTS:
        step *= 2
    numbers = sorted({*range(step, run.rounds + 1, step), run.rounds})
    spent = {number: run.epsilon_at(number) for number in numbers}
    terms = run.costs.clients
    if any(math.isinf(value) for value in spent[run.rounds].values()):
        return Chart(
            key="privacy", title=title, wide=True,
            words="Clients send updates without noise: their epsilon against the server is unbounded.",
        )  # fmt: skip
    order = sorted(range(len(terms)), key=lambda client: terms[client].policy.epsilon)
    parts = [
        Series(
            name=f"{_named(run, client)}, budget {figure(terms[client].policy.epsilon)}",
            x=[float(number) for number in numbers], y=[spent[number][client] for number in numbers],
            colour=ordered(place, len(order)),
        )
        for place, client in enumerate(order)
    ]  # fmt: skip
    budgets = sorted({client.policy.epsilon for client in terms if math.isfinite(client.policy.epsilon)})
    values = [value for each in spent.values() for value in each.values()]
    latest = [spent[run.rounds][client] / terms[client].policy.epsilon for client in order]
    low, high = f"{100 * min(latest):.0f}", f"{100 * max(latest):.0f}"
    shares = f"{high} %" if low == high else f"{low} to {high} %"
    meaning = f"After round {run.rounds}, {_who(run)}s have spent {shares} of their budgets."
    return Chart(
        key="privacy", title=title, wide=True, meaning=meaning, height=360, legend=len(parts) <= _LINES,
        words=f"Epsilon of each {_who(run)}, computed by its accountant; dashed lines mark the budgets.",
        x=_rounds_axis(),
        y=scaled("epsilon", [value for value in values + budgets if value > 0] or [0.0], 30), series=parts,
        rules=[Rule(budget, start=0.0 if len(budgets) <= _LINES else 0.88) for budget in budgets],
    )  # fmt: skip


def _members(run: FollowedRun) -> str:
    """Return who was refused or absent, how often and why."""
    what = _who(run)
    heads = ((what, "text"), ("updates used", ""), ("refused or absent", ""), ("latest reason", "text"))
    listed = range(run.clients) if run.federation else sorted(run.refusals)
    rows = [
        [
            (client, run.name(client), "text"), (run.used[client], str(run.used[client]), ""),
            (run.refusals[client], str(run.refusals[client]), ""),
            (run.reasons.get(client, ""), run.reasons.get(client, NONE), "text wrap"),
        ]
        for client in listed
    ]  # fmt: skip
    return f"<h2>{capital(what)}s</h2>{table(heads, rows, 'Refusals')}"
