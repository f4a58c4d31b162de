"""The ledger as an account: what is charged, what is refused, what is kept."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hush.privacy.accounting import api
from hush.privacy.accounting.cost import Cost
from hush.privacy.ledger import BudgetSpentError, Ledger, account, book, statement, totals
from hush.privacy.ledger.book import BURNED, READY, SENT, Book
from hush.privacy.ledger.errors import BrokenLedgerError
from hush.privacy.plan import PrivacyPlan, calibrated
from hush.types import HushError, Policy
from tests.support.ledger_jobs import pending

POLICY = Policy(1.0, 1e-4)
SMALL = (Cost(what="model update", kind="gaussian", noise=50.0, steps=1),)


def plan(rounds: int = 5, epsilon: float = 1.0) -> PrivacyPlan:
    return calibrated(Policy(epsilon, 1e-4), samples=100, batch=20, epochs=1, rounds=rounds, clip=1.0)


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    made = Ledger.in_memory(3, POLICY) if request.param == "memory" else Ledger.create(tmp_path / "l", 3, POLICY)
    request.addfinalizer(made.close)
    return made


def test_rounds_are_charged_until_the_budget_is_spent(ledger: Ledger) -> None:
    five = plan(5)
    ledger.approve([five.cost(5)])
    assert ledger.spent() == 0.0
    receipts = [ledger.reserve([five.cost()], "", number) for number in range(1, 6)]
    assert [(r.client, r.round, r.serial) for r in receipts] == [(3, n, n) for n in range(1, 6)]
    assert 0.98 < ledger.spent() <= 1.0
    assert ledger.left() == pytest.approx(1.0 - ledger.spent())
    assert not ledger.affords([five.cost()])
    with pytest.raises(BudgetSpentError, match=r"^client 3: epsilon .* would exceed the budget of 1$"):
        ledger.reserve([five.cost()], "", 6)
    assert ledger.rounds == 5


def test_a_charge_that_seals_what_it_pays_for_is_never_forfeited(tmp_path: Path) -> None:
    points: list[str] = []

    def dying(point: str) -> None:
        points.append(point)
        if point == "reserve " + ("inserted" if len(points) == 1 else "committed"):
            raise KeyboardInterrupt

    Ledger.create(tmp_path / "l", 3, POLICY).close()
    for _ in range(2):
        # First before the commit, and nothing is charged; then after it, and both entries are there.
        with Ledger.open(tmp_path / "l", failpoint=dying) as opened, pytest.raises(KeyboardInterrupt):
            opened.reserve(SMALL, "spring", 1, sealed=b"order")
    with Ledger.open(tmp_path / "l") as again:
        assert again.rounds == 1 and again.next_attempt("spring", 1) == 0
        again.forfeit_unsealed("spring", 1)
        kept = again.sealed("spring", 1)
        assert kept is not None and kept[1] == b"order"
        again.sent(kept[0])
        assert again.rounds == 1
        with pytest.raises(HushError, match="computed"):
            again.seal(again.reserve(SMALL, "spring", 2, sealed=b"order"), b"another")
    plain = Ledger.open(tmp_path / "l")
    plain.reserve(SMALL, "spring", 3)
    plain.close()
    with Ledger.open(tmp_path / "l") as again:
        assert again.next_attempt("spring", 3) == 2, "a charge without a seal is forfeited"


def test_spent_is_what_the_accountant_says_of_all_costs(ledger: Ledger) -> None:
    ledger.reserve([plan(5).cost()], "", 1)
    ledger.reserve([plan(5).cost(), Cost(what="cluster choice", kind="gaussian", noise=20.0, steps=1)], "", 2)
    rate, noise, steps = plan(5).rate, plan(5).noise_multiplier, plan(5).steps
    parts = [
        Cost(what="a", kind="poisson-gaussian", noise=noise, steps=2 * steps, rate=rate),
        Cost(what="b", kind="gaussian", noise=20.0, steps=1),
    ]
    assert ledger.spent() == totals.epsilon(totals.add_costs({}, parts), POLICY, "pld")
    alone = api.epsilon_after(rate, noise, [2 * steps], POLICY.delta)[0]
    assert alone < ledger.spent()


def test_an_unapproved_plan_is_checked_round_by_round() -> None:
    ledger = Ledger.in_memory(0, POLICY, "pld")
    loose = plan(5, epsilon=2.0)
    charged = 0
    with pytest.raises(BudgetSpentError):
        for number in range(1, 6):
            ledger.reserve([loose.cost()], "", number)
            charged += 1
    assert 0 < charged < 5
    assert ledger.spent() <= 1.0


def test_a_plan_beyond_the_budget_is_not_approved() -> None:
    with pytest.raises(BudgetSpentError):
        Ledger.in_memory(0, POLICY, "pld").approve([plan(5, epsilon=1.2).cost(5)])


def test_what_was_approved_before_a_tighter_policy_is_no_longer_approved(ledger: Ledger) -> None:
    five = plan(5)
    ledger.approve([five.cost(5)])
    ledger.reserve([five.cost()], "", 1)
    ledger.tighten(Policy(ledger.spent() + 0.05, POLICY.delta))
    with pytest.raises(BudgetSpentError):
        ledger.reserve([five.cost(4)], "", 2)


def test_what_is_approved_needs_no_accountant(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.approve([plan(5).cost(5)])

    def asked(*_: Any) -> float:
        raise AssertionError("the accountant was asked")

    monkeypatch.setattr(account, "epsilon", asked)
    for number in range(1, 6):
        assert ledger.affords([plan(5).cost()])
        ledger.reserve([plan(5).cost()], "", number)
    with pytest.raises(AssertionError, match="was asked"):
        ledger.reserve([plan(5).cost()], "", 6)
    with pytest.raises(AssertionError, match="was asked"):
        ledger.affords(SMALL)


def test_different_plans_compose(ledger: Ledger) -> None:
    ledger.reserve([plan(5, epsilon=0.3).cost()], "", 1)
    before = ledger.spent()
    ledger.reserve([plan(7, epsilon=0.5).cost()], "", 2)
    assert before < ledger.spent() < 1.0


def test_no_privacy_costs_infinity() -> None:
    everything = Policy(math.inf, 1e-4)
    ledger = Ledger.in_memory(0, everything, "pld")
    bare = PrivacyPlan(
        samples=100,
        batch=20,
        epochs=1,
        rounds=5,
        clip=math.inf,
        noise_multiplier=0.0,
        relation="add-remove",
        accountant="pld",
    )
    ledger.approve([bare.cost(bare.rounds)])
    ledger.reserve([bare.cost()], "", 1)
    assert ledger.spent() == math.inf
    assert ledger.left() == math.inf
    with pytest.raises(BudgetSpentError):
        Ledger.in_memory(0, POLICY, "pld").reserve([bare.cost()], "", 1)


def test_a_round_is_charged_once(ledger: Ledger) -> None:
    receipt = ledger.reserve(SMALL, "a", 1)
    ledger.reserve(SMALL, "b", 1)
    for attempt in (1, 2):
        with pytest.raises(HushError, match=r"round 1 of a is already charged \(attempt 1, charged\)"):
            ledger.reserve(SMALL, "a", 1, attempt)
    ledger.seal(receipt, b"x")
    ledger.sent(receipt)
    with pytest.raises(HushError, match=r"already charged \(attempt 1, sent\)"):
        ledger.reserve(SMALL, "a", 1, 2)
    assert ledger.next_attempt("a", 1) == 0
    assert ledger.next_attempt("a", 2) == 1
    assert ledger.rounds == 2


def test_a_forfeited_round_may_be_tried_again_and_costs_again(ledger: Ledger) -> None:
    receipt = ledger.reserve(SMALL, "", 1)
    once = ledger.spent()
    ledger.forfeit(receipt)
    assert ledger.spent() == once
    assert ledger.next_attempt("", 1) == 2
    with pytest.raises(HushError, match="cannot become computed; accepted: charged"):
        ledger.seal(receipt, b"too late")
    with pytest.raises(HushError, match="already charged"):
        ledger.reserve(SMALL, "", 1, 1)
    again = ledger.reserve(SMALL, "", 1, 2)
    assert ledger.spent() > once
    ledger.seal(again, b"in time")
    assert pending(ledger) == [(again, b"in time")]


def test_only_what_was_sealed_is_sent(ledger: Ledger) -> None:
    first, second = ledger.reserve(SMALL, "", 1), ledger.reserve(SMALL, "", 2)
    with pytest.raises(HushError, match=r"round 1, attempt 1 is charged and cannot become sent; accepted: computed"):
        ledger.sent(first)
    ledger.seal(second, b"two")
    ledger.seal(first, b"one")
    assert pending(ledger) == [(first, b"one"), (second, b"two")]
    ledger.seal(first, b"one")
    with pytest.raises(HushError, match="cannot become computed"):
        ledger.seal(first, b"another")
    with pytest.raises(HushError, match="cannot become forfeited"):
        ledger.forfeit(first)
    ledger.sent(first)
    ledger.sent(first)
    assert pending(ledger) == [(second, b"two")]


def test_the_bytes_that_were_sent_last_are_kept(ledger: Ledger) -> None:
    for number in (1, 2):
        receipt = ledger.reserve(SMALL, "run", number)
        assert ledger.sealed("run", number) is None
        ledger.seal(receipt, b"%d" % number)
        ledger.sent(receipt)
        assert ledger.sealed("run", number) == (receipt, b"%d" % number)
    assert ledger.sealed("run", 1) is None
    assert ledger.sealed("run", 3) is None


def test_receipts_of_other_ledgers_are_refused(ledger: Ledger) -> None:
    other = Ledger.in_memory(4, POLICY)
    foreign = other.reserve(SMALL, "", 1)
    ledger.reserve(SMALL, "", 1)
    with pytest.raises(HushError, match="not issued by this ledger"):
        ledger.seal(foreign, b"")
    with pytest.raises(HushError, match="head: found ''"):
        ledger.seal(type(foreign)(3, 1, 1), b"")


def test_bad_arguments(ledger: Ledger) -> None:
    for run, number, attempt, text in (
        ("two\nlines", 1, 1, "run: found"),
        ("x" * 201, 1, 1, "run: found"),
        ("", -1, 1, "round, attempt: found -1, 1"),
        ("", 1, 0, "round, attempt: found 1, 0"),
        ("", 2**64, 1, "round, attempt"),
    ):
        with pytest.raises(HushError, match=text):
            ledger.reserve(SMALL, run, number, attempt)
    with pytest.raises(HushError, match="nothing to reserve"):
        ledger.reserve([], "", 1)
    assert ledger.rounds == 0


def test_a_cost_that_cannot_be_accounted_charges_nothing(ledger: Ledger) -> None:
    with pytest.raises(HushError):
        ledger.reserve(
            [Cost(what="x", kind="fixed-gaussian", noise=1.0, steps=1, rate=1.0, samples=10, batch=5)], "", 1
        )
    assert ledger.rounds == 0
    assert ledger.reserve(SMALL, "", 1).serial == 1


def test_a_failure_on_the_way_changes_nothing(tmp_path: Path) -> None:
    failing = ""

    def failpoint(point: str) -> None:
        if point == failing:
            raise RuntimeError(point)

    Ledger.create(tmp_path / "l", 1, POLICY).close()
    with Ledger.open(tmp_path / "l", failpoint=failpoint) as ledger:
        for number in range(1, 21):
            before = ledger.spent()
            failing = "reserve inserted"
            with pytest.raises(RuntimeError):
                ledger.reserve(SMALL, "", number)
            assert ledger.spent() == before
            failing = ""
            receipt = ledger.reserve(SMALL, "", number)
            for step, act in (("seal", lambda r: ledger.seal(r, b"payload")), ("sent", ledger.sent)):
                for failing in (f"{step} inserted", f"{step} committed", f"{step} anchored"):
                    if failing.endswith("inserted") or number % 2:
                        with pytest.raises(RuntimeError):
                            act(receipt)
                failing = ""
                act(receipt)
            failing = "reserve committed"
            with pytest.raises(RuntimeError):
                ledger.reserve(SMALL, "lost", number)
            failing = ""
            assert ledger.next_attempt("lost", number) == 0
        assert ledger.rounds == 40
        spent = ledger.spent()
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.spent() == spent
        assert ledger.next_attempt("lost", 1) == 2
    assert statement.describe(tmp_path / "l")["charges"] == {"RESERVED": 0, "READY": 0, "SENT": 20, "BURNED": 20}


def test_a_second_run_goes_on_from_what_is_spent(tmp_path: Path) -> None:
    half = plan(5, epsilon=0.6)
    with Ledger.create(tmp_path / "l", "bank", POLICY) as ledger:
        ledger.approve([half.cost(5)])
        for number in range(1, 6):
            ledger.reserve([half.cost()], "first", number)
        spent = ledger.spent()
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.spent() == spent
        ledger.approve([half.cost(5)])
        for number in range(1, 6):
            ledger.reserve([half.cost()], "second", number)
        assert spent < ledger.spent() <= 1.0
        with pytest.raises(BudgetSpentError):
            ledger.approve([half.cost(5)])
        with pytest.raises(BudgetSpentError):
            for number in range(1, 6):
                ledger.reserve([half.cost()], "third", number)
        assert ledger.spent() <= 1.0
    described = statement.describe(tmp_path / "l")
    assert described["runs"][:2] == [{"run": name, "rounds": 5, "charges": 5} for name in ("first", "second")]


def test_a_run_is_taken_up_again(tmp_path: Path) -> None:
    whole = plan(5)
    with Ledger.create(tmp_path / "l", 1, POLICY) as ledger:
        ledger.approve([whole.cost(5)], "r")
        for number in (1, 2):
            receipt = ledger.reserve([whole.cost()], "r", number)
        ledger.seal(receipt, b"two")
    with Ledger.open(tmp_path / "l") as ledger:
        assert [(receipt.run, receipt.round, payload) for receipt, payload in pending(ledger)] == [("r", 2, b"two")]
        assert ledger.next_attempt("r", 1) == 2
        ledger.approve([whole.cost(3)])
        for number in (3, 4, 5):
            ledger.reserve([whole.cost()], "r", number)
        with pytest.raises(BudgetSpentError):
            ledger.reserve([whole.cost()], "r", 1, 2)


def test_heads(ledger: Ledger) -> None:
    empty = ledger.head
    ledger.check_head("")
    ledger.check_head(empty)
    receipt = ledger.reserve(SMALL, "", 1)
    assert receipt.head == ledger.head != empty
    ledger.seal(receipt, b"")
    ledger.check_head(receipt.head)
    ledger.check_head(ledger.head)
    other = Ledger.in_memory(9, POLICY).reserve(SMALL, "", 1).head
    for wrong in (other, "40:" + "a" * 64, f"1:{ledger.head.split(':')[1]}"):
        with pytest.raises(BrokenLedgerError, match="the server has recorded entry"):
            ledger.check_head(wrong)
    with pytest.raises(HushError, match="head: found 'nonsense'"):
        ledger.check_head("nonsense")


def test_statement(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger.create(path, "hospital <b>", Policy(math.inf, 1e-4), "rdp") as ledger:
        first = ledger.reserve(SMALL, "r", 1)
        ledger.seal(first, b"bytes")
        ledger.reserve(SMALL, "r", 2)
        # While it is open, too.
        assert statement.verify(path) == 4
        head, spent = ledger.head, ledger.spent()
    described = statement.describe(path)
    json.dumps(described, allow_nan=False)
    assert described == {
        "path": str(path),
        "chain_ok": True,
        "client": "hospital <b>",
        "policy": {"epsilon": None, "delta": 1e-4, "relation": "add-remove", "unit": "row"},
        "accountant": "rdp",
        "spent": spent,
        "filtered": spent,
        "spent_by_row_budget": {},
        "left": None,
        "planned": {"first": [asdict(replace(SMALL[0], what="total"))], "converted": []},
        "rows": 4,
        "charges": {"RESERVED": 1, "READY": 1, "SENT": 0, "BURNED": 0},
        "runs": [{"run": "r", "rounds": 2, "charges": 2}],
        "head": head,
        "witnessed": True,
        "adopted": [],
        "replaces": [],
    }
    rows = list(statement.export(path))
    assert [row["kind"] for row in rows] == ["OPENED", "RESERVED", "READY", "RESERVED"]
    assert json.loads(rows[1]["detail"])[0]["noise"] == 50.0
    for row in rows:
        fields = list(row.values())
        assert book.make_row(*fields[:-1]).hash == row["hash"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["l", "l.head"]


def test_a_book_refuses_rows_that_break_the_rules() -> None:
    source = Ledger.in_memory(1, POLICY)
    receipt = source.reserve(SMALL, "", 1)
    source.seal(receipt, b"")
    good = [tuple(row) for row in source._db.execute("SELECT * FROM rows")]

    def replay(rows: list[tuple[Any, ...]], *more: Any) -> Book:
        replayed = Book()
        for row in rows:
            replayed.replay(row)
        if more:
            replayed.replay(book.make_row(replayed.rows + 1, 0, "", *more, replayed.hash))  # type: ignore[call-arg]
        return replayed

    assert replay(good, SENT, "", 1, 1, "").rows == 4
    detail = good[1][7]
    for kind, number, attempt, text in (
        ("RESERVED", 1, 2, detail),
        ("RESERVED", 2, 0, detail),
        ("RESERVED", 2, 1, detail.replace("gaussian", "magic")),
        ("RESERVED", 2, 1, "[{}]"),
        (BURNED, 1, 1, ""),
        (SENT, 2, 1, ""),
        (READY, 1, 1, ""),
        ("OPENED", 0, 0, good[0][7]),
        ("REFUND", 1, 1, ""),
        ("POLICY", 0, 0, '{"delta":1e-4,"epsilon":2.0,"relation":"add-remove"}'),
        ("POLICY", 0, 0, '{"delta":1e-4,"epsilon":"1","relation":"add-remove"}'),
        ("POLICY", 0, 0, "[]"),
    ):
        with pytest.raises(BrokenLedgerError, match="entry 4"):
            replay(good, kind, "", number, attempt, text)
    for changed in (
        good[1:],
        [good[0], good[2]],
        [*good, good[2]],
        [good[0][:-1]],
        [(*good[0][:2], b"", *good[0][3:])],
    ):
        with pytest.raises(BrokenLedgerError):
            replay(changed)


def test_importing_the_ledger_does_not_import_torch() -> None:
    code = "import sys, hush.privacy.ledger.statement, hush.privacy.limits; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_simulated_ledgers_are_quick() -> None:
    thirty = plan(30)
    Ledger.in_memory(0, POLICY).approve([thirty.cost(30)])
    began = time.process_time()
    ledgers = [Ledger.in_memory(client, POLICY) for client in range(200)]
    for ledger in ledgers:
        ledger.approve([thirty.cost(30)])
    for number in range(1, 31):
        for ledger in ledgers:
            ledger.reserve([thirty.cost()], "", number)
    # A quarter of a second; the rest is for a busy machine and for the measuring of coverage.
    assert time.process_time() - began < 2.0
    assert 0.98 < ledgers[-1].spent() <= 1.0
