"""What all clients of a round share, as DP-SCAFFOLD's public code has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

from hush.config import Config
from hush.engines import client_round
from hush.engines.setup import prepare
from hush.privacy import noise
from hush.recipes.slots.protect import DpSgd
from hush.server.participation import draw_participants
from hush.types import HushError

HERE = torch.device("cpu")


def test_clients_of_a_round_draw_the_same_batches_and_noise() -> None:
    one, two, own = (noise.SharedSeeded(5, 0, 3), noise.SharedSeeded(5, 1, 3), noise.Seeded(5, 2, 3))
    for _ in range(3):
        rows, same, third = one.uniform(50), two.uniform(50), own.uniform(50)
        assert torch.equal(rows, same) and not torch.equal(rows, third)
        numbers, same, third = (source.normal(50, torch.float64) for source in (one, two, own))
        assert torch.equal(numbers, same) and not torch.equal(numbers, third)
    later = noise.SharedSeeded(5, 0, 4)
    later.uniform(50)
    assert not torch.equal(numbers, later.normal(50, torch.float64)), "another round has other noise"


def test_poisson_batches_stay_independent_draws_of_every_row() -> None:
    one, two = (noise.SharedSeeded(5, client, 3) for client in (0, 1))
    batches = [one.chosen(1000, 0.1) for _ in range(50)]
    assert all(torch.equal(batch, two.chosen(1000, 0.1)) for batch in batches)
    assert len({len(batch) for batch in batches}) > 10, "sizes vary"


def test_only_the_host_draws_what_is_shared() -> None:
    assert noise.SharedSeeded(5, 0, 3).device_rng(HERE) is None


@pytest.mark.parametrize(("seed", "number"), [(0, 1), (2, 7)])
def test_fixed_batches_and_noise_are_those_of_a_loader_seeded_as_the_public_code_says(seed: int, number: int) -> None:
    """A step's seed is 500 (seed + 1) round + step + 1; its loader shuffles 40 rows, and weights are noised first."""
    source = noise.SharedSeeded(seed, 3, number)
    kept = torch.get_rng_state()
    try:
        for step in (1, 2, 3):
            torch.manual_seed(500 * (seed + 1) * number + step + 1)
            rows = next(iter(DataLoader(range(40), 8, sampler=SubsetRandomSampler(range(40)))))  # type: ignore[arg-type]
            weights = torch.normal(0, 1, (4, 8))
            found = source.uniform(40).topk(8, largest=False).indices
            assert sorted(found.tolist()) == sorted(rows.tolist())
            assert torch.equal(source.normal(32, torch.float32), weights.flatten())
    finally:
        torch.set_rng_state(kept)


def test_users_of_a_round_are_those_of_the_public_code() -> None:
    old = np.random.RandomState(2 * 4)
    chosen = draw_participants(1, 100, 6, 0.05, shared=True)[4]
    assert chosen == tuple(sorted(old.choice(100, 5, replace=False)))
    assert chosen != draw_participants(1, 100, 6, 0.05)[4]
    assert draw_participants(1, 3, 2, 1.0, shared=True) == ((0, 1, 2),) * 2


def test_it_is_named_as_not_covered_and_refused_beside_secure_noise() -> None:
    uncovered = [release for release in DpSgd(draws="shared").releases() if not release.covered]
    assert [release.what for release in uncovered] == ["noise"]
    settings = {"recipe": {"name": "dp-scaffold"}, "mode": "faithful", "rounds": 2}
    found = prepare(Config.model_validate(settings))
    assert "noise" in [release.what for release in found.recipe.releases() if not release.covered]
    with pytest.raises(HushError, match=r"privacy\.noise: "):
        prepare(Config.model_validate({**settings, "privacy": {"noise": "secure"}}))


@pytest.mark.parametrize(("mode", "same"), [("faithful", True), ("sound", False)])
def test_a_client_draws_what_its_recipe_says_whoever_runs_it(mode: str, same: bool) -> None:
    found = prepare(Config.model_validate({"recipe": {"name": "dp-scaffold"}, "mode": mode, "rounds": 2}))
    one, two = (
        client_round.source(found.config, client, 1, shared=found.shared_draws).normal(20, torch.float64)
        for client in (0, 1)
    )
    assert torch.equal(one, two) == same


@pytest.mark.parametrize("source", [noise.Secure(), noise.Seeded(5, 0, 1)], ids=["secure", "seeded"])
def test_no_number_of_a_draw_is_there_twice(source: noise.Secure | noise.Seeded) -> None:
    """However many are drawn at once: a model's numbers may not share noise."""
    drawn = source.normal(300_001, torch.float64)
    assert len(drawn.unique()) == len(drawn)
    assert len(torch.cat([drawn, source.normal(300_001, torch.float64)]).unique()) == 2 * len(drawn)


def test_secure_noise_reaches_as_far_as_its_bits_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond eight deviations, where no draw of a test would ever come: numbers of 24 bits would end at 5.8."""
    monkeypatch.setattr("hush.privacy.noise.os.urandom", lambda size: b"\xff" * size)
    assert float(noise.Secure().normal(2, torch.float64).abs().max()) > 8.0
