"""What may set a weight is fixed at enrolment: public by the member's own choice, or noised and charged."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.api import simulate
from hush.config import Config, parse
from hush.deploy.admin import audit_log, localhost
from hush.deploy.coordinator.enrolment import check_asked, facts_of, fitting
from hush.deploy.shared.roster import BUDGET, IMPACT, RosterEntry, weighted
from hush.deploy.shared.run_spec import assemble, plausible
from hush.deploy.transport.messages import Message
from hush.privacy.accounting.cost import Cost, from_json
from hush.privacy.ledger import Ledger
from hush.privacy.ledger.statement import describe, export
from hush.privacy.schedule import ENROLMENT
from hush.recipes import RECIPES
from hush.recipes import parse as parse_recipe
from hush.recipes.slots.weight import COUNT, Impact
from hush.types import HushError, RunResult
from tests.support import federation_kit as kit
from tests.support.fork_server import ForkServer

ALL = 'samples = "noised"\nbudget = "noised"\nimpact = "noised"\nfactor = 0.5\nnoise = 20.0\nbudget_row = 0.01'
IMPACT_RECIPE = {"name": "robust-hdp", "weight": {"rule": "impact"}}


def charged(path: Path) -> list[tuple[str, float]]:
    rows = [row for row in export(path / "ledger.db") if row["kind"] == "RESERVED"]
    return [(cost.what, cost.noise) for row in rows for cost in from_json(row["detail"])]


def test_public_numbers_are_disclosed_as_they_are_and_cost_nothing(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"], more="factor = 0.25"))
    answer = asks.enrol(kit.config(recipe=IMPACT_RECIPE)).fields
    assert (answer["samples"], answer["epsilon"], answer["factor"], answer["noised"]) == (kit.ROWS, 1.0, 0.25, {})
    assert charged(tmp_path / "a") == []
    asks.run = "plain"
    assert asks.enrol(kit.config()).fields["factor"] is None, "nobody asked"


def test_all_that_is_noised_is_charged_at_once_and_disclosed_the_same_again(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"], more=f"{ALL}\nlifetime = 9.0"))
    offer = kit.config(recipe=IMPACT_RECIPE)
    first = asks.enrol(offer).fields
    assert set(first["noised"]) == {COUNT, BUDGET, IMPACT}
    assert charged(tmp_path / "a") == [(COUNT, 20.0), (BUDGET, 20.0), (IMPACT, 20.0)]
    assert asks.enrol(offer).fields == first
    assert len(charged(tmp_path / "a")) == 3
    assert 0 <= first["factor"] <= 1
    assert first["samples"] >= 1
    assert first["noised"][BUDGET][1] == pytest.approx(0.2)
    others = set()
    for run in ("b", "c", "d", "e"):
        asks.run = run
        others.add(asks.enrol(offer).fields["epsilon"])
    assert len(others) == 4


def test_an_enrolment_cut_short_is_charged_anew_also_while_the_ledger_is_held(tmp_path: Path) -> None:
    """What was reserved and not sealed is forfeited; what was sealed is sent again as the same bytes."""
    words: dict[str, Any] = {"samples": "noised", "more": "lifetime = 9.0"}
    before = kit.member(tmp_path / "a", **words)
    before.ledger.reserve([Cost(what=COUNT, kind="gaussian", noise=10.0, steps=1)], kit.RUN, ENROLMENT)
    before.ledger.close()
    with Ledger.open(tmp_path / "a" / "ledger.db") as holder:
        holder.reserve([Cost(what=COUNT, kind="gaussian", noise=10.0, steps=1)], "other", ENROLMENT)
        node = kit.member(tmp_path / "a", **words)
        node.ledger.reserve([Cost(what=COUNT, kind="gaussian", noise=10.0, steps=1)], kit.RUN, ENROLMENT, 2)
        node.ledger.close()
        asks = kit.Coordinator(kit.member(tmp_path / "a", **words))
        first = asks.enrol(kit.config())
        asks.node.ledger.close()
        again = kit.Coordinator(kit.member(tmp_path / "a", **words))
        assert again.enrol(kit.config()).fields == first.fields
        assert first.kind == "facts"
        assert describe(tmp_path / "a" / "ledger.db")["charges"] == {"RESERVED": 1, "READY": 0, "SENT": 1, "BURNED": 2}
        again.node.ledger.close()


def test_what_enrolment_costs_is_saved_in_training(tmp_path: Path) -> None:
    """The noise of every round grows a little, and all rounds fit: nobody leaves early for a number it disclosed."""
    asks = kit.Coordinator(kit.member(tmp_path / "a", samples="noised"))
    answer = asks.enrol(kit.config()).fields
    facts = {key: answer[key] for key in ("samples", "noised")}
    assert "differs from what it declared" in asks.begin(kit.config()).fields["reason"]
    assert asks.begin(kit.config(), **facts).kind == "ready"
    assert [asks.task(number).kind for number in range(1, 5)] == ["update"] * 4
    found = charged(tmp_path / "a")
    assert [what for what, _ in found] == [COUNT, *["model update"] * 4]
    assert found[1][1] > 1.001 * kit.planned(kit.config(), asks.node, answer["samples"])
    assert 0.97 < asks.node.ledger.spent() <= 1.0 + 1e-9


def test_a_budget_too_small_to_disclose_is_not_disclosed(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", epsilon=0.05, samples="noised", more="noise = 1.0"))
    answer = asks.enrol(kit.config())
    assert (answer.kind, answer.fields["final"]) == ("no", True)
    assert charged(tmp_path / "a") == []


def test_bounds_allow_for_what_noise_hides() -> None:
    offer = kit.config()
    plain = [RosterEntry(name=name, epsilon=1.0, delta=1e-4, relation="add-remove", samples=kit.ROWS) for name in "ab"]
    unsure = [
        plain[0],
        RosterEntry(
            name="b", epsilon=1.0, delta=1e-4, relation="add-remove", samples=kit.ROWS, noised={COUNT: [10.0, 10.0]}
        ),
    ]
    tight, loose = (assemble(offer, facts, kit.data()).terms.bounds[0] for facts in (plain, unsure))
    assert tight[0] == loose[0]
    assert 1.05 * tight[1] < loose[1] < 20 * tight[1]


def test_factors_come_from_all_or_from_none() -> None:
    _, recipe = parse_recipe(IMPACT_RECIPE, "strict")  # type: ignore[arg-type]

    def facts(*factors: float | None) -> list[RosterEntry]:
        return [
            RosterEntry(name=f"m{i}", epsilon=1.0, delta=1e-4, relation="add-remove", samples=9, factor=factor)
            for i, factor in enumerate(factors)
        ]

    found = weighted(recipe, facts(0.5, 0.25, 0.25)).weight
    assert isinstance(found, Impact)
    assert found.factors == [0.5, 0.25, 0.25]
    assert weighted(recipe, facts(None, None)) == recipe
    with pytest.raises(HushError, match="from m1"):
        weighted(recipe, facts(0.5, None))
    with pytest.raises(HushError, match="impact factor 0"):
        weighted(recipe, facts(0.0, 0.0))


def test_true_clusters_are_disclosed_by_their_members_or_not_at_all(tmp_path: Path) -> None:
    offer = kit.config(recipe={"name": "o-cdpfl"})
    silent = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"], uncovered=True))
    assert "enrol.group" in silent.enrol(offer).fields["reason"]
    asks = kit.Coordinator(kit.member(tmp_path / "b", "b", recipes=["any"], group=1))
    assert asks.enrol(offer).fields["group"] == 1


GOOD = {
    **asdict(RosterEntry(name="a", epsilon=1.0, delta=1e-5, relation="add-remove", samples=50)),
    "run": "r",
    "head": "",
}
BAD: list[dict[str, Any]] = [
    {"epsilon": -1.0}, {"epsilon": "1"}, {"epsilon": True}, {"delta": 0.0}, {"delta": 2.0}, {"relation": "other"},
    {"samples": 0}, {"samples": 1.5}, {"samples": 1 << 60}, {"factor": 2.0}, {"factor": "x"}, {"group": -1},
    {"group": 1 << 40}, {"noised": []}, {"noised": {"loss": [1.0, 1.0]}}, {"noised": {COUNT: [0.0, 1.0]}},
    {"noised": {COUNT: 3}}, {"name": "b"}, {"run": "s"}, {"head": 3}, {"extra": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=str)
def test_impossible_declarations_are_refused(change: dict[str, Any]) -> None:
    assert facts_of(Message("facts", GOOD), "a", "r")[0].samples == 50
    with pytest.raises(HushError):
        facts_of(Message("facts", {**GOOD, **change}), "a", "r")


ODD: list[dict[str, Any]] = [
    {"delta": 1e-300}, {"noised": {COUNT: [1e-300, 1e300]}}, {"noised": {COUNT: [1e300, 1e300]}},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("change", ODD, ids=str)
def test_who_declares_what_no_plan_can_be_made_of_stays_out_alone(change: dict[str, Any]) -> None:
    found, _ = facts_of(Message("facts", {**GOOD, **change}), "a", "r")
    plausible(kit.config(), RECIPES["robust-hdp"], facts_of(Message("facts", GOOD), "a", "r")[0], 0)
    with pytest.raises(HushError, match="no valid plan exists"):
        plausible(kit.config(), RECIPES["robust-hdp"], found, 0)


@pytest.mark.parametrize("disclosed", [0.01, 1.0, 25.0])
def test_a_budget_that_is_all_noise_ends_no_run(disclosed: float) -> None:
    """The policy's default hides all of a budget: disclosing it may leave nothing for what that cost."""
    facts = [
        RosterEntry(name="a", epsilon=1.0, delta=1e-4, relation="add-remove", samples=kit.ROWS),
        RosterEntry(name="b", epsilon=disclosed, delta=1e-4, relation="add-remove", samples=kit.ROWS),
    ]
    facts[1] = replace(facts[1], noised={BUDGET: [10.0, 10.0], COUNT: [10.0, 10.0]})
    plausible(kit.config(), RECIPES["robust-hdp"], facts[1], 1)
    terms = assemble(kit.config(), facts, kit.data()).terms
    assert 0 < terms.planned_noise[0][1] < math.inf
    assert terms.bounds[0][0] < terms.bounds[0][1] < math.inf


@pytest.mark.parametrize(
    ("recipe", "fact", "words"),
    [
        ({"name": "o-cdpfl"}, {"group": 2}, "the recipe has 0 to 1"),
        ({"name": "o-cdpfl"}, {}, "none although the recipe needs one"),
        ({"name": "dp-fedavg"}, {"group": 0}, "does not use"),
        ({"name": "dp-fedavg"}, {"factor": 0.5}, "does not use"),
    ],
)
def test_who_tells_what_a_recipe_has_no_place_for_stays_out_alone(recipe: Any, fact: Any, words: str) -> None:
    _, asking = parse_recipe(recipe)
    with pytest.raises(HushError, match=words):
        check_asked(asking, RosterEntry(name="a", epsilon=1.0, delta=1e-4, relation="add-remove", samples=50, **fact))
    check_asked(
        asking,
        RosterEntry(
            name="a",
            epsilon=1.0,
            delta=1e-4,
            relation="add-remove",
            samples=50,
            group=1 if recipe["name"] == "o-cdpfl" else None,
        ),
    )


def test_factors_for_some_alone_keep_the_fewer_out() -> None:
    def kept(*factors: float | None) -> list[str]:
        facts = [
            RosterEntry(name=f"m{i}", epsilon=1.0, delta=1e-4, relation="add-remove", samples=100, factor=factor)
            for i, factor in enumerate(factors)
        ]
        found, out = fitting(kit.config(recipe=IMPACT_RECIPE), facts)
        assert {*out, *(fact.name for fact in found)} == {fact.name for fact in facts}
        weighted(parse_recipe(IMPACT_RECIPE)[1], found)
        return [fact.name for fact in found]

    assert kept(0.5, None, 0.2) == ["m0", "m2"]
    assert kept(None, None, 0.2) == ["m0", "m1"]
    assert kept(None, 0.3) == ["m1"]
    assert kept(None, None) == ["m0", "m1"]


def test_who_has_too_few_rows_stays_out_alone() -> None:
    facts = [
        RosterEntry(name=name, epsilon=1.0, delta=1e-4, relation="add-remove", samples=rows)
        for name, rows in (("a", 100), ("b", 3), ("c", 100))
    ]
    kept, out = fitting(kit.config(), facts)
    assert ([fact.name for fact in kept], list(out)) == (["a", "c"], ["b"])


def between_processes(
    path: Path, fork_server: ForkServer, run: Config, policies: dict[str, str]
) -> tuple[Path, RunResult]:
    """A run of real members, whose policies say more than the template."""
    place = localhost.make(path / "fed", run, times={"deadline": 60.0, "patience": 60.0, "gather": 60.0})
    for name, words in policies.items():
        policy = place.path / "kits" / name / "policy.toml"
        text = policy.read_text()
        for line in words.splitlines():
            key = line.split("=")[0].strip()
            old = next(each for each in text.splitlines() if each.lstrip("# ").startswith(f"{key} ="))
            text = text.replace(old, line)
        policy.write_text(text)
    fork_server.start(["federation", "serve", place.path], place.server / "log").wait_for("ready at", 60)
    kits = [place.path / "kits" / name for name in place.members()]
    joined = [fork_server.start(["federation", "join", k, "--data", k / "data.npz"], k / "log") for k in kits]
    for child in joined:
        child.wait_for("is online", 60)
    return place.path, localhost.coordinator(place, 10).run(run, place.runs / "run")


def agree(path: Path, result: RunResult) -> None:
    """What the coordinator's cards say is what the ledgers say, and what it received was charged for."""
    lines = [note for note in audit_log.read(path / "server" / "audit.jsonl") if note["event"] == "enrolled"]
    for note, card in zip(lines, result.guarantees, strict=True):
        kit_path = path / "kits" / note["member"]
        described = describe(kit_path / "ledger.db")
        noised = note["declared"]["noised"]
        assert [(what, noise) for what, (noise, _) in noised.items()] == charged(kit_path)[: len(noised)]
        assert described["spent"] <= described["policy"]["epsilon"] + 1e-9
        if COUNT not in noised and BUDGET not in noised:
            assert described["spent"] == pytest.approx(card.epsilon_spent, rel=1e-6)
        assert sum(described["charges"].values()) == result.rounds + bool(noised)


def raw(**more: Any) -> dict[str, Any]:
    return {
        "seed": 5, "rounds": 3, "data": {"name": "digits", "clients": 3},
        "privacy": {"budgets": 2.0, "noise": "seeded"},
        "local": {"batch_size": 64, "lr": 0.5}, **more,
    }  # fmt: skip


def test_noisy_counts_and_factors_between_processes(tmp_path: Path, parent: ForkServer) -> None:
    """Members choose for themselves; weights come from what they disclosed; the books agree."""
    policies = {
        "m000": "factor = 0.5", "m001": 'factor = 0.3\nimpact = "noised"\nfactor_row = 0.001',
        "m002": 'factor = 0.2\nsamples = "noised"\nbudget = "noised"\nbudget_row = 0.01',
    }  # fmt: skip
    with parent.tidy() as fork_server:
        # The noise of a factor can put another above the half that is the most by default.
        run = parse(raw(recipe={"name": "dp-fedavg", "weight": {"rule": "impact"}}, max_weight=1.0))
        path, result = between_processes(tmp_path, fork_server, run, policies)
    agree(path, result)
    lines = [json.loads(line) for line in (path / "runs" / "run" / "rounds.jsonl").read_text().splitlines()]
    facts = json.loads((path / "runs" / "run" / "federation.json").read_text())["facts"]
    factors = [fact["factor"] for fact in facts]
    assert factors[0] == 0.5
    assert factors[1] not in (0.3, 0.0, 1.0)
    for line in lines:
        weights = [line["weights"][str(client)] for client in range(3)]
        assert weights == pytest.approx([factor / sum(factors) for factor in factors])


@pytest.mark.soak
@pytest.mark.parametrize(
    "more",
    [
        {"recipe": {"name": "dp-fedavg", "weight": {"rule": "samples", "counts": "noisy"}}},
        {"recipe": {"name": "o-cdpfl"},
         "data": {"name": "digits", "clients": 3, "partition": {"name": "rotation", "clusters": [2, 1]}}},
    ],
    ids=["noisy counts", "true clusters"],
)  # fmt: skip
def test_what_a_recipe_asks_at_enrolment_gives_the_model_of_the_simulation(
    tmp_path: Path, parent: ForkServer, more: dict[str, Any]
) -> None:
    run = parse(raw(**more))
    with parent.tidy() as fork_server:
        path, result = between_processes(tmp_path, fork_server, run, {})
    simulated = simulate(run, out=tmp_path / "simulated")
    ours, theirs = (load_file(p / "model.safetensors") for p in (path / "runs" / "run", tmp_path / "simulated"))
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-5, atol=1e-7), name
    agree(path, result)
    for number, card in enumerate(simulated.guarantees):
        described = describe(path / "kits" / f"m{number:03d}" / "ledger.db")
        assert described["spent"] == pytest.approx(card.epsilon_spent, rel=1e-6)
