from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.forecast import MARKS, Choice, Forecast, affordable_rounds, epsilon_after_rounds, forecast
from hush.privacy.plan import calibrated
from hush.types import HushError, Policy, Relation


def spent(choice: Choice, rounds: int, delta: float, relation: Relation) -> float:
    cost = Cost(
        what="model update",
        kind="poisson-gaussian",
        noise=choice.noise_multiplier,
        steps=rounds * choice.epochs * math.ceil(2400 / choice.batch),
        rate=choice.batch / 2400,
    )
    return api.epsilon(cost.event(), delta, relation)


@pytest.fixture(scope="module", params=["add-remove", "replace-one"])
def found(request: pytest.FixtureRequest) -> Forecast:
    return forecast(2.0, 1e-5, 2400, 64, 100, relation=request.param, clip=3.0)


def test_it_is_the_plan_that_the_run_will_use(found: Forecast) -> None:
    plan = calibrated(found.policy, samples=2400, batch=64, epochs=1, rounds=100, clip=3.0)
    assert found.chosen.noise_multiplier == plan.noise_multiplier
    assert (found.chosen.steps, found.chosen.sample_rate) == (plan.steps, plan.rate) == (38, 64 / 2400)
    assert found.spent == tuple(epsilon_after_rounds(plan, 1e-5, found.marks))


def test_every_choice_spends_the_budget_and_no_more(found: Forecast) -> None:
    for choice in (found.chosen, *found.choices):
        epsilon = spent(choice, 100, 1e-5, found.policy.relation)
        assert 1.99 <= epsilon <= 2.0
        less = replace(choice, noise_multiplier=0.98 * choice.noise_multiplier)
        assert spent(less, 100, 1e-5, found.policy.relation) > 2.0


def test_the_table_has_every_batch_and_number_of_epochs(found: Forecast) -> None:
    shape = [(choice.batch, choice.epochs) for choice in found.choices]
    assert shape == [(batch, epochs) for batch in (32, 64, 128, 256) for epochs in (1, 2, 4)]
    assert found.choices[3] == found.chosen
    for choice in found.choices:
        assert choice.steps == choice.epochs * math.ceil(2400 / choice.batch)
        assert choice.gradient_noise == pytest.approx(3.0 * choice.noise_multiplier / choice.batch)
        assert choice.update_noise == pytest.approx(choice.steps * choice.gradient_noise**2)


def test_larger_batches_and_fewer_epochs_are_quieter(found: Forecast) -> None:
    noise = {(choice.batch, choice.epochs): choice.update_noise for choice in found.choices}
    for batch in (32, 64, 128):
        for epochs in (1, 2, 4):
            assert noise[2 * batch, epochs] < 0.5 * noise[batch, epochs]
            if epochs < 4:
                assert noise[batch, 2 * epochs] > 2.0 * noise[batch, epochs]


def test_the_curve_rises_to_the_budget(found: Forecast) -> None:
    assert len(found.marks) == len(found.spent) == MARKS
    assert found.marks[-1] == 100
    assert list(found.marks) == sorted(set(found.marks))
    assert list(found.spent) == sorted(found.spent)
    assert 1.99 <= found.spent[-1] <= 2.0
    assert found.spent[0] > 0.0
    assert found.affordable_rounds == 100


def test_few_rounds_are_all_shown() -> None:
    assert forecast(1.0, 1e-5, 200, 20, 3).marks == (1, 2, 3)
    long = forecast(1.0, 1e-5, 200, 20, MARKS + 1).marks
    assert len(set(long)) == MARKS
    assert long[-1] == MARKS + 1


def test_a_given_noise_is_priced() -> None:
    asked = forecast(2.0, 1e-5, 2400, 64, 100, noise_multiplier=2.0)
    assert asked.chosen.noise_multiplier == 2.0
    assert asked.spent[-1] > 2.0
    plan = replace(calibrated(asked.policy, samples=2400, batch=64, epochs=1, rounds=1, clip=1.0), noise_multiplier=2.0)
    within, beyond = epsilon_after_rounds(plan, 1e-5, [asked.affordable_rounds, asked.affordable_rounds + 1])
    assert within <= 2.0 < beyond
    assert affordable_rounds(plan, Policy(4.0, 1e-5)) > asked.affordable_rounds > 10
    assert asked.choices == forecast(2.0, 1e-5, 2400, 64, 100).choices


def test_batches_are_cut_to_the_data() -> None:
    small = forecast(1.0, 1e-5, 100, 60, 5)
    assert sorted({choice.batch for choice in small.choices}) == [30, 60, 100]
    assert small.choices[-1].sample_rate == 1.0
    assert sorted({choice.batch for choice in forecast(1.0, 1e-5, 100, 1, 5).choices}) == [1, 2, 4]


def test_it_is_json_and_the_same_every_time(found: Forecast) -> None:
    text = json.dumps(asdict(found), allow_nan=False)
    assert json.loads(text)["policy"]["epsilon"] == 2.0
    again = forecast(2.0, 1e-5, 2400, 64, 100, relation=found.policy.relation, clip=3.0)
    assert json.dumps(asdict(again), allow_nan=False) == text


def test_the_accountant_is_the_one_asked_for() -> None:
    tight, loose = (forecast(2.0, 1e-5, 100, 100, 2, accountant=name) for name in ("pld", "rdp"))
    assert loose.accountant == "rdp"
    assert loose.chosen.noise_multiplier > tight.chosen.noise_multiplier
    with pytest.raises(HushError, match=r"^accountant: rdp .* accepted here: pld$"):
        forecast(2.0, 1e-5, 2400, 64, 100, relation="replace-one", accountant="rdp")


@pytest.mark.parametrize(
    ("name", "wrong", "key"),
    [
        ("epsilon", 0.0, "epsilon"),
        ("delta", 1.0, "delta"),
        ("samples", 0, "samples"),
        ("batch", 2401, "local.batch_size"),
        ("batch", 0, "batch"),
        ("rounds", 2.5, "rounds"),
        ("epochs", True, "epochs"),
        ("clip", math.inf, "clip"),
        ("noise_multiplier", 0.0, "z"),
    ],
)
def test_a_wrong_argument_is_named(name: str, wrong: Any, key: str) -> None:
    arguments = {"epsilon": 1.0, "delta": 1e-5, "samples": 2400, "batch": 64, "rounds": 10, name: wrong}
    with pytest.raises(HushError, match=rf"^{key}: .*accepted: ") as refused:
        forecast(**arguments)
    assert "\n" not in str(refused.value)
