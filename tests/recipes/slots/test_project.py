"""Projection: who is public in a round."""

from __future__ import annotations

import pytest
import torch

from hush.recipes import RoundView, parse
from hush.recipes.slots.project import DelayedPublicSubspace, PublicSubspace
from hush.types import HushError

ENROLLED = torch.tensor([0.1, 0.2, 0.3, 1.0, 1.1, 9.0, 9.5], dtype=torch.float64)


def view(clients: list[int]) -> RoundView:
    return RoundView(
        round=1,
        clients=tuple(clients),
        updates=torch.zeros(len(clients), 4),
        samples=torch.ones(len(clients)),
        epsilon=ENROLLED[clients],
        planned_noise=torch.ones(len(clients)),
        budgets=ENROLLED,
    )


def test_the_clients_of_the_round_are_divided() -> None:
    """Without the two largest budgets the next ones are public, as in Algorithm 1 of PFA (S_tc)."""
    few = view([0, 1, 2, 3, 4])
    assert PublicSubspace().trusted(few).tolist() == [False] * 3 + [True] * 2
    assert PublicSubspace(among="all").trusted(few).tolist() == [False] * 5
    assert PublicSubspace().trusted(view(list(range(7)))).tolist() == [False] * 5 + [True] * 2


def test_a_number_of_public_clients() -> None:
    for number in (1, 2, 4):
        chosen = PublicSubspace(public=number).trusted(view(list(range(7))))
        assert chosen.nonzero().flatten().tolist() == list(range(7 - number, 7))
    assert PublicSubspace(public=9).trusted(view([0, 1])).tolist() == [True, True]


def test_the_delayed_subspace_divides_all_that_are_enrolled() -> None:
    assert DelayedPublicSubspace().trusted(view([0, 1, 2, 3, 4])).tolist() == [False] * 5
    with pytest.raises(HushError, match=r"recipe.project.among: expected 'all', found 'round'"):
        parse({"project": {"rule": "delayed-public-subspace", "among": "round"}})
    with pytest.raises(HushError, match="public: expected 1 client or more, found 0"):
        parse({"project": {"rule": "public-subspace", "public": 0}})
