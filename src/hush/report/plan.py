"""The page of `hush plan --plot`: epsilon by round for one client, or noise and weight of every client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hush.engines.preview import Preview
from hush.pages.chart import Axis, Chart, Rule, Series, scaled
from hush.pages.document import page, panels
from hush.pages.wording import figure, safe
from hush.privacy.forecast import Forecast
from hush.report.correlation import rank_correlation
from hush.server.run_directory import write_atomically
from hush.types import HushError


def write_plan(path: Path, found: Forecast | Sequence[Preview]) -> Path:
    """Write the page for the forecast of one client, or for the previews of all clients."""
    chart = _by_round(found) if isinstance(found, Forecast) else _by_client(found)
    body = f"<h1>{safe(chart.title)}</h1>{panels([chart])}"
    try:
        write_atomically(path, page(f"{chart.title} · Hush", "plan", body).encode())
    except OSError as error:
        raise HushError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _by_round(found: Forecast) -> Chart:
    budget = found.policy.epsilon
    line = Series(name="epsilon", x=[0.5, *map(float, found.marks)], y=[0.0, *found.spent])
    words = (
        f"Epsilon against the server after each round, at delta {found.policy.delta:g}; the dashed line is the budget. "
        f"Noise multiplier {figure(found.chosen.noise_multiplier)}, batch {found.chosen.batch} of {found.samples}, "
        f"{found.chosen.steps} steps per round."
    )
    meaning = (
        f"{found.rounds} rounds spend epsilon {figure(found.spent[-1], 3)} of the budget of {figure(budget)}; with "
        f"this noise the budget covers {found.affordable_rounds} rounds."
    )
    return Chart(
        key="plan", title="Privacy spent by round", words=words, meaning=meaning,
        x=Axis(title="round", scale="round"), y=Axis(title="epsilon", from_zero=True), series=[line],
        rules=[Rule(budget, "budget")], height=420, wide=True,
    )  # fmt: skip


def _by_client(found: Sequence[Preview]) -> Chart:
    private = [each for each in found if each.noise_variance > 0]
    title = "Noise and weight per client"
    if not private:
        return Chart(key="plan", title=title, words="No client adds noise under this recipe.", wide=True)
    budgets, weights = [each.epsilon_budget for each in private], [each.weight for each in private]
    points = Series(
        kind="points", name="clients", x=budgets, y=[each.noise_variance for each in private],
        labels=[
            f"client {each.name or each.client}, batch {each.batch_size}, weight {figure(each.weight)}"
            for each in private
        ],
    )  # fmt: skip
    most = max(private, key=lambda each: each.weight)
    followed = rank_correlation(budgets, weights)
    meaning = f"Client {most.name or most.client} has the largest expected weight, {figure(most.weight, 3)}."
    if followed is not None:
        meaning += f" The rank correlation of budgets and weights is {followed:.2f}."
    return Chart(
        key="plan", title=title, words="Expected squared norm of the noise in one update, against the budget.",
        meaning=meaning, x=scaled("epsilon budget", budgets), y=scaled("noise in an update", list(points.y)),
        series=[points], height=460, wide=True,
    )  # fmt: skip
