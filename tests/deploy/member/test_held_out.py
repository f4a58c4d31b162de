"""Held-out rows of a member: the same in every run, never trained on, and seen by others through noise alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.member import held_out
from hush.deploy.shared.extras import RELEASES
from hush.deploy.shared.run_spec import assemble
from hush.privacy.accounting.cost import from_json
from hush.privacy.ledger.statement import export
from hush.recipes.evaluation import EVALUATION
from hush.types import HushError
from tests.support import federation_kit as kit


def test_rows_stay_on_their_side_whatever_comes_or_goes(tmp_path: Path) -> None:
    whole = kit.data(400)
    train, evaluation = held_out.split(tmp_path, whole, 0.25, spent=False)
    assert len(train.y) + len(evaluation.y) == 400
    assert 60 < len(evaluation.y) < 140
    sides = {row.tobytes(): True for row in evaluation.x} | {row.tobytes(): False for row in train.x}
    order = np.random.default_rng(1).permutation(400)[:300]
    fewer = replace(whole, x=whole.x[order], y=whole.y[order])
    for rows, expected in zip(held_out.split(tmp_path, fewer, 0.25, spent=True), (False, True), strict=True):
        assert all(sides[row.tobytes()] is expected for row in rows.x)
    other = held_out.split(tmp_path / "..", whole, 0.0, spent=True)
    assert len(other[1].y) == 0
    (tmp_path / ".." / held_out.FILE).unlink()


def test_a_split_that_would_move_rows_is_refused(tmp_path: Path) -> None:
    whole = kit.data()
    held_out.split(tmp_path, whole, 0.25, spent=False)
    assert (tmp_path / held_out.FILE).stat().st_mode & 0o077 == 0
    for fraction in (0.0, 0.2, 0.5):
        with pytest.raises(HushError, match=r"must not move.*accepted: 0\.25"):
            held_out.split(tmp_path, whole, fraction, spent=True)
    (tmp_path / held_out.FILE).unlink()
    with pytest.raises(HushError, match="would be held out now"):
        held_out.split(tmp_path, whole, 0.25, spent=True)


def test_all_rows_of_a_person_are_on_one_side(tmp_path: Path) -> None:
    whole = replace(kit.data(300), person=np.repeat(np.arange(100), 3))
    train, evaluation = held_out.split(tmp_path, whole, 0.3, spent=False)
    assert train.person is not None
    assert evaluation.person is not None
    assert not set(train.person) & set(evaluation.person)
    assert len(evaluation.person) % 3 == 0
    assert len(evaluation.y) > 30


def evaluating(path: Path, **words: Any) -> kit.Coordinator:
    return kit.Coordinator(kit.member(path, held_out=0.3, **words))


def test_a_member_evaluates_in_the_rounds_that_were_agreed_and_is_charged(tmp_path: Path) -> None:
    asks = evaluating(tmp_path / "a")
    offer = kit.config(evaluation={"share": 0.3, "rounds": [2, 4]})
    rows = len(asks.node.data.y)
    assert rows < kit.ROWS
    assert asks.enrol(offer).fields["samples"] == rows, "held-out rows are not declared"
    assert asks.begin(offer, samples=rows).kind == "ready"
    names = [set(asks.task(number).tensors) for number in range(1, 5)]
    plain, more = {"vector"}, {"vector", f"{RELEASES}{EVALUATION}"}
    assert names == [plain, more, plain, more]
    charged = [from_json(row["detail"]) for row in export(tmp_path / "a" / "ledger.db") if row["kind"] == "RESERVED"]
    assert [any(cost.what == EVALUATION for cost in costs) for costs in charged] == [False, True, False, True]
    assert 0.97 < asks.node.ledger.spent() <= 1.0 + 1e-9


def answers(path: Path, asked: dict[str, Any], change: bool) -> list[dict[str, torch.Tensor]]:
    asks = evaluating(path)
    rows = len(asks.node.data.y)
    # The key of the split differs between kits: rows are put on the sides by hand.
    asks.node.data, asks.node.held_out = kit.data(84), kit.data(36, 7)
    if change:
        asks.node.held_out = kit.data(20, 8)
    offer = kit.config(evaluation=asked)
    assert rows > 0
    assert asks.begin(offer, samples=84).kind == "ready"
    return [dict(asks.task(number).tensors) for number in (1, 2)]


def test_without_a_share_nothing_about_held_out_rows_leaves(tmp_path: Path) -> None:
    for name, asked in (("none", {}), ("some", {"share": 0.3, "rounds": [2]})):
        one, other = (answers(tmp_path / f"{name}{change}", asked, change) for change in (False, True))
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine["vector"], theirs["vector"])
            assert set(mine) == set(theirs)
        counts = [each.get(f"{RELEASES}{EVALUATION}") for each in (one[1], other[1])]
        if name == "none":
            assert counts == [None, None]
        else:
            assert float((counts[0] - counts[1])[0]) == pytest.approx(16.0), "the same noise on 36 and 20 rows"


def test_a_member_that_holds_out_nothing_refuses_to_evaluate(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    answer = asks.enrol(kit.config(evaluation={"share": 0.3}))
    assert answer.fields["code"] == "offer"
    assert "holds out none" in answer.fields["reason"]


def test_counts_beyond_what_a_plan_allows_are_refused() -> None:
    offer = kit.config(evaluation={"share": 0.3, "rounds": [2]}, local__lr=0.5)
    from hush.deploy.shared.roster import RosterEntry

    facts = [RosterEntry(name=name, epsilon=1.0, delta=1e-4, relation="add-remove", samples=84) for name in ("a", "b")]
    terms = assemble(offer, facts, kit.data()).terms
    (release,) = terms.stage_table.at(2).sent
    longest = terms.side_bounds[terms.stage_table.of[2]][0][EVALUATION]
    honest = torch.zeros(release.width(terms.shape), dtype=torch.float64)
    honest[0] = 84.0
    assert release.fault(honest, terms.shape, longest) is None
    honest[1] = 1e6
    assert release.fault(honest, terms.shape, longest) is not None
