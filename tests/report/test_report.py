"""The HTML report: what it says, that it asks the network for nothing, and that no file can put markup into it."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hush.config import Config
from hush.pages import document
from hush.pages.chart import Chart, Series
from hush.privacy import round_costs
from hush.privacy.accounting.api import epsilon_of
from hush.privacy.accounting.cost import Cost
from hush.report import write
from hush.report.charts_accuracy import accuracy_by_round
from hush.report.charts_privacy import privacy_by_round
from hush.report.read import read_comparison, read_run
from hush.report.run import run_page
from hush.report.spending import spending
from hush.report.toml import toml
from hush.report.verdict import verdict
from hush.report.worst_client import worst_client
from hush.types import HushError, Policy
from tests.support.report_runs import (
    CLIENTS,
    DELTA,
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
    assert set(found.charts) == {
        f"chart-{name}" for name in ("accuracy", "loss", "clients", "weights", "noise", "privacy")
    }
    assert not list(run.glob("*.part"))


def test_the_card_has_a_row_for_each_client_and_says_once_what_all_share(tmp_path: Path) -> None:
    content = write(make_run(tmp_path / "run")).read_text()
    rows = re.findall(r"<tr>(<td.*?)</tr>", content)
    assert len(rows) == CLIENTS
    cells = re.findall(r'data-value="[^"]*">([^<]*)<', rows[5])
    spent = epsilon_after(32 / 72, 3.0, ROUNDS * STEPS)
    assert cells == ["5", "5", f"{spent:.4g}", f"{spent:.4g}", f"{5 - spent:.4f}", "–", "3", "32", "72"]
    shared = "other releases nothing; δ 0.0001; protects one row; relation add-remove; sampler poisson; accountant PLD"
    assert f"The same for every client: {shared}; noise seeded (not private); clip 1; rounds 20." in content
    assert "<details><summary>Show all" not in content
    card = re.findall(r'<section class="panel"><h3>client 5</h3>(.*?)</section>', content)
    assert len(card) == 1
    assert re.findall("<dd[^>]*>([^<]*)<", card[0]) == cells[1:]


def test_many_clients_are_folded_away(tmp_path: Path) -> None:
    view = read_run(make_run(tmp_path / "run"))
    many = dataclasses.replace(view, guarantees=view.guarantees * 3)
    assert "<details><summary>Show all 60 clients</summary>" in run_page(many)
    crowd = [
        dataclasses.replace(view.guarantees[0], client=c, epsilon_spent=99.0 if c == 2999 else 0.1) for c in range(3000)
    ]
    record_ = dataclasses.replace(view.records[0], accuracy_per_client=tuple(c / 3000 for c in range(3000)),
                                  weights=dict.fromkeys(range(3000), 1 / 3000))  # fmt: skip
    page = run_page(dataclasses.replace(view, guarantees=tuple(crowd), records=(record_,), clients=3000))
    assert len(page) < 1_500_000
    assert "Show 500 of 3,000 clients; result.json has all" in page
    assert 'class="over"' in page and "400 of 3000 clients are drawn" in page


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
    asked: list[tuple[Any, int]] = []

    def count(totals: dict[Any, int], *rest: object) -> float:
        ((key, steps),) = totals.items()
        asked.append((key, steps))
        return float(steps)

    view = read_run(make_run(tmp_path / "run"))
    monkeypatch.setattr(round_costs, "epsilon", count)
    assert len(spending(view).lines) == 4
    assert len(asked) == len(set(asked)) == 4 * 6
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
    assert links_of(found) == ["./robust-hdp/seed-1/report.html"]
    banner = found.text[: found.text.index("2 recipes on digits")]
    assert SIMULATED in banner and "only weiavg" not in banner
    assert found.text.count("only weiavg reveals this") == 1
    assert "hush compare demo.toml --seeds 2" in found.text
    bars, worst = found.charts["chart-recipes"]["series"]
    assert bars["low"] == pytest.approx([0.7877, 0.6877]) and bars["high"] == pytest.approx([0.8123, 0.7123])
    assert worst["y"] == [0.61, 0.61]
    lines = found.charts["chart-rounds"]["series"]
    both = [read_run(root / "weiavg" / f"seed-{seed}").records[4].accuracy_per_client for seed in (1, 2)]
    assert lines[1]["y"][4] == pytest.approx(sum(map(sum, both)) / (2 * CLIENTS), rel=1e-5)
    apart = abs(sum(both[0]) - sum(both[1])) / CLIENTS / 2**0.5
    assert lines[1]["high"][4] - lines[1]["y"][4] == pytest.approx(apart, rel=1e-3)
    assert "robust-hdp is best with 80.0%, ahead of weiavg with 70.0%; the gap is more than" in found.text


def links_of(found: Page) -> list[str | None]:
    """The links of a page, but those within it."""
    listed = [attrs.get("href") for tag, attrs in found.tags if tag == "a"]
    return [link for link in listed if not (link or "").startswith("#")]


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    pages = [shown(make_comparison(tmp_path / name, seeds=seeds)) for name, seeds in (("one", (1,)), ("two", (1, 2)))]
    bars = [page.charts["chart-recipes"]["series"][0] for page in pages]
    assert [bool(bar["low"]) for bar in bars] == [False, True]
    lines = [page.charts["chart-rounds"]["series"][0] for page in pages]
    assert [bool(line["low"]) for line in lines] == [False, True]
    assert "one seed cannot tell whether the order is chance" in pages[0].text
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
        assert links_of(shown(root)) == []
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
        assert found.scripts == 1
        assert not [tag for tag, _ in found.tags if tag == "img"]
        assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
        assert found.text.count(EVIL) >= 3
    assert EVIL in json.loads(json.dumps(found.charts["chart-recipes"]["x"]["categories"]))


def test_chart_data_cannot_end_its_script() -> None:
    part = Series(name=EVIL + "<!--", x=[1.0], y=[2.0], labels=[EVIL])
    content = document.page("title", "kind", document.panels([Chart(key="one", title="", words="", series=[part])]))
    rest = content[content.index('type="application/json">') + 24 :]
    assert not set("<>&") & set(rest[: rest.index("</script>")])
    found = Page(content)
    assert found.scripts == 1
    assert found.charts["chart-one"]["series"][0]["name"] == EVIL + "<!--"


def test_text_in_the_place_of_a_number_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    result["guarantees"][0]["batch_size"] = EVIL
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(HushError, match=r"result\.json") as error:
        write(run)
    assert "\n" not in str(error.value)


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    for path in (make_run(tmp_path / "run"), make_comparison(tmp_path / "all")):
        content = write(path).read_text(encoding="utf-8")
        found = Page(content)
        assert not [tag for tag, _ in found.tags if tag in ("iframe", "img", "object", "embed", "base")]
        assert not [attrs for _, attrs in found.tags if "src" in attrs or "srcset" in attrs]
        # An empty icon keeps the browser from asking for one.
        assert [v for _, attrs in found.tags for n, v in attrs.items() if n == "href" and v and ":" in v] == ["data:,"]
        style = content[content.index("<style>") : content.index("</style>")]
        assert "url(" not in style and "@import" not in style
        policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv"))
        assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
        assert len(content) < 150_000


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


def test_panels_leave_no_holes() -> None:
    def widths(*kinds: str) -> str:
        charts = [
            Chart(key=kind, title="", words="", wide=kind == "wide",
                  series=[Series(name="", x=[1.0], y=[1.0])] * (kind != "words"))
            for kind in kinds
        ]  # fmt: skip
        return "".join(
            "w" if wide else "h" for wide in re.findall(r'<figure class="panel( wide)?', document.panels(charts))
        )

    assert widths("half", "half", "half", "half", "wide") == "hhhhw"
    assert widths("half", "half", "half", "words", "wide") == "hhwww"
    assert widths("half", "wide", "half") == "www"


def test_cells_sort_as_numbers_even_without_bounds() -> None:
    values = (float("inf"), None, float("nan"), 2.5, 3, "word")
    made = document.table([("a", "")], [[(value, "x", "")] for value in values], "name")
    assert re.findall('data-value="([^"]*)"', made) == ["Infinity", "-Infinity", "-Infinity", "2.5", "3", "word"]


def test_a_sweep_is_drawn_by_its_number_of_settings(tmp_path: Path) -> None:
    root = make_comparison(tmp_path / "all", ("a", "b", "c", "d"), (1,))
    raw = json.loads((root / "comparison.json").read_text())
    axes = {"local.lr": ["0.1", "0.2", "0.4", "0.8"]}
    for name, lr in zip("abcd", axes["local.lr"], strict=True):
        raw["recipes"][name]["place"] = [lr]
    (root / "comparison.json").write_text(json.dumps({**raw, "axes": axes}))
    one = shown(root)
    assert "Sweep of local.lr on digits: 4 combinations" in one.text and "sweep report" in one.text
    assert one.charts["chart-sweep"]["series"][0]["y"] == pytest.approx([0.7, 0.8, 0.9, 1.0])
    assert "local.lr = 0.8 is best with 100.0%; it is at the end of the values tried for local.lr" in one.text
    axes = {"local.lr": ["0.1", "0.2"], "privacy.clip": ["1", "2"]}
    for name, place in zip("abcd", (["0.1", "1"], ["0.1", "2"], ["0.2", "1"], ["0.2", "2"]), strict=True):
        raw["recipes"][name]["place"] = place
    (root / "comparison.json").write_text(json.dumps({**raw, "axes": axes}))
    two = shown(root).charts["chart-sweep"]["series"][0]
    assert sorted(zip(two["x"], two["y"], two["values"], strict=True)) == [
        (0, 0, pytest.approx(0.7)), (0, 1, pytest.approx(0.8)), (1, 0, pytest.approx(0.9)), (1, 1, pytest.approx(1.0)),
    ]  # fmt: skip
    axes["rounds"] = ["5"]
    for name in "abcd":
        raw["recipes"][name]["place"].append("5")
    (root / "comparison.json").write_text(json.dumps({**raw, "axes": axes}))
    three = shown(root).charts["chart-sweep"]
    assert three["x"]["categories"] == ["local.lr", "privacy.clip", "rounds", "accuracy"]
    assert shown(root).charts["chart-recipes"]["x"]["categories"][0] == "0.2, 2, 5"
    assert [part["y"] for part in three["series"] if part["listed"]][-1] == [1.0, 1.0, 0.5, 1.0]


def test_clusters_are_drawn(tmp_path: Path) -> None:
    records = [record(1, placed=dict.fromkeys(range(CLIENTS), -1))]
    records += [record(n, placed={c: int(c < 5 or (n == 2 and c < 9)) for c in range(CLIENTS)}) for n in range(2, 6)]
    found = shown(make_run(tmp_path / "run", rounds=5, records=records))
    places = found.charts["chart-clusters"]["series"]
    assert [part["name"] for part in places] == ["model 0", "model 1"]
    assert [len(part["x"]) for part in places] == [11 + 3 * 15, 9 + 3 * 5]
    assert "model 0: 15, model 1: 5; nobody changed place after round 3" in found.text
    assert "The weights of each cluster model sum to one" in found.text.replace("the weights", "The weights")


def test_the_worst_client_is_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    view = read_run(run)
    scores = view.scores
    worst = scores.index(min(scores))
    said = worst_client(view)
    assert said[0].startswith(f"Client {worst}: accuracy {100 * min(scores):.1f}%; the mean over 20 clients is")
    budget = view.guarantees[worst].epsilon_budget
    assert any(f"Its budget of ε {budget:g} is" in sentence for sentence in said)
    assert any("36 % of an equal share" in sentence for sentence in said)
    equal = dataclasses.replace(view, records=tuple(
        dataclasses.replace(r, accuracy_per_client=tuple(0.2 + 0.01 * c for c in range(CLIENTS))) for r in view.records
    ))  # fmt: skip
    assert worst_client(equal)[0].startswith("Client 0: ")
    assert "Its budget of ε 2 is the strictest of 20 clients." in worst_client(equal)


def test_a_federations_page_has_no_simulated_facts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", records=[record(n, refused={3: "budget spent"}) for n in range(1, 4)], rounds=3)
    (run / "federation.json").write_text("{}")
    found = shown(run)
    assert "chart-clients" not in found.charts
    assert "Worst client" not in found.text and "over the clients' test sets" not in found.text
    assert "on the coordinator's public test set" in found.text
    assert "federation report" in found.text and "budget spent" in found.text
    assert "mean over clients" not in found.text.lower() and "The mean" not in found.text
    assert found.charts["chart-accuracy"]["series"][0]["low"] == []


def test_every_chart_has_a_sentence_and_a_text_alternative(tmp_path: Path) -> None:
    for path in (make_run(tmp_path / "run"), make_comparison(tmp_path / "all")):
        content = write(path).read_text()
        panels = re.findall(r'<figure class="panel.*?</figure>', content, re.DOTALL)
        assert panels
        for panel in panels:
            sentence = re.search(r'<p class="meaning">(.+?)</p>', panel)
            assert sentence is not None
            assert panel.count(f'{sentence[1]}">') == 2


def test_the_report_of_a_long_run_is_small(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", rounds=2, records=[record(1), record(2)])
    lines = (made / "rounds.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    (made / "rounds.jsonl").write_text("".join(json.dumps({**first, "round": n}) + "\n" for n in range(1, 2001)))
    assert write(made).stat().st_size < 1_500_000


def test_the_chart_of_privacy_has_what_enrolment_and_earlier_runs_charged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, finished=False)
    view = read_run(run)
    rows = Cost(what="model update", kind="poisson-gaussian", noise=3.0, steps=STEPS, rate=16 / 72)
    earlier = Cost(what="earlier", kind="gaussian", noise=2.0, steps=1)
    kinds = [round_costs.ClientCosts(policy=Policy(9.0, DELTA), accountant="pld", earlier=before, stages=((rows,),))
             for before in ((), (earlier,))]  # fmt: skip
    costs = round_costs.RoundCosts(tuple(kinds[client % 2] for client in range(CLIENTS)), ())
    (run / "privacy.json").write_bytes(costs.to_json())
    view = read_run(run)
    plain, more = sorted(spending(view).lines, key=lambda line: line.epsilon)
    assert plain.epsilon == pytest.approx([epsilon_after(16 / 72, 3.0, STEPS * k) for k in (1, 2, 3, 4)])
    assert all(b > a + 0.5 for a, b in zip(plain.epsilon, more.epsilon, strict=True))
    assert more.epsilon[0] == pytest.approx(epsilon_of([rows, earlier], DELTA, "add-remove", "pld"))
    assert "chart-privacy" in shown(run).charts


def test_the_sentence_on_the_course_takes_no_loss_for_a_gain(tmp_path: Path) -> None:
    def said(*means: float) -> str:
        records = [record(n, accuracy_per_client=(mean,) * CLIENTS) for n, mean in enumerate(means, 1)]
        return accuracy_by_round(dataclasses.replace(view, records=tuple(records))).meaning

    view = read_run(make_run(tmp_path / "run"))
    assert said(0.5, 0.1, 0.2, 0.7) == "The mean goes from 50.0% to 70.0%; 90 % of the gain is reached by round 4."
    assert said(0.5, 0.69, 0.6, 0.7).endswith("by round 2.")
    assert said(0.5, 0.4).endswith("it does not improve over the 2 rounds.")
    assert said(0.5) == "After round 1 the mean is 50.0%."
