"""Clusters by the means that clients released at enrolment: models, state, and what becomes of them without means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import hush
from hush.engines.enrolment import EnrolmentAnswer, combined
from hush.recipes import RECIPES
from hush.recipes.slots.clusters import ByInputMean
from hush.types import HushError

ROTATED: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "digits", "clients": 12, "partition": {"name": "rotation", "clusters": [8, 4]}},
    "privacy": {"budgets": 8.0, "delta": 1e-4},
}


def test_rotated_clients_get_a_model_of_their_own_and_alike_ones_share_one() -> None:
    apart = hush.Simulation(config=ROTATED, recipe="hush").fit(progress=False)
    assert apart.trained.placed == (0,) * 8 + (1,) * 4
    together = hush.simulate(ROTATED, recipe={"name": "hush", "assign": "one"})
    assert apart.run.accuracy["mean"] > together.accuracy["mean"] + 0.1
    # Nothing but the mean is charged beside training.
    assert [g.epsilon_spent for g in apart.run.guarantees] == [g.epsilon_spent for g in together.guarantees]
    alike = {**ROTATED, "data": {"name": "digits", "clients": 12}}
    assert set(hush.Simulation(config=alike, recipe="hush").fit(progress=False).trained.placed) == {0}


def test_without_means_there_is_one_model() -> None:
    made = hush.Simulation(config=ROTATED, recipe={"name": "weiavg", "assign": "by-input-mean"})
    assert set(made.fit(progress=False).trained.placed) == {0}


def test_state() -> None:
    option = ByInputMean(most=3)
    state = option.enrolled([0, 2, 1], option.start(3))
    assert option.assignments([2, 1], state) == [1, 2]
    assert option.models == 1
    means = torch.cat([torch.zeros(6, 9), torch.ones(4, 9)])
    assert option.clustered(means, torch.full((10,), 1e-3)) == [0] * 6 + [1] * 4
    try:
        hush.simulate(ROTATED, recipe={"assign": {"rule": "by-input-mean", "most": 0}})
    except HushError as error:
        assert "most: expected 1 or more" in str(error)
    else:
        raise AssertionError("0 models")


def test_sums_that_the_server_does_not_see_are_of_one_model() -> None:
    means = torch.cat([torch.zeros(6, 9), torch.ones(4, 9)]).double()
    answers = [EnrolmentAnswer(100.0, mean, 0.03) for mean in means]
    found = {one: combined(answers, RECIPES["hush"], one_model=one)["clusters"].tolist() for one in (False, True)}
    assert found == {False: [0] * 6 + [1] * 4, True: [0] * 10}


def test_a_resumed_run_keeps_its_clusters(tmp_path: Path) -> None:
    once = hush.simulate(ROTATED, recipe="hush")
    first = hush.Simulation(config=ROTATED, recipe="hush")
    first.fit(tmp_path / "run", callbacks=lambda record: record.round == 3, progress=False)
    again = hush.Simulation(config=ROTATED, recipe="hush").fit(tmp_path / "run", resume=True, progress=False)
    assert again.run.accuracy_per_client == once.accuracy_per_client
