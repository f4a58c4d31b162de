"""Ledgers are tied to training rows: no row comes under another client's ledger, whatever the config says."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hush.config import parse
from hush.data.datasets import Dataset, from_arrays
from hush.engines.setup import Federation, own_data, prepare
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BrokenLedgerError, Ledger, binding, fingerprints, statement, witness
from hush.privacy.ledger.fingerprints import Rows
from hush.privacy.ledger.ledger import inspect
from hush.types import HushError, Policy

COSTS = (Cost(what="model update", kind="gaussian", noise=60.0, steps=1),)
QUICK, SOAK = 5, 100


def config(seed: int = 0, **data: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "rounds": 2,
        "data": {"clients": 3, **data},
        "privacy": {"budgets": [0.2, 1.0, 10.0], "lifetime": [0.4, 2.0, 20.0]},
        "local": {"batch_size": 64},
        "recipe": {"name": "dp-fedavg"},
    }


def federation(**words: Any) -> Federation:
    return prepare(parse(config(**words)))


def used(made: Federation, directory: Path) -> list[int]:
    """Open the ledgers as a run would, and charge each: the number of charges in each of them."""
    charges = []
    for ledger in made.ledgers(directory):
        receipt = ledger.reserve(COSTS, f"run {ledger.rounds}", 1)
        ledger.seal(receipt, b"bytes")
        charges.append(ledger.rounds)
        ledger.close()
    return charges


def test_rows_that_are_evaluated_come_under_the_ledger_as_well(tmp_path: Path) -> None:
    """Held-out rows whose counts are charged to a ledger cannot come under another one."""
    plain, evaluated = (
        prepare(parse({**config(), **more})) for more in ({}, {"evaluation": {"share": 0.2}})
    )  # fmt: skip
    for made, name in ((plain, "plain"), (evaluated, "evaluated")):
        for ledger, train, test in zip(made.ledgers(tmp_path / name), made.data.train, made.data.test, strict=True):
            wanted = len(train) + (len(test) if name == "evaluated" else 0)
            assert ledger.coverage().now.total() == wanted
            ledger.close()


COVERED = r"client-\d\.ledger: \d+ of .*covered by .*client-\d.*; accepted: "


def refusal(made: Federation, directory: Path) -> str:
    """What opening the ledgers says; no ledger is changed by it."""
    before = {path.name: statement.describe(path) for path in directory.glob("*.ledger")}
    with pytest.raises(HushError) as found:
        made.ledgers(directory)
    assert {name: statement.describe(directory / name) for name in before} == before
    return str(found.value)


def other_seeds(directory: Path, seeds: Iterable[int]) -> list[str]:
    """What each other seed shows after a run; with the first seed the ledgers go on."""
    assert used(federation(), directory) == [1, 1, 1]
    refusals = [refusal(federation(seed=seed), directory) for seed in seeds]
    assert used(federation(), directory) == [2, 2, 2]
    return refusals


def test_another_seed_moves_no_row_to_another_ledger(tmp_path: Path) -> None:
    assert all(re.search(COVERED, text) for text in other_seeds(tmp_path / "books", range(1, 1 + QUICK)))


@pytest.mark.soak
def test_a_hundred_seeds_move_no_row_to_another_ledger(tmp_path: Path) -> None:
    assert all(re.search(COVERED, text) for text in other_seeds(tmp_path / "books", range(1, 1 + SOAK)))


def test_another_partition_moves_no_row_either(tmp_path: Path) -> None:
    books = tmp_path / "books"
    used(federation(), books)
    assert re.search(COVERED, refusal(federation(partition={"name": "dirichlet", "alpha": 0.5}), books))
    more = config(clients=4)
    more["privacy"] = {"budgets": 1.0}
    assert re.search(COVERED, refusal(prepare(parse(more)), books))
    fewer = config(clients=2)
    fewer["privacy"] = {"budgets": 1.0}
    assert re.search(COVERED, refusal(prepare(parse(fewer)), books))
    assert used(federation(), books) == [2, 2, 2]


def test_renamed_clients_are_refused(tmp_path: Path) -> None:
    books = tmp_path / "books"
    used(federation(), books)
    for end in ("", ".head"):
        shutil.move(books / f"client-0.ledger{end}", books / f"kept{end}")
        shutil.move(books / f"client-2.ledger{end}", books / f"client-0.ledger{end}")
        shutil.move(books / f"kept{end}", books / f"client-2.ledger{end}")
    assert "client-0.ledger: the ledger of client 2; accepted: that of client 0" in refusal(federation(), books)


def test_rows_that_a_setting_changes_stay_with_their_ledger(tmp_path: Path) -> None:
    """Rows scaled to norm 1 are the same rows: neither new ones for another client, nor changed ones for this one."""
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    y = np.arange(120) % 2

    def named(names: str, rows: str) -> Federation:
        clients = {name: (x[at * 40 : at * 40 + 40], y[at * 40 : at * 40 + 40]) for at, name in enumerate(names)}
        raw = config(rows=rows)
        del raw["data"]["clients"]
        parsed = parse({**raw, "local": {"batch_size": 8}})
        return prepare(parsed, dataset=own_data(clients, parsed))

    assert used(named("abc", "as-given"), tmp_path) == [1, 1, 1]
    assert "covered by" in refusal(named("xyz", "as-given"), tmp_path)
    assert "covered by" in refusal(named("xyz", "unit-norm"), tmp_path)
    assert used(named("abc", "unit-norm"), tmp_path) == [2, 2, 2]


def test_until_the_first_charge_rows_may_be_replaced(tmp_path: Path) -> None:
    for ledger in federation().ledgers(tmp_path / "books"):
        ledger.close()
    assert used(federation(seed=1), tmp_path / "books") == [1, 1, 1]
    assert re.search(COVERED, refusal(federation(), tmp_path / "books"))


def rows(first: int, end: int) -> Rows:
    numbers = np.arange(first, end)
    return Rows(np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers % 3)


def joined(*parts: Rows) -> Rows:
    return Rows(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


@pytest.mark.parametrize("charged", [False, True])
def test_of_two_first_runs_at_once_only_the_one_whose_rows_are_registered_charges(
    tmp_path: Path, charged: bool
) -> None:
    slow, quick = federation(seed=0).ledgers(tmp_path), federation(seed=1).ledgers(tmp_path)
    if charged:
        quick[0].reserve(COSTS, "quick", 1)
    with pytest.raises(HushError, match=r"client-0\.ledger: another run .* registered different rows; start again"):
        slow[0].reserve(COSTS, "slow", 1)
    quick[0].reserve(COSTS, "quick", 2)
    assert [charge.row.run for charge in inspect(tmp_path / "client-0.ledger")[1].charges.values()][-1] == "quick"
    for ledger in (*slow, *quick):
        ledger.close()
    with pytest.raises(HushError, match="covered by"):
        federation(seed=0).ledgers(tmp_path)


def test_a_charge_while_rows_are_replaced_stops_the_replacement(tmp_path: Path) -> None:
    first, *others = federation().ledgers(tmp_path)
    with contextlib.ExitStack() as opened:
        other, *_ = [opened.enter_context(each) for each in (Ledger.open(first.where), first, *others)]
        now = other.coverage()
        first.reserve(COSTS, "first", 1)
        with pytest.raises(HushError, match="another run has charged it in the meantime; start again"):
            other.cover(Counter({b"0" * 16: 1}), now.now, charged=now.charged)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Ledger, Ledger]:
    """Two ledgers with rows 0 to 99 and 100 to 199, both charged."""
    one, two = (Ledger.create(tmp_path / f"{name}.ledger", name, Policy(9.0, 1e-5)) for name in ("one", "two"))
    binding.bind([one, two], [rows(0, 100), rows(100, 200)])
    for each in (one, two):
        each.reserve(COSTS, "", 1)
    return one, two


def test_more_rows_are_registered_and_fewer_are_fine(pair: tuple[Ledger, Ledger]) -> None:
    one, two = pair
    binding.bind([one], [joined(rows(0, 100), rows(200, 250))])
    assert one.coverage().now.total() == 150
    with pytest.raises(HushError, match=r"two\.ledger: 10 of .* covered by .*one\.ledger"):
        binding.bind([two], [joined(rows(100, 200), rows(240, 250))], [Path(one.where)])
    binding.bind([one], [rows(0, 90)])
    assert (one.coverage().now.total(), one.coverage().ever.total()) == (90, 150)
    with pytest.raises(HushError, match="covered by"):
        binding.bind([two], [joined(rows(100, 200), rows(95, 96))], [Path(one.where)])
    binding.bind([one], [joined(rows(0, 90), rows(300, 301))])
    assert one.coverage().now.total() == 91


def test_changed_rows_are_refused(pair: tuple[Ledger, Ledger]) -> None:
    one, _ = pair
    x, y, _ = rows(0, 100)
    for change in (np.float32(1e-3), np.float32(100.0)):
        with pytest.raises(HushError, match=r"rows were changed: 1 that it covers are gone, and 1 are new; accepted"):
            binding.bind([one], [Rows(np.concatenate([x[:1] + change, x[1:]]), y)])
    with pytest.raises(HushError, match="rows were changed"):
        binding.bind([one], [Rows(x, np.concatenate([y[:1] + 1, y[1:]]))])
    order = np.random.default_rng(0).permutation(100)
    binding.bind([one], [Rows(x[order].reshape(100, 1, 2), y[order])])


def test_equal_rows_are_counted_and_belong_to_those_who_had_them_first(tmp_path: Path) -> None:
    one, two, three = (Ledger.create(tmp_path / f"{n}.ledger", n, Policy(9.0, 1e-5)) for n in (1, 2, 3))
    twice = joined(rows(0, 5), rows(0, 5))
    binding.bind([one, two], [twice, rows(3, 8)])
    for each in (one, two):
        each.reserve(COSTS, "", 1)
    binding.bind([one, two], [twice, rows(3, 8)])
    assert one.coverage().now.total() == 10
    with pytest.raises(HushError, match=r"3\.ledger: 1 of its client's rows are covered by .*1\.ledger"):
        binding.bind([one, two, three], [twice, rows(3, 8), joined(rows(0, 1), rows(50, 60))])
    binding.bind([one, two, three], [twice, rows(3, 8), rows(50, 60)])


def test_overlapping_clients_keep_their_common_rows(tmp_path: Path) -> None:
    x = np.repeat(np.eye(4, dtype=np.float32), 30, axis=0)
    data: Dataset = from_arrays(x, np.tile([0, 1], 60), "own", 2)
    words = config()
    words["local"] = {"batch_size": 8}
    for charges in (1, 2):
        assert used(prepare(parse(words), dataset=data), tmp_path / "books") == [charges] * 3


def test_a_leaked_ledger_tells_no_row(tmp_path: Path, pair: tuple[Ledger, Ledger]) -> None:
    one, _ = pair
    key = witness.here().key()
    assert fingerprints.of(rows(0, 100), key.rows) == one.coverage().now
    assert not fingerprints.of(rows(0, 100), bytes(32)).keys() & one.coverage().now.keys(), "guesses need the key"
    one.close()
    content = Path(one.where).read_bytes()
    assert key.secret.hex().encode() not in content
    assert key.rows not in content
    negated = Rows(-rows(0, 1).x, rows(0, 1).y)
    assert fingerprints.of(negated, key.rows) == fingerprints.of(rows(0, 1), key.rows)


def test_fingerprints_are_part_of_the_chain(pair: tuple[Ledger, Ledger]) -> None:
    one, _ = pair
    one.close()
    for change in ("UPDATE covered SET added=x'00'", "DELETE FROM covered"):
        with contextlib.closing(sqlite3.connect(one.where)) as db, db:
            db.execute(change)
        with pytest.raises(BrokenLedgerError, match="the fingerprints of entry 2 differ from what was written"):
            Ledger.open(one.where)


def test_after_an_adoption_rows_are_registered_anew(
    pair: tuple[Ledger, Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.close()
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-another-machine")
    with Ledger.adopt(one.where) as adopted:
        assert adopted.coverage().now.total() == 0
        with pytest.raises(HushError, match=r"two\.ledger: not known on this machine"):
            binding.bind([adopted], [rows(0, 100)], [Path(two.where)])
        binding.bind([adopted], [rows(0, 100)])
        assert adopted.coverage().now.total() == 100
