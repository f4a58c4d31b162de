"""The page of `hush plan --plot`: epsilon by round for one client, or noise and weight of every client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hush.engines.preview import Preview
from hush.privacy.forecast import Forecast
from hush.report import figures
from hush.report.figures import Chart, layout, log_axis, round_axis, scale
from hush.report.page import page, panels
from hush.report.wording import figure, safe
from hush.server.run_directory import write_atomically
from hush.types import HushError


def write_plan(path: Path, found: Forecast | Sequence[Preview]) -> Path:
    """Write the page for the forecast of one client, or for the previews of all clients."""
    chart = _by_round(found) if isinstance(found, Forecast) else _by_client(found)
    body = f"<h1>{safe(chart.title)}</h1>{panels([chart])}"
    try:
        write_atomically(path, page(f"{chart.title} · Hush", "plan", body, [chart]).encode())
    except OSError as error:
        raise HushError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _by_round(found: Forecast) -> Chart:
    budget = found.policy.epsilon
    line = {
        "x": [0, *found.marks], "y": [0.0, *found.spent], "mode": "lines+markers",
        "line": {"color": figures.MAIN}, "hovertemplate": "after round %{x}: epsilon %{y:.4g}<extra></extra>",
    }  # fmt: skip
    mark = {
        "x": [0, found.rounds], "y": [budget, budget], "mode": "lines", "hoverinfo": "skip",
        "line": {"color": figures.QUIET, "dash": "dash", "width": 1},
    }  # fmt: skip
    words = (
        f"Epsilon against the server after each round, at delta {found.policy.delta:g}; the dashed line is the budget "
        f"of {figure(budget)}. Noise multiplier {figure(found.chosen.noise_multiplier)}, batch {found.chosen.batch} of "
        f"{found.samples}, {found.chosen.steps} steps per round. With this noise the budget covers "
        f"{found.affordable_rounds} rounds."
    )
    shape = layout(round_axis(found.rounds), scale("epsilon", [*found.spent, budget], 1e9))
    return Chart(
        key="plan", title="Privacy spent by round", words=words, data=[mark, line], layout=shape, height=420, wide=True
    )


def _by_client(found: Sequence[Preview]) -> Chart:
    private = [each for each in found if each.noise_variance > 0]
    title = "Noise and weight per client"
    if not private:
        return Chart(key="plan", title=title, words="No client adds noise under this recipe.", wide=True)
    dots = {
        "x": [each.epsilon_budget for each in private], "y": [each.noise_variance for each in private],
        "mode": "markers",
        "marker": {"color": figures.MAIN, "size": [8 + 40 * each.weight**0.5 for each in private], "opacity": 0.6},
        "customdata": [[each.name or each.client, each.weight, each.batch_size] for each in private],
        "hovertemplate": "client %{customdata[0]}, batch %{customdata[2]}<br>epsilon %{x:.4g}<br>noise %{y:.4g}"
        "<br>weight %{customdata[1]:.4f}<extra></extra>",
    }  # fmt: skip
    words = (
        "Expected squared norm of the noise in one update, against the budget; the marker area is the expected weight."
    )
    shape = layout(
        log_axis("epsilon budget", [each.epsilon_budget for each in private]),
        log_axis("noise in an update", [each.noise_variance for each in private]),
    )
    return Chart(key="plan", title=title, words=words, data=[dots], layout=shape, height=460, wide=True)
