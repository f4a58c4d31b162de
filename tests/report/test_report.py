"""The HTML report: what it says, that it asks the network for nothing, and that no file can put markup into it."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest

from hush.config import Config
from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.report import figures, page, write
from hush.report.charts_privacy import privacy_by_round
from hush.report.read import read_comparison, read_run
from hush.report.run import run_page
from hush.report.spending import spending
from hush.report.toml import toml
from hush.report.verdict import verdict
from hush.types import HushError
from tests.support.report_runs import (
    CLIENTS,
    ROUNDS,
    SIMULATED,
    STEPS,
    Page,
    epsilon_after,
    guarantee,
    make_comparison,
    make_run,
    record,
)


@pytest.fixture(autouse=True)
def small_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave plotly.js out of the pages, but for the tests that are about it: they are easier to search."""
    if "real_library" not in request.fixturenames:
        monkeypatch.setattr(page, "_library", lambda: "window.Plotly={react(){}}")


def shown(path: Path) -> Page:
    return Page(write(path).read_text(encoding="utf-8"))


def test_a_finished_run_tells_its_story_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    found = shown(run)
    accuracies = read_run(run).scores
    first = found.text[: found.text.index("Guarantee card")]
    assert first.index("Not private: seeded noise") < first.index("robust-hdp on digits")
    assert SIMULATED in first
    assert "logreg (650 parameters), 20 clients, 20 rounds, seed 1" in first
    assert f"Mean accuracy {100 * sum(accuracies) / CLIENTS:.1f}%" in first
    assert f"Worst client {100 * min(accuracies):.1f}% client {accuracies.index(min(accuracies))};" in first
    assert "budgets 2 to 30" in first
    assert set(found.charts) == {f"chart-{name}" for name in ("accuracy", "clients", "weights", "noise", "privacy")}
    assert not list(run.glob("*.part"))


def test_every_figure_is_one_that_plotly_accepts(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    drawn = [
        *shown(make_run(tmp_path / "run")).charts.values(),
        *shown(make_comparison(tmp_path / "all")).charts.values(),
    ]
    assert len(drawn) == 7
    for chart in drawn:
        go.Figure(chart)
    with pytest.raises(ValueError, match="Invalid property"):
        go.Figure({"data": [{"type": "bar", "no_such_key": 1}]})


def test_the_card_has_a_row_for_each_client(tmp_path: Path) -> None:
    content = write(make_run(tmp_path / "run")).read_text()
    rows = re.findall(r"<tr>(<td.*?)</tr>", content)
    assert len(rows) == CLIENTS
    cells = re.findall(r'data-value="[^"]*">([^<]*)<', rows[5])
    spent = epsilon_after(32 / 72, 3.0, ROUNDS * STEPS)
    assert cells == [
        "5", "5", f"{spent:.4g}", f"{5 - spent:.4f}", "–", "nothing", "0.0001", "add-remove",
        "poisson", "PLD", "seeded (not private)", "3", "1", "32", "72", "20",
    ]  # fmt: skip
    assert "<details><summary>Show all" not in content


def test_many_clients_are_folded_away(tmp_path: Path) -> None:
    view = read_run(make_run(tmp_path / "run"))
    many = dataclasses.replace(view, guarantees=view.guarantees * 3)
    assert "<details><summary>Show all 60 clients</summary>" in run_page(many)


def test_an_unfinished_run_says_how_far_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=7, finished=False)
    with (run / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 8, "weig')
    found = shown(run)
    assert "round 7 of 20, not finished" in found.text
    assert "Available when the run ends." in found.text
    assert "chart-accuracy" in found.charts and "chart-privacy" not in found.charts


def test_a_run_before_its_first_round_has_a_page(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path / "run", records=[], finished=False))
    assert "round 0 of 20, not finished" in found.text
    assert found.charts == {}


def test_no_privacy_is_said_first(tmp_path: Path) -> None:
    silent = [dataclasses.replace(record(1), noise_planned=dict.fromkeys(range(CLIENTS), 0.0), noise_estimated={})]
    card = {"noise": "none", "epsilon_spent": float("inf"), "clip": float("inf"), "noise_multiplier": 0.0}
    done = shown(make_run(tmp_path / "done", recipe="fedavg", rounds=1, records=silent, card=card))
    half = shown(make_run(tmp_path / "half", recipe="fedavg", rounds=1, records=silent, finished=False))
    for found in (done, half):
        assert found.text.split("run report ")[1].startswith("No privacy ")
    assert "Largest ε spent ∞" in done.text
    assert "This recipe does not estimate noise." in done.text
    assert "no noise was added" in done.text
    assert "chart-privacy" not in done.charts and "chart-noise" not in done.charts


def test_the_verdict_depends_on_noise_and_budgets(tmp_path: Path) -> None:
    kept = {"epsilon_budget": 1000.0}
    broken = {"epsilon_budget": 0.001}
    marks = {
        name: verdict(read_run(make_run(tmp_path / name, noise_mode=mode, card=card))).mark
        for name, mode, card in (("a", "secure", kept), ("b", "secure", broken), ("c", "seeded", broken))
    }
    assert marks == {"a": "within budget", "b": "over budget", "c": "seeded noise, over budget"}
    found = shown(tmp_path / "c")
    assert "20 of 20 clients spent more than their own budget" in found.text
    assert "Within budget 0 of 20" in found.text
    assert 'class="over"' in (tmp_path / "c" / "report.html").read_text()


def test_privacy_is_counted_in_the_rounds_that_were_paid_for(tmp_path: Path) -> None:
    records = [record(number) for number in range(1, 5)]
    without = {c: w for c, w in records[0].weights.items() if c > 1}
    records[0] = dataclasses.replace(records[0], weights=without, charged=tuple(range(1, CLIENTS)))
    view = read_run(make_run(tmp_path / "run", rounds=4, records=records))
    cards = [guarantee(0, 3), *(guarantee(client, 4) for client in range(1, CLIENTS))]
    lines = spending(dataclasses.replace(view, guarantees=tuple(cards))).lines
    by_client = {client: line for line in lines for client in line.clients}
    assert by_client[0].rounds == (2, 3, 4)
    assert by_client[1].rounds == (1, 2, 3, 4)
    assert by_client[0].epsilon == pytest.approx([epsilon_after(16 / 72, 6.0, STEPS * k) for k in (1, 2, 3)])
    assert by_client[1].epsilon == pytest.approx([epsilon_after(32 / 72, 3.0, STEPS * k) for k in (1, 2, 3, 4)])
    assert len(lines) == 5


def test_equal_plans_are_computed_once_and_many_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def count(costs: list[Cost], *rest: object) -> float:
        asked.append((costs[0].noise, costs[0].steps))
        return costs[0].noise * costs[0].steps

    view = read_run(make_run(tmp_path / "run"))
    monkeypatch.setattr(api, "epsilon_of", count)
    assert len(spending(view).lines) == 4
    assert len(asked) == len(set(asked)) == 4 * 5
    members = range(100)
    everyone = tuple(record(number, charged=tuple(members)) for number in range(1, ROUNDS + 1))
    prices = [({**view.guarantees[0].stages[0][0], "noise": 1 + c / 10},) for c in members]
    cards = tuple(dataclasses.replace(view.guarantees[0], client=c, stages=(prices[c],)) for c in members)
    many = dataclasses.replace(view, records=everyone, guarantees=cards)
    assert (len(spending(many).lines), spending(many).total) == (60, 100)
    assert "60 of 100 distinct plans" in privacy_by_round(many).words


def test_a_comparison_ranks_recipes_and_links_to_their_runs(tmp_path: Path) -> None:
    root = make_comparison(tmp_path / "all")
    write(root / "robust-hdp" / "seed-1")
    found = shown(root)
    assert found.text.index("robust-hdp 80.0% 1.2% 61.0%") < found.text.index("weiavg 70.0% 1.2% 61.0%")
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a"]
    assert links == ["./robust-hdp/seed-1/report.html"]
    banner = found.text[: found.text.index("2 recipes on digits")]
    assert SIMULATED in banner and "only weiavg" not in banner
    assert found.text.count("only weiavg reveals this") == 1
    assert "hush compare demo.toml --seeds 2" in found.text
    bars, worst = found.charts["chart-recipes"]["data"]
    assert bars["error_y"]["array"] == [0.0123, 0.0123] and worst["y"] == [0.61, 0.61]
    lines = found.charts["chart-rounds"]["data"]
    both = [read_run(root / "weiavg" / f"seed-{seed}").records[4].accuracy_per_client for seed in (1, 2)]
    assert lines[1]["y"][4] == pytest.approx(sum(map(sum, both)) / (2 * CLIENTS))


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    bars = [shown(make_comparison(tmp_path / name, seeds=seeds)).charts["chart-recipes"]["data"][0]
            for name, seeds in (("one", (1,)), ("two", (1, 2)))]  # fmt: skip
    assert [bar["error_y"]["visible"] for bar in bars] == [False, True]
    assert ["±" in bar["hovertemplate"] for bar in bars] == [False, True]
    deviations = [read_comparison(tmp_path / name).recipes[0].deviation for name in ("one", "two")]
    assert deviations[0] is None
    assert deviations[1] is not None


def test_a_comparison_links_to_nothing_outside_itself(tmp_path: Path) -> None:
    make_run(tmp_path / "outside")
    write(tmp_path / "outside")
    root = make_comparison(tmp_path / "all", ("weiavg",), (1,))
    raw = json.loads((root / "comparison.json").read_text())
    write(root / "weiavg" / "seed-1")
    for path in ("../outside", str(tmp_path / "outside"), str(root / "weiavg" / "seed-1"), "javascript:alert(1)"):
        raw["recipes"]["weiavg"]["runs"][0]["path"] = path
        (root / "comparison.json").write_text(json.dumps(raw))
        assert not [tag for tag, _ in shown(root).tags if tag == "a"]
        assert read_comparison(root).recipes[0].runs[0].run is None


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;"


def test_markup_in_files_stays_text(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", recipe=EVIL, command=EVIL, not_covered=(EVIL,), card={"sampler": EVIL, "noise": EVIL},
    )  # fmt: skip
    whole = make_comparison(tmp_path / "all", (EVIL,), (1,))
    write(whole / EVIL.replace("/", "_") / "seed-1")
    for path in (run, whole):
        found = shown(path)
        scripts = [attrs for tag, attrs in found.tags if tag == "script"]
        assert len(scripts) == 3
        assert not [tag for tag, _ in found.tags if tag == "img"]
        assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
        assert found.text.count(EVIL) >= 3
    labels = json.dumps(Page((whole / "report.html").read_text()).charts)
    assert "&lt;script" in labels and "<script" not in labels


def test_chart_data_cannot_end_its_script() -> None:
    trace = {"type": "bar", "name": EVIL + "<!--"}
    content = page.page("title", "kind", "", [figures.Chart("one", "", "", [trace], {})])
    held = content[content.index('id="charts">') + 12 : content.index("<script>")].strip().removesuffix("</script>")
    assert not set("<>&") & set(held)
    found = Page(content)
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 3
    assert found.charts == {"chart-one": {"data": [trace], "layout": {}}}


def test_text_in_the_place_of_a_number_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    result["guarantees"][0]["batch_size"] = EVIL
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(HushError, match=r"result\.json") as error:
        write(run)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("real_library")
def test_the_page_needs_no_network(tmp_path: Path) -> None:
    for path in (make_run(tmp_path / "run"), make_comparison(tmp_path / "all")):
        content = write(path).read_text(encoding="utf-8")
        assert content.count("* plotly.js v") == 1
        found = Page(content)
        assert not [tag for tag, _ in found.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
        assert not [attrs for _, attrs in found.tags if "src" in attrs or "srcset" in attrs]
        assert not [v for _, attrs in found.tags for n, v in attrs.items() if n == "href" and v and ":" in v]
        style = content[content.index("<style>") : content.index("</style>")]
        assert "url(" not in style and "@import" not in style
        policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv"))
        assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
        assert len(content) < 6_000_000


@pytest.fixture
def real_library() -> None:
    """Marks a test that wants plotly.js itself."""


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert write(run).read_bytes() == write(run).read_bytes()


def test_the_config_on_the_page_is_the_config(tmp_path: Path) -> None:
    raw = Config.model_validate(
        {
            "data": {"partition": {"name": "dirichlet", "alpha": 0.1}, "sizes": [3, 4]},
            "privacy": {"budgets": [0.1, 1e-7], "delta": 1e-5},
            "recipe": {"name": 'a "quoted\\ näme"\n\x7f', "weight": {"rule": "epsilon"}},
        }
    ).model_dump()
    assert Config.model_validate(tomllib.loads(toml(raw))).model_dump() == raw
    assert "seed" not in tomllib.loads(toml({**raw, "seed": None}))


@pytest.mark.parametrize("broken", ["manifest.json", "result.json", "rounds.jsonl"])
def test_a_file_of_another_kind_is_named_in_one_line(tmp_path: Path, broken: str) -> None:
    run = make_run(tmp_path / "run")
    (run / broken).write_text('{"guarantees": [{"client": 1}]}\n')
    with pytest.raises(HushError, match=broken) as error:
        write(run)
    assert "\n" not in str(error.value)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(HushError, match=path.name) as error:
            write(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("last", "step"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 5), (200, 20), (1001, 200)])
def test_round_ticks_are_whole_and_few(last: int, step: int) -> None:
    assert figures.round_axis(last)["dtick"] == step


def test_log_ticks_are_round_and_inside() -> None:
    few = figures.log_axis("epsilon", [0.2, 3.0])
    assert few["ticktext"] == ["0.2", "0.5", "1", "2"]
    many = figures.log_axis("noise", [1e-9, 1e9])
    assert many["tickvals"] == pytest.approx([1e-11 * 10.0 ** (4 * i) for i in range(1, 6)], rel=1e-9)
    assert many["ticktext"][0] == "10<sup>-7</sup>"
    assert figures.scale("epsilon", [1.0, 9.0]).get("type") is None
    assert figures.scale("epsilon", [0.0, 100.0]).get("type") is None
    assert figures.scale("epsilon", [1.0, 11.0])["type"] == "log"


def test_panels_leave_no_holes() -> None:
    def widths(*kinds: str) -> str:
        charts = [figures.Chart(kind, "", "", [{}] * (kind != "words"), wide=kind == "wide") for kind in kinds]
        return "".join(
            "w" if wide else "h" for wide in re.findall(r'<figure class="panel( wide)?"', page.panels(charts))
        )

    assert widths("half", "half", "half", "half", "wide") == "hhhhw"
    assert widths("half", "half", "half", "words", "wide") == "hhwww"
    assert widths("half", "wide", "half") == "www"


def test_cells_sort_as_numbers_even_without_bounds() -> None:
    made = page.table([("a", "")], [[(value, "x", "")] for value in (float("inf"), None, float("nan"), 2.5, 3, "word")])
    assert re.findall('data-value="([^"]*)"', made) == ["Infinity", "-Infinity", "-Infinity", "2.5", "3", "word"]
