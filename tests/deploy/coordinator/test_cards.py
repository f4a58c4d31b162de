"""The coordinator's cards after noisy enrolment: no less than a member's own ledger has, or nothing at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

from hush.certificate import facts as facts_of
from hush.certificate.sections import content
from hush.deploy.member.fetch import words
from hush.privacy.ledger import statement
from hush.privacy.round_costs import RoundCosts, SpendingMeter
from tests.support.live_federation import config
from tests.support.loopback import Loopback, edited


def test_no_epsilon_is_stated_that_only_the_member_knows(tmp_path: Path) -> None:
    federation = Loopback(tmp_path / "fed", config(3, 2))
    edited(tmp_path / "fed" / "kits" / "m001" / "policy.toml", budget='"noised"')
    federation.join()
    out = federation.place.runs / "run"
    first, noised, last = federation.coordinator().run(config(3, 2), out).guarantees
    assert first.epsilon_spent is not None and 0.0 < first.epsilon_spent <= 2.0 == first.epsilon_budget
    assert last.epsilon_spent == first.epsilon_spent
    assert noised.epsilon_spent == noised.epsilon_filter == noised.epsilon_budget == math.inf
    assert noised.epsilon_left is None and any("declared with noise" in text for text in noised.warnings)
    assert 0.0 < federation.nodes["m001"].ledger.spent() <= 2.0
    # Nor does it follow from what the run directory has.
    meter = SpendingMeter(RoundCosts.from_json((out / "privacy.json").read_bytes()))
    assert meter.epsilon()[1] == math.inf > meter.epsilon()[0]
    figures = statement.check(out)
    assert all(each.agrees for each in figures)
    assert {each.found for each in figures if each.client == 1 and each.name.startswith("epsilon, ")} == {math.inf}
    rows = {row[0]: row for row in content(facts_of.of_run(out)).rows}
    assert rows["1"][2:4] == ("not known here", "not known here") and rows["0, 2"][3] == "2"
    cards = json.loads((out / "result.json").read_bytes())["guarantees"]
    about = {"run": "run", "federation": "f", "model": "m", "recipe": "r", "rounds": 2, "members": ["a"], "member": "a"}
    told = [
        words({**about, "guarantee": card, "public_test": {"score": {}, "primary": "accuracy"}}, out)[1]
        for card in cards
    ]
    assert "epsilon unknown to the coordinator" in told[1] and "spent in this run" in told[0]
    federation.leave()


@pytest.mark.parametrize("recipe", ["hush", "closed-form"])
def test_training_that_is_planned_from_a_noisy_count_is_counted_by_the_filter(recipe: str, tmp_path: Path) -> None:
    """As in the members' ledgers: fixed composition does not hold for it, and would be a few percent less."""
    asked = config(3, 2, recipe={"name": recipe})
    federation = Loopback(tmp_path / "fed", asked)
    for kit in (tmp_path / "fed" / "kits").iterdir():
        edited(kit / "policy.toml", samples='"noised"')
    federation.join()
    out = federation.place.runs / "run"
    cards = federation.coordinator().run(asked, out).guarantees
    for card, node in zip(cards, federation.nodes.values(), strict=True):
        assert card.epsilon_filter is not None and card.epsilon_filter > node.ledger.spent()
        assert card.epsilon_filter == pytest.approx(node.ledger.filtered(), rel=1e-6)
        assert card.epsilon_spent == pytest.approx(node.ledger.spent(), rel=1e-6)
    assert all(each.agrees for each in statement.check(out))
    federation.leave()
