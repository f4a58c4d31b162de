"""Rows counted from a common centre, and a rate left open, between members: charged first, fixed once, same model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.api import simulate
from hush.config import Config, ModelConfig
from hush.deploy.admin import audit_log, keys
from hush.deploy.shared import input_means, run_spec
from hush.deploy.shared.roster import MEAN, RosterEntry
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.engines import setup
from hush.engines.enrolment import combined, enrolment_answer
from hush.engines.schedules import privacy_schedules
from hush.engines.setup import fitted, prepare
from hush.models import build_model
from hush.privacy import noise
from hush.privacy.accounting.cost import Cost, from_json
from hush.privacy.ledger.statement import export
from hush.privacy.schedule import ENROLMENT, PrivacySchedule, StageTable
from hush.recipes import RECIPES, Recipe
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from hush.server.loop import CLUSTERS
from hush.server.run_directory import RunDir
from hush.types import HushError, Policy
from tests.support import federation_kit as kit
from tests.support.live_federation import LiveFederation, config, resigned

HUSH = {"name": "hush"}
WIDTH = kit.SHAPE[0]


def offer(**more: Any) -> Config:
    return kit.config(recipe=HUSH, local__lr=0.5, **more)


def charged(path: Path) -> list[Cost]:
    rows = [row for row in export(path / "ledger.db") if row["kind"] == "RESERVED"]
    return [cost for row in rows for cost in from_json(row["detail"])]


def fact(**changes: Any) -> RosterEntry:
    return replace(
        RosterEntry(
            name="a", epsilon=1.0, delta=1e-4, relation="add-remove", samples=kit.ROWS, noised={CENTRE: [1.0, 1.0]}
        ),
        **changes,
    )


def enrolled_member(path: Path, **words: Any) -> tuple[kit.Coordinator, Message]:
    asks = kit.Coordinator(kit.member(path, recipes=["hush"], **words))
    enrolment = asks.enrol(offer())
    assert enrolment.kind == "facts", enrolment.fields
    return asks, enrolment


def begun(path: Path, centre: torch.Tensor) -> kit.Coordinator:
    asks, enrolment = enrolled_member(path)
    answer = asks.begin(offer(), centre=messages.name_of(centre), noised=enrolment.fields["noised"])
    assert answer.kind == "ready", answer.fields
    return asks


def test_a_mean_is_charged_before_it_is_released_as_in_the_simulation(tmp_path: Path) -> None:
    asks, enrolment = enrolled_member(tmp_path / "a")
    policy, rows = asks.node.policy.one_run, torch.from_numpy(asks.node.data.x)
    _, stage = run_spec.enrolment(offer(), RECIPES["hush"], replace(fact(), noised={}), 0, policy)
    assert stage is not None
    assert charged(tmp_path / "a") == list(stage.round_costs)
    simulated = enrolment_answer(stage, kit.ROWS, lambda _: (rows, None), 0, noise.Seeded(1, 0, ENROLMENT))
    assert simulated.mean is not None
    assert torch.equal(enrolment.tensors[MEAN], simulated.mean)
    assert enrolment.fields["noised"] == {CENTRE: [stage.noise_of(CENTRE), simulated.deviation]}
    assert float((enrolment.tensors[MEAN] - rows.double().mean(0)).norm()) > 0.01


def test_asked_again_a_member_sends_the_same_bytes_also_after_a_restart(tmp_path: Path) -> None:
    secure = offer(privacy__noise="secure")
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["hush"], more="lifetime = 3.0"))
    message = _enrol(asks, secure)
    first, receipt = asks.node.handle(message)
    assert receipt is not None
    assert asks.node.handle(message)[0] == first
    asks.node.ledger.sent(receipt)
    asks.node.ledger.close()
    after = kit.Coordinator(kit.member(tmp_path / "a", recipes=["hush"], more="lifetime = 3.0"))
    assert after.node.handle(message)[0] == first
    assert len(charged(tmp_path / "a")) == 1
    after.run = "another"
    other = after.node.handle(_enrol(after, secure))[0]
    means = [_mean(asks, payload) for payload in (first, other)]
    assert not torch.equal(*means)
    assert len(charged(tmp_path / "a")) == 2


def _enrol(asks: kit.Coordinator, wanted: Config) -> bytes:
    from hush.deploy.shared.protocol import code_hash

    schema = {"shape": list(kit.SHAPE), "classes": kit.CLASSES}
    fields = {"run": asks.run, "config": wanted.model_dump(), "code": code_hash(), "schema": schema, "number": 0}
    return messages.encode(Message("enrol", {**fields, "head": ""}))


def _mean(asks: kit.Coordinator, payload: bytes) -> torch.Tensor:
    return messages.decode(keys.opened(asks.node._key.public_key(), payload), len(payload)).tensors[MEAN]


def test_a_run_beyond_the_policy_is_refused_before_its_mean_is_charged(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["hush"], more="max_rounds = 3"))
    assert "rounds 4 exceeds" in asks.enrol(offer()).fields["reason"]
    asks.run = "b"
    small = kit.Coordinator(kit.member(tmp_path / "b", recipes=["hush"], more="max_steps = 9"))
    assert "steps per round 10" in small.enrol(offer()).fields["reason"]
    assert [charged(tmp_path / name) for name in "ab"] == [[], []]


def test_a_network_that_begins_with_a_linear_layer_has_a_mean(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["hush"]))
    assert asks.enrol(offer(model__name="mlp")).fields["noised"][CENTRE]
    assert [cost.what for cost in charged(tmp_path / "a")] == [CENTRE]


def test_a_model_that_cannot_be_centred_is_asked_for_no_mean() -> None:
    model = build_model(ModelConfig(name="cnn"), (1, 8, 8), 10, 0)
    recipe, left_out = fitted(RECIPES["hush"], model, (1, 8, 8))
    assert len(left_out) == 1 and not run_spec.releases_input_mean(recipe, 4)
    schedule, stage = run_spec.enrolment(offer(), recipe, replace(fact(), noised={}), 0, Policy(1.0, 1e-4))
    assert stage is None and all(cost.what != CENTRE for cost in schedule.costs())


def test_the_whole_run_keeps_the_budget_and_ends_near_it(tmp_path: Path) -> None:
    centre = torch.zeros(WIDTH)
    asks = begun(tmp_path / "a", centre)
    assert [asks.task(number, input_mean=centre).kind for number in range(1, 5)] == ["update"] * 4
    assert 0.97 < asks.node.ledger.spent() <= 1.0 + 1e-9
    assert [cost.what for cost in charged(tmp_path / "a")] == [CENTRE, *["model update"] * 4]


def test_a_centre_is_fixed_once_a_run(tmp_path: Path) -> None:
    centre = torch.full((WIDTH,), 0.25)
    asks = begun(tmp_path / "a", centre)
    assert asks.task(1, input_mean=centre).kind == "update"
    before = charged(tmp_path / "a")
    odd = {
        "another": {"input_mean": centre + 1e-6}, "none": {}, "of another type": {"input_mean": centre.double()},
        "not finite": {"input_mean": torch.full((WIDTH,), torch.nan)},
        "too long": {"input_mean": torch.zeros(WIDTH + 1)},
        "a row of it": {"input_mean": centre[None]},
    }  # fmt: skip
    for what, notes in odd.items():
        answer = asks.task(2, **notes)  # type: ignore[arg-type]
        assert answer.kind == "no", what
        assert "task: " in answer.fields["reason"], what
    answer = asks.begin(
        offer(), centre=messages.name_of(centre + 1), noised=asks.enrol(offer()).fields.get("noised", {})
    )
    assert answer.kind == "no"
    asks.node.ledger.close()
    later = kit.Coordinator(kit.member(tmp_path / "a", recipes=["hush"]))
    assert "agreed to" in later.task(2, input_mean=centre + 1).fields["reason"]
    assert charged(tmp_path / "a") == before
    assert later.task(2, input_mean=centre).kind == "update"


def test_a_recipe_and_its_centre_come_together(tmp_path: Path) -> None:
    asks, enrolment = enrolled_member(tmp_path / "a")
    assert "input mean" in asks.begin(offer(), noised=enrolment.fields["noised"]).fields["reason"]
    plain = kit.Coordinator(kit.member(tmp_path / "b"))
    assert "input mean" in plain.begin(kit.config(), centre="0" * 64).fields["reason"]
    assert plain.begin(kit.config()).kind == "ready"
    assert "not used by the recipe" in plain.task(1, input_mean=torch.zeros(WIDTH)).fields["reason"]
    assert charged(tmp_path / "b") == []


def test_a_rate_that_is_open_is_settled_before_a_run_begins(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.enrol(kit.config(local__lr="auto")).kind == "facts"
    assert "local.lr is not resolved" in asks.begin(kit.config(local__lr="auto")).fields["reason"]


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (torch.full((WIDTH,), torch.nan), "not finite"),
        (torch.full((WIDTH,), 1e6), "norm exceeds the"),
        (None, "no mean"),
    ],
)
def test_a_mean_that_no_honest_member_sends_is_refused(mean: torch.Tensor | None, words: str) -> None:
    tensors = {} if mean is None else {MEAN: mean.double()}
    with pytest.raises(HushError, match=words):
        input_means.checked_mean(offer(), RECIPES["hush"], fact(), 0, Message("facts", {}, tensors))


def test_no_member_gives_its_mean_more_weight_by_what_it_says(tmp_path: Path) -> None:
    """An honest mean passes, and its weight is by the plan, whatever noise its sender claims."""
    _, enrolment = enrolled_member(tmp_path / "a")
    claims = [enrolment.fields["noised"][CENTRE], [1e-3, 1e-9], [1e6, 1e6]]
    heard = [
        input_means.checked_mean(offer(), RECIPES["hush"], fact(noised={CENTRE: claim}), 0, enrolment)
        for claim in claims
    ]
    assert len({each.deviation for each in heard}) == 1
    assert heard[0].deviation == pytest.approx(claims[0][1], rel=1e-6)
    strict = input_means.checked_mean(offer(), RECIPES["hush"], fact(epsilon=0.5), 0, enrolment)
    assert strict.deviation > 1.5 * heard[0].deviation
    other = replace(strict, mean=torch.zeros(WIDTH, dtype=torch.float64))
    found = combined([heard[0], None, other], RECIPES["hush"], one_model=False)
    assert found[CLUSTERS].tolist() == [0, 0, 0]
    middle = found["input_mean"]
    share = heard[0].deviation ** -2 / (heard[0].deviation ** -2 + strict.deviation**-2)
    assert torch.allclose(middle, share * enrolment.tensors[MEAN].float())


def test_a_noised_count_is_what_a_mean_is_divided_by(tmp_path: Path) -> None:
    """Else the mean would give the true count away."""
    # About one noise in a hundred rounds to nothing: three members, so that one of them tells another count.
    members = [
        kit.Coordinator(kit.member(tmp_path / f"a{n}", recipes=["hush"], samples="noised", more="noise = 40.0"))
        for n in range(3)
    ]
    first = next(
        enrolment for enrolment in (one.enrol(offer()) for one in members) if enrolment.fields["samples"] != kit.ROWS
    )
    exact = enrolled_member(tmp_path / "b")[1]
    assert set(first.fields["noised"]) == {COUNT, CENTRE}
    scale = kit.ROWS / first.fields["samples"]
    assert torch.allclose(first.tensors[MEAN], scale * exact.tensors[MEAN])


def planned_after_enrolment(
    config: Config, recipe: Recipe, members: Any, table: StageTable, orders: Any, charged: Any
) -> tuple[PrivacySchedule, ...]:
    """The schedules of members that were charged for enrolment before training was planned."""
    drafts = privacy_schedules(config, recipe, members, table, orders, charged)
    enrolled = [draft.stages[table.of[ENROLMENT]].round_costs for draft in drafts]
    later = privacy_schedules(config, recipe, members, table, orders, enrolled)
    at = table.of[ENROLMENT]
    # What was released at enrolment has the noise of the first plan.
    return tuple(
        replace(after, stages=(*after.stages[:at], before.stages[at], *after.stages[at + 1 :]))
        for before, after in zip(drafts, later, strict=True)
    )


def test_the_recipe_hush_gives_the_model_of_the_simulation_and_survives_its_coordinator(
    live: LiveFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its centre and its rate are agreed once: a coordinator that dies in round 2 goes on with both.

    Between machines training is planned after the means were released, with the noise that the privacy filter asks for;
    the simulation, whose schedule is fixed beforehand, is given the same noise here.
    """
    run, out, save = config(rounds=3, recipe=HUSH, local={"batch_size": 64, "lr": "auto"}), live.out(), RunDir.save

    def dying(self: RunDir, state: Any, record: Any) -> None:
        if record.round == 2:
            raise MemoryError("killed")
        save(self, state, record)

    with live.members() as members:
        before = {name: each.charges() for name, each in members.items()}
        monkeypatch.setattr(RunDir, "save", dying)
        with pytest.raises(MemoryError):
            live.coordinator().run(run, out)
        monkeypatch.undo()
        result = live.coordinator().run(run, out, resume=True)
        assert {name: each.charges() - before[name] for name, each in members.items()} == dict.fromkeys(before, 4)
    planned = prepare(run)
    monkeypatch.setattr(setup, "privacy_schedules", planned_after_enrolment)
    later = prepare(run)
    for one, other in zip(planned.schedules, later.schedules, strict=True):
        assert 1.0 < other.plan.noise_multiplier / one.plan.noise_multiplier < 1.1
    simulated = simulate(run, out=out.with_name(out.name + "-simulated"))
    ours, theirs = (load_file(path / "model.safetensors") for path in (out, out.with_name(out.name + "-simulated")))
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-5, atol=1e-7), name
    agreement = json.loads((out / "federation.json").read_text())
    assert agreement["config"]["local"]["lr"] == pytest.approx(simulated.config["local"]["lr"], rel=1e-9)
    for ours_card, theirs_card in zip(result.guarantees, simulated.guarantees, strict=True):
        assert ours_card.epsilon_spent == pytest.approx(theirs_card.epsilon_spent, rel=1e-6)
    assert any("determine the learning rate" in gap for gap in result.not_covered)


def test_who_sends_a_mean_of_its_own_making_stays_out_alone(live: LiveFederation) -> None:
    with live.members() as members:
        honest = members["m001"].node.handle

        def lying(content: messages.Buffer) -> tuple[bytes, Any]:
            payload, receipt = honest(content)
            if messages.decode(content, 1 << 30).kind != "enrol":
                return payload, receipt
            far = {MEAN: torch.full((64,), 1e5, dtype=torch.float64)}
            return resigned(live.place, "m001", payload, lambda message: replace(message, tensors=far)), receipt

        members["m001"].node.handle = lying  # type: ignore[method-assign]
        coordinator, out = live.coordinator(), live.out()
        result = coordinator.run(config(rounds=1, recipe=HUSH), out)
    agreement = json.loads((out / "federation.json").read_text())
    assert [each["name"] for each in agreement["facts"]] == ["m000", "m002"]
    assert max(map(abs, agreement["centre"])) < 100
    assert result.rounds == 1
    notes = [note for note in audit_log.read(coordinator.log.path) if note["event"] == "not enrolled"]
    assert (notes[-1]["member"], "a mean whose norm exceeds the" in notes[-1]["reason"]) == ("m001", True)
