"""What members cannot be asked for is refused before anyone is asked."""

from __future__ import annotations

from typing import Any

import pytest

from hush.config import parse
from hush.deploy.agreement import check
from hush.types import HushError


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"recipe": {"name": "hush"}}, "recipe.protect.centre: members do not tell a mean"),
        ({"local": {"lr": "auto"}}, 'local.lr: "auto" is for simulations; give a number'),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words):
        check(parse(raw))


def test_the_rest_of_the_recipe_is_for_members_too() -> None:
    check(parse({"recipe": {"name": "hush", "protect": {"rule": "dp-sgd", "steps": 10}}}))
