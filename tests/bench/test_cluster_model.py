"""The model of rounds on a cluster: its constants follow from rounds, and its answers have the right shape."""

from __future__ import annotations

import pytest

from hush.bench.cluster_model import ClusterCosts, fitted

COSTS = ClusterCosts(client=0.5, driver=0.02, driver_client=2e-4, driver_block=3e-3)


def test_the_constants_are_found_again_from_rounds_that_they_explain() -> None:
    def driver(clients: int, blocks: int) -> float:
        return COSTS.driver + clients * COSTS.driver_client + blocks * COSTS.driver_block

    found = fitted(
        one=(16, COSTS.driver + 16 * (COSTS.driver_client + COSTS.client)),
        one_block=driver(64, 1),
        blocks=(64, driver(64, 64)),
        many=(2048, driver(2048, 64)),
    )
    for name in ("client", "driver", "driver_client", "driver_block"):
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name))


def test_workers_share_training_until_blocks_run_out_and_the_driver_is_what_is_left() -> None:
    one, two = (COSTS.round_seconds(clients=64, workers=n) for n in (1, 2))
    assert one == pytest.approx(64 * 0.5 + 0.02 + 64 * 2e-4, rel=1e-3)
    assert one / two == pytest.approx(2, rel=2e-3)
    assert COSTS.round_seconds(clients=64, workers=64) == pytest.approx(
        COSTS.round_seconds(clients=64, workers=1000), rel=0.05
    ), "a block is not divided"
    # Blocks of 64 clients, of which the driver hears one by one.
    many = COSTS.round_seconds(clients=10**6, workers=10**6)
    assert many == pytest.approx(10**6 * 2e-4 + max(15_625 * 3e-3, 64 * 0.5), rel=0.01)
