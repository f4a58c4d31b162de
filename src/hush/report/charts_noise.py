"""Charts of noise: planned and estimated noise per client, and the resulting weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hush.pages.chart import COLOURS, Axis, Chart, Rule, Series, numbered, scaled
from hush.pages.wording import figure, times
from hush.report.correlation import rank_correlation, strength
from hush.report.read import RunView
from hush.report.spending import evenly
from hush.types import Guarantee

_POINTS = 1000  # clients that are drawn


def weights(view: RunView) -> Chart:
    """Return the chart of client weights by budget and batch size."""
    title, mean = "Weight per client", mean_weights(view)
    if not mean:
        words = "No update was used." if view.finished else "No update has been used yet."
        return Chart(key="weights", title=title, words=words)
    if not view.guarantees:
        names = tuple(view.name(client) for client in mean)
        bars = Series(kind="bars", name="mean weight", x=[float(n) for n in range(len(mean))], y=list(mean.values()))
        return Chart(
            key="weights", title=title, meaning=_range_words(view, mean),
            words="Mean over the rounds so far; budgets and batch sizes are available when the run ends.",
            x=Axis(title="client", scale="category", categories=names), y=Axis(title="weight", from_zero=True),
            series=[bars],
        )  # fmt: skip
    known = [
        g for g in evenly(view.guarantees, _POINTS) if g.client in mean and math.isfinite(g.epsilon_budget or math.inf)
    ]
    if not known:
        return Chart(key="weights", title=title, words="No client has a budget to plot the weights against.")
    batches = sorted({g.batch_size for g in known})
    groups = [[g for g in known if g.batch_size == batch] for batch in batches]
    several = 1 < len(batches) <= COLOURS
    parts = (
        [_weights(view, group, mean, f"batch {batch}", n)
         for n, (batch, group) in enumerate(zip(batches, groups, strict=True))]
        if several else [_weights(view, known, mean, "clients", 0)]
    )  # fmt: skip
    equal, values = 1 / len(mean), [mean[g.client] for g in known]
    followed = rank_correlation([g.epsilon_budget or 0.0 for g in known], values)
    meaning = _range_words(view, mean)
    if followed is not None:
        meaning += f" Weights follow budgets {strength(followed)} (rank correlation {followed:.2f})."
    clustered = any(record.placed for record in view.records)
    words = "Mean over the rounds in which the client's update was used" + (
        "; the weights of each cluster model sum to one." if clustered else "; the dashed line marks equal weights."
    )
    return Chart(
        key="weights", title=title, words=words, meaning=meaning,
        x=scaled("epsilon budget", [g.epsilon_budget or 0.0 for g in known]),
        y=scaled("mean weight", [*values, equal], 30), series=parts, legend=several,
        rules=[] if clustered else [Rule(equal)],
    )  # fmt: skip


def noise(view: RunView) -> Chart:
    """Return the chart of estimated against planned noise."""
    title = "Estimated and planned noise"
    estimated: dict[int, list[float]] = {}
    planned: dict[int, float] = {}
    for record in view.records:
        for client, value in record.noise_estimated.items():
            if value > 0 and math.isfinite(value):
                estimated.setdefault(client, []).append(value)
        planned |= record.noise_planned
    if not any(record.weights for record in view.records):
        return Chart(key="noise", title=title, words="No update was used, so there was no noise to estimate.")
    if not estimated:
        return Chart(key="noise", title=title, words="This recipe does not estimate noise.")
    chosen = [client for client in evenly(sorted(estimated), _POINTS) if planned.get(client, 0) > 0]
    if not chosen:
        return Chart(
            key="noise", title=title, words="The clients add no noise, so there is no planned noise to compare with."
        )
    middle = {client: statistics.median(estimated[client]) for client in chosen}
    ratios = sorted(middle[client] / planned[client] for client in chosen)
    meaning = (
        f"The median estimate is {figure(statistics.median(ratios), 3)} times the planned noise; over clients the "
        f"ratio ranges from {figure(ratios[0], 3)} to {figure(ratios[-1], 3)}."
    )
    everything = [v for client in chosen for v in (*estimated[client], planned[client])]
    ends = [min(everything) / 1.3, max(everything) * 1.3]
    points = Series(
        kind="points", name="estimated", x=[planned[c] for c in chosen], y=[middle[c] for c in chosen],
        low=[min(estimated[c]) for c in chosen], high=[max(estimated[c]) for c in chosen],
        labels=[f"client {view.name(c)}" for c in chosen],
    )  # fmt: skip
    diagonal = Series(name="equality", x=ends, y=ends, colour="quiet", dash=True, listed=False)
    words = (
        "Expected squared norm of the noise in an update: planned by the client, and estimated by the server "
        "(median and range over rounds). The dashed line marks equality."
    )
    return Chart(
        key="noise", title=title, words=words, meaning=meaning, x=Axis(title="planned noise", scale="log"),
        y=Axis(title="estimated noise", scale="log"), series=[diagonal, points],
    )  # fmt: skip


def mean_weights(view: RunView) -> dict[int, float]:
    """Return the mean weight of every client with at least one used update."""
    of: dict[int, list[float]] = {}
    for record in view.records:
        for client, value in record.weights.items():
            if math.isfinite(value):
                of.setdefault(client, []).append(value)
    return {client: statistics.fmean(of[client]) for client in sorted(of)}


def _range_words(view: RunView, mean: Mapping[int, float]) -> str:
    least, most = min(mean, key=mean.__getitem__), max(mean, key=mean.__getitem__)
    low, high = mean[least], mean[most]
    if high <= low * (1 + 1e-6):
        return f"All {len(mean)} clients have the same mean weight, {figure(high, 3)}."
    more = f", {times(high / low)} times that of client {view.name(least)} ({figure(low, 3)})" if low > 0 else ""
    return f"Client {view.name(most)} has the largest mean weight, {figure(high, 3)}{more}."


def _weights(view: RunView, members: Sequence[Guarantee], mean: Mapping[int, float], name: str, number: int) -> Series:
    return Series(
        kind="points", name=name, x=[g.epsilon_budget or 0.0 for g in members], y=[mean[g.client] for g in members],
        labels=[f"client {g.name or view.name(g.client)}, batch {g.batch_size}" for g in members],
        colour=numbered(number), symbol=number,
    )  # fmt: skip
