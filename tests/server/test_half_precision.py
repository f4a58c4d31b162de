"""Half precision: what is sent in 16 bits is rounded once, to 11 bits, in simulations as between machines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hush.config import config_hash, parse
from hush.engines import setup, simulator
from hush.seeds import rng
from hush.server.half_precision import halved, restored, rounded, rounded_models


def numbers(scale: float, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(rng(seed, "numbers").normal(scale=scale, size=4000)).float()


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e-3, 1.0, 7e4, 1e9, 1e30])
def test_numbers_keep_eleven_bits_and_are_rounded_once(scale: float) -> None:
    vector = numbers(scale)
    half, exponent = halved(vector)
    assert half.dtype == torch.float16
    assert bool(half.isfinite().all())
    found = restored(half, exponent)
    large = vector.abs() > vector.abs().max() * 2.0**-28
    assert float(((found - vector).abs() / vector.abs())[large].max()) <= 2.0**-11
    assert torch.equal(rounded(found), found)
    again, same = halved(found)
    assert same == exponent
    assert torch.equal(again, half)


def test_a_largest_number_that_is_rounded_up_to_a_power_of_two_is_not_rounded_again() -> None:
    for top in (1 - 2.0**-13, 1.0, 1 + 2.0**-13, 2 - 2.0**-13):
        vector = torch.tensor([top, 2.0**-29 * 1.37, -(2.0**-20) * 1.001, 0.0])
        assert torch.equal(rounded(rounded(vector)), rounded(vector))


def test_edges() -> None:
    assert torch.equal(rounded(torch.zeros(3)), torch.zeros(3))
    assert rounded(torch.zeros(0)).numel() == 0
    assert not bool(rounded(torch.tensor([1.0, torch.nan])).isfinite().all())
    assert rounded_models(torch.tensor([[1e6, -1e6, 1.0]])).tolist() == [[65504.0, -65504.0, 1.0]]


def config(transport: str, **more: Any) -> Any:
    return parse(
        {
            "rounds": 3, "data": {"name": "digits", "clients": 4}, "privacy": {"budgets": 4.0},
            "local": {"batch_size": 32, "lr": 0.5}, "recipe": {"name": "dp-fedavg"},
            "engine": {"transport": transport}, **more,
        }
    )  # fmt: skip


def test_a_run_in_half_precision_sends_half_and_costs_the_same() -> None:
    whole, half = (simulator.run(setup.prepare(config(transport))) for transport in ("float32", "float16"))
    assert [2 * r.bytes_up for r in half.records] == [r.bytes_up for r in whole.records]
    assert [2 * r.bytes_down for r in half.records] == [r.bytes_down for r in whole.records]
    assert [g.epsilon_spent for g in half.result.guarantees] == [g.epsilon_spent for g in whole.result.guarantees]
    assert half.result.loss == pytest.approx(whole.result.loss, rel=0.01)
    assert half.result.loss != whole.result.loss


def test_masked_updates_stay_whole_and_hashes_of_other_configs_are_as_before() -> None:
    sums = simulator.run(setup.prepare(config("float16", secure_aggregation=True)))
    plain = simulator.run(setup.prepare(config("float32", secure_aggregation=True)))
    assert [r.bytes_up for r in sums.records] == [r.bytes_up for r in plain.records]
    assert [2 * r.bytes_down for r in sums.records] == [r.bytes_down for r in plain.records]
    hashes = {config_hash(config(t, secure_aggregation=s)) for t in ("float32", "float16") for s in (False, True)}
    assert len(hashes) == 4
    without = parse({**config("float32").model_dump(exclude={"engine", "secure_aggregation"})})
    assert config_hash(without) == config_hash(config("float32"))
