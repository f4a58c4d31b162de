"""Work grows with the number of clients, and not with its square: counted in calls, not in seconds."""

from __future__ import annotations

import cProfile

import pytest

import hush


def calls(clients: int, recipe: str) -> int:
    """How many functions are called in a whole run of that many clients."""
    raw = {
        "rounds": 2,
        "data": {"name": "synthetic", "clients": clients, "samples": 50},
        "model": {"name": "logreg"},
        "recipe": {"name": recipe},
        "privacy": {"budgets": 1.0},
        "local": {"batch_size": 10},
    }
    profile = cProfile.Profile()
    profile.enable()
    hush.simulate(raw)
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("recipe", ["dp-fedavg", "robust-hdp", "dp-scaffold"])
def test_twice_the_clients_take_twice_the_calls(recipe: str) -> None:
    calls(10, recipe)
    few, some, many = (calls(number, recipe) for number in (50, 150, 350))
    assert (many - some) / (some - few) < 2.3
