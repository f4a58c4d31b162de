"""Dry runs of a whole federation: members answer with synthetic rows, charge nothing, and reveal nothing of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.data.schema import Column, Schema
from hush.deploy.admin import audit_log
from hush.deploy.member import datasets
from hush.deploy.member.synthetic import synthetic_rows, write_rows
from hush.privacy.ledger.statement import export
from tests.support import federation_kit as kit

DRY = "dry0123456789abcdef"


def tried(path: Path, *, scaled: float = 1.0, **words: Any) -> tuple[kit.Coordinator, list[torch.Tensor]]:
    asks = kit.Coordinator(kit.member(path, auto_approve=False, **words), DRY)
    asks.node.data.x[:] *= scaled
    assert asks.enrol(kit.config()).kind == "facts"
    assert asks.begin(kit.config()).kind == "ready"
    return asks, [asks.task(number).tensors["vector"] for number in range(1, 5)]


def test_a_dry_run_needs_no_approval_charges_nothing_and_reads_no_row(tmp_path: Path) -> None:
    one, mine = tried(tmp_path / "a")
    other, theirs = tried(tmp_path / "b", scaled=5.0)
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
    for asks, path in ((one, "a"), (other, "b")):
        assert [row for row in export(tmp_path / path / "ledger.db") if row["kind"] == "RESERVED"] == []
        assert asks.node.ledger.spent() == 0
        events = [line["event"] for line in audit_log.read(tmp_path / path / "audit.jsonl")]
        assert events == ["dry run"]
        assert list((tmp_path / path / "runs").iterdir()) == []
    real = kit.Coordinator(one.node)
    assert real.begin(kit.config()).fields["code"] == "pending", "a dry run approves nothing"


def test_limits_hold_in_a_dry_run_and_a_policy_can_refuse_it(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"), DRY)
    assert asks.enrol(kit.config(recipe={"name": "dp-fedavg"})).kind == "no"
    assert asks.enrol(kit.config(rounds=100_000)).kind == "no"
    policy = asks.node.policy
    asks.node.policy = policy.model_copy(update={"accept": policy.accept.model_copy(update={"dry_runs": False})})
    asks.run = "dryother"
    answer = asks.enrol(kit.config())
    assert (answer.kind, answer.fields["code"]) == ("no", "offer")


def test_a_number_of_rows_that_is_not_public_is_not_used(tmp_path: Path) -> None:
    counts = []
    for name, rows in (("a", 40), ("b", 120)):
        node = kit.member(tmp_path / name, samples="noised")
        node.data = kit.data(rows)
        asks = kit.Coordinator(node, DRY)
        counts.append(asks.enrol(kit.config()).fields["samples"])
    assert abs(counts[0] - counts[1]) < 150
    assert min(counts) > 900


def test_synthetic_rows_are_read_as_a_file_of_their_schema(tmp_path: Path) -> None:
    schema = Schema(
        shape=(5,), classes=2, label="outcome", class_names=("no", "yes"),
        columns=(
            Column(name="age", kind="integer", low=0, high=99),
            Column(name="sex", kind="category", categories=("F", "M, other"), missing="indicator"),
            Column(name="since", kind="date", low=10_000, high=20_000),
            Column(name="smoker", kind="boolean"),
            Column(name="pressure", low=60, high=200, missing="indicator"),
        ),
    )  # fmt: skip
    made = synthetic_rows(schema, 300, 2)
    read = datasets.load(write_rows(tmp_path / "rows", made), declared=schema)
    assert np.allclose(read.x, made.x, equal_nan=True, atol=1e-4)
    assert (read.y == made.y).all()
    assert np.isnan(made.x[:, 1]).any()
    assert set(made.y) == {0, 1}
    arrays = synthetic_rows(Schema(shape=(2, 3)), 20, 4)
    assert datasets.load(write_rows(tmp_path / "images", arrays)).x.shape == (20, 2, 3)
