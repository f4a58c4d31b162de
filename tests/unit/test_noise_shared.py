"""Noise that all clients of a round share, as DP-SCAFFOLD's experiments have it."""

from __future__ import annotations

import pytest
import torch

from hush.config import Config
from hush.engines import answer
from hush.engines.federation import prepare
from hush.privacy import noise
from hush.recipes.protect import DpSgd
from hush.types import HushError

HERE = torch.device("cpu")


def test_clients_of_a_round_draw_the_same_noise_and_rows_of_their_own() -> None:
    one, two, own = (noise.replayable(5, client, 3, shared=client < 2) for client in (0, 1, 2))
    same, other, third = (source.normal(50, torch.float64) for source in (one, two, own))
    assert torch.equal(same, other) and not torch.equal(same, third)
    assert not torch.equal(one.uniform(50), two.uniform(50))
    assert not torch.equal(one.chosen(1000, 0.5), two.chosen(1000, 0.5))
    later = noise.replayable(5, 0, 4, shared=True).normal(50, torch.float64)
    assert not torch.equal(same, later), "another round has other noise"


def test_on_a_device_it_is_the_same_noise_and_rows_of_their_own_too() -> None:
    twins = [noise.replayable(5, client, 3, shared=True).twin(HERE) for client in (0, 1)]
    filled, words = [torch.empty(50) for _ in twins], [torch.empty(50, dtype=torch.int64) for _ in twins]
    for twin, numbers, bits in zip(twins, filled, words, strict=True):
        assert twin is not None
        twin.fill(numbers)
        twin.words(bits)
    assert torch.equal(*filled) and not torch.equal(*words)


def test_rows_do_not_depend_on_whether_noise_is_shared() -> None:
    one, two = (noise.replayable(5, 1, 3, shared=shared) for shared in (False, True))
    assert torch.equal(one.chosen(1000, 0.1), two.chosen(1000, 0.1))


def test_it_is_named_as_not_covered_and_refused_beside_secure_noise() -> None:
    told = [release for release in DpSgd(draws="shared").releases() if not release.covered]
    assert [release.what for release in told] == ["noise"]
    settings = {"recipe": {"name": "dp-scaffold"}, "mode": "faithful", "rounds": 2}
    found = prepare(Config.model_validate(settings))
    assert "noise" in [release.what for release in found.recipe.releases() if not release.covered]
    with pytest.raises(HushError, match=r"privacy\.noise: "):
        prepare(Config.model_validate({**settings, "privacy": {"noise": "secure"}}))


@pytest.mark.parametrize(("mode", "same"), [("faithful", True), ("sound", False)])
def test_a_client_draws_what_its_recipe_says_whoever_runs_it(mode: str, same: bool) -> None:
    found = prepare(Config.model_validate({"recipe": {"name": "dp-scaffold"}, "mode": mode, "rounds": 2}))
    one, two = (answer.source(found.recipe, found.config, client, 1).normal(20, torch.float64) for client in (0, 1))
    assert torch.equal(one, two) == same
