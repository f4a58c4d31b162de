"""Local rules: how many rounds warm up control variates."""

from __future__ import annotations

import pytest

from hush.config import parse as parse_config
from hush.recipes import RECIPES, configured, parse
from hush.recipes.slots.local import ControlVariates
from hush.types import HushError


@pytest.mark.parametrize(("participation", "rounds"), [(1.0, 4), (0.2, 20), (0.3, 14), (0.05, 80)])
def test_warm_up_rounds_follow_from_how_many_clients_take_part(participation: float, rounds: int) -> None:
    """DP-SCAFFOLD, section 5: 4 / l rounds."""
    config = parse_config({"recipe": {"name": "dp-scaffold-warm"}, "participation": participation, "rounds": 100})
    local = configured(config)[1].local
    assert isinstance(local, ControlVariates)
    assert local.warm_rounds == local.warm == rounds
    assert [local.round_spec(number, 100).still for number in (rounds, rounds + 1)] == [True, False]
    assert local.participating(participation) == local


def test_a_fixed_number_of_rounds_stays() -> None:
    table = {"recipe": {"name": "scaffold", "local": {"rule": "control-variates", "warm": 3}}, "participation": 0.1}
    local = configured(parse_config(table))[1].local
    assert isinstance(local, ControlVariates)
    assert local.warm_rounds == 3
    assert RECIPES["scaffold"].local == ControlVariates()
    with pytest.raises(HushError, match=r"warm: found 2 beside visits = 4; accepted: one of them"):
        parse({"local": {"rule": "control-variates", "warm": 2, "visits": 4}})
