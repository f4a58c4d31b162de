"""A member against a coordinator that says anything: refusals cost nothing, answers are charged once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.admin import audit_log, keys
from hush.deploy.admin.folders import Kit
from hush.deploy.member.service import prepare
from hush.deploy.shared import protocol
from hush.deploy.shared.protocol import code_hash
from hush.deploy.transport import messages
from hush.privacy.accounting.cost import from_json
from hush.privacy.ledger import BrokenLedgerError, Ledger
from hush.privacy.ledger.statement import export
from hush.types import HushError
from tests.support import federation_kit as kit


def charges(path: Path) -> int:
    return sum(row["kind"] == "RESERVED" for row in export(path / "ledger.db"))


def begun(path: Path, **words: Any) -> kit.Coordinator:
    asks = kit.Coordinator(kit.member(path, **words))
    assert asks.begin(kit.config()).kind == "ready"
    return asks


def test_a_member_answers_what_it_agreed_to_and_charges_first(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert asks.enrol(kit.config()).fields["samples"] == kit.ROWS
    assert asks.begin(kit.config()).kind == "ready"
    assert charges(tmp_path / "a") == 0
    spent = [0.0]
    for number in range(1, 5):
        assert asks.task(number).kind == "update"
        assert charges(tmp_path / "a") == number
        spent.append(asks.node.ledger.spent())
    assert spent == sorted(set(spent))
    assert 0.9 < spent[-1] <= 1.0 + 1e-9
    events = [line["event"] for line in audit_log.read(tmp_path / "a" / "audit.jsonl")]
    assert events.count("charged") == 4


OFFERS = {
    "another recipe": ({"recipe": {"name": "dp-fedavg"}}, "not accepted by this member"),
    "no protection under a known name": (
        {"recipe": {"name": "robust-hdp", "protect": "none"}},
        "not accepted by this member",
    ),
    "less noise": (
        {"recipe": {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 0.1}}},
        "not accepted by this member",
    ),
    "a higher rate": ({"local__batch_size": 100}, "sampling rate"),
    "more steps": ({"local__steps": 51}, "steps per round"),
    "more rounds": ({"rounds": 21}, "rounds"),
    "a larger clip": ({"privacy__clip": 50.0}, "clip"),
    "a smaller clip": ({"privacy__clip": 0.001}, "clip"),
    "another relation": ({"privacy__relation": "replace-one"}, "relation"),
    "another task": ({"objective": {"task": "regression"}}, "cannot be trained in a federation"),
    "a loss of its own": ({"objective": {"loss": "planted_code:loss"}}, "cannot be trained in a federation"),
    "a metric of its own": ({"objective": {"metrics": ["planted_code:metric"]}}, "accepted: metrics by name"),
    "two classes": ({"objective": {"task": "binary"}}, "the run has 3"),
    "code of its own": ({"model": {"name": "os:system"}}, "not accepted by this member"),
}


@pytest.mark.parametrize("offer", OFFERS)
def test_offers_beyond_the_policy_are_refused_and_cost_nothing(tmp_path: Path, offer: str) -> None:
    changes, words = OFFERS[offer]
    law = "max_rate = 0.5\nmax_steps = 50\nmax_rounds = 20\nmin_clip = 0.01\nmax_clip = 10.0"
    asks = kit.Coordinator(kit.member(tmp_path / "a", more=law))
    assert asks.begin(kit.config()).kind == "ready"
    asks.run = "another"
    answer = asks.begin(kit.config(**changes))  # type: ignore[arg-type]
    assert answer.kind == "no"
    assert words in answer.fields["reason"]
    assert asks.task(1).kind == "no"
    assert charges(tmp_path / "a") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"name": "robust-hdp", "weight": "planted_code:Weigh"}},
        {"recipe": {"weight": {"rule": "planted_code:Weigh"}}},
        {"model": {"name": "planted_code:build"}},
    ],
)
def test_code_that_a_config_names_is_never_imported(
    tmp_path: Path, changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_code.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"]))
    for answer in (asks.enrol(kit.config(**changes)), asks.begin(kit.config(**changes))):
        assert "not accepted by this member" in answer.fields["reason"]
    assert charges(tmp_path / "a") == 0


def test_less_noise_is_refused_where_every_recipe_is_accepted(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"], more="min_noise = 0.5"))
    weak = {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 0.3}}
    answer = asks.begin(kit.config(recipe=weak))
    assert (
        "noise multiplier 0.3 exceeds" in answer.fields["reason"]
        or "does not cover a single round" in answer.fields["reason"]
    )
    asks.run = "unprotected"
    assert asks.begin(kit.config(recipe={"name": "fedavg"})).kind == "no"
    assert charges(tmp_path / "a") == 0


def test_another_protocol_version_is_refused_and_other_code_of_the_same_is_not(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    newer, before = f"{protocol.PROTOCOL + 1}:{'0' * 64}", "0" * 64
    for code, words in ((newer, f"has protocol {protocol.PROTOCOL + 1}"), (before, "no protocol version")):
        for answer in (asks.enrol(kit.config(), code=code), asks.begin(kit.config(), code=code)):
            assert answer.fields["code"] == "protocol"
            assert words in answer.fields["reason"] and "accepted: the same protocol version" in answer.fields["reason"]
    assert asks.enrol(kit.config(), code="1:x").fields["code"] == "message"
    assert asks.begin(kit.config(), code=f"{protocol.PROTOCOL}:{'0' * 64}").kind == "ready"
    assert charges(tmp_path / "a") == 0


def test_a_message_of_a_newer_protocol_is_refused_for_its_version_whatever_else_it_has(tmp_path: Path) -> None:
    """Not as malformed: the operator must learn that an upgrade is needed."""
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    answer = asks.ask("enrol", run=kit.RUN, code=f"{protocol.PROTOCOL + 1}:{'0' * 64}", config={"new": 1}, more=2)
    assert answer.fields["code"] == "protocol"


def test_code_that_a_policy_does_not_list_is_refused(tmp_path: Path) -> None:
    own, other = code_hash(), "1" * 64
    pinned = kit.Coordinator(kit.member(tmp_path / "a", more=f'code = ["{own}"]'))
    assert (
        "the coordinator's code has hash"
        in pinned.begin(kit.config(), code=f"{protocol.PROTOCOL}:{other}").fields["reason"]
    )
    assert pinned.begin(kit.config(), code=str(protocol.own())).kind == "ready"
    elsewhere = kit.Coordinator(kit.member(tmp_path / "b", more=f'code = ["{other}"]'))
    assert "this member's code has hash" in elsewhere.begin(kit.config()).fields["reason"]
    both = kit.Coordinator(kit.member(tmp_path / "c", more=f'code = ["{own}", "{other}"]'))
    assert both.begin(kit.config(), code=f"{protocol.PROTOCOL}:{other}").kind == "ready"


def test_replayable_noise_needs_the_members_word(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", seeded=False))
    assert "provides no privacy" in asks.begin(kit.config()).fields["reason"]
    assert asks.begin(kit.config(privacy__noise="secure")).kind == "ready"


def test_noise_that_is_left_open_is_secure_at_a_member(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", seeded=False))
    assert asks.begin(kit.config(privacy__noise="auto")).kind == "ready"


def test_a_run_cannot_change_once_it_has_begun(tmp_path: Path) -> None:
    asks = begun(tmp_path / "a")
    for other in (kit.config(rounds=5), kit.config(local__lr=0.4), kit.config(seed=2)):
        assert "was started with a different" in asks.begin(other).fields["reason"]
    assert asks.begin(kit.config()).kind == "ready"
    assert "differs from what it declared" in asks.begin(kit.config(), epsilon=50.0).fields["reason"]


def test_a_forked_round_gets_nothing_and_the_same_task_the_same_bytes(tmp_path: Path) -> None:
    asks = begun(tmp_path / "a")
    message = messages.Message("task", {"run": asks.run, "round": 1, "head": ""}, {"models": torch.zeros(1, 21)})
    first, receipt = asks.node.handle(messages.encode(message))
    assert receipt is not None
    again, _ = asks.node.handle(messages.encode(message))
    assert again == first
    asks.node.ledger.sent(receipt)
    assert asks.node.handle(messages.encode(message))[0] == first
    spent = asks.node.ledger.spent()
    for fork in (torch.ones(1, 21), torch.full((1, 21), 1e-7)):
        assert "for a different model" in asks.task(1, fork).fields["reason"]
    assert asks.node.ledger.spent() == spent
    assert charges(tmp_path / "a") == 1


def test_a_restarted_member_goes_on_and_resends_the_same_bytes(tmp_path: Path) -> None:
    asks = begun(tmp_path / "a")
    message = messages.encode(
        messages.Message("task", {"run": asks.run, "round": 1, "head": ""}, {"models": torch.zeros(1, 21)})
    )
    first, _ = asks.node.handle(message)
    asks.node.ledger.close()
    after = kit.member(tmp_path / "a")
    assert after.handle(message)[0] == first
    later = kit.Coordinator(after)
    assert later.task(2).kind == "update"
    assert charges(tmp_path / "a") == 2


def test_a_run_goes_on_with_the_rows_that_it_began_with(tmp_path: Path) -> None:
    """Other rows would have another plan than the one that was agreed to, and a roster cannot change their number."""
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    assert "differs from what it declared" in asks.begin(kit.config(), samples=kit.ROWS + 1).fields["reason"]
    assert asks.begin(kit.config()).kind == "ready"
    assert asks.task(1).kind == "update"
    asks.node.ledger.close()
    later = kit.Coordinator(kit.member(tmp_path / "a"))
    later.node.data = kit.data(kit.ROWS - 1)
    assert "differs from what it declared" in later.task(2).fields["reason"]
    assert charges(tmp_path / "a") == 1


def test_a_member_killed_in_training_pays_and_may_try_again(tmp_path: Path) -> None:
    asks = begun(tmp_path / "a")
    own = asks.node.agreed(asks.run)
    asks.node.ledger.reserve(own.schedule.stages[0].round_costs, asks.run, 1, 1)
    asks.node.ledger.close()
    later = kit.Coordinator(kit.member(tmp_path / "a"))
    assert later.task(1).kind == "update"
    assert charges(tmp_path / "a") == 2
    assert [later.task(number).kind for number in (2, 3)] == ["update", "update"]
    leaving = later.task(4)
    assert (leaving.kind, leaving.fields["final"]) == ("no", True)
    later.node.ledger.close()
    back = kit.Coordinator(kit.member(tmp_path / "a"))
    assert back.task(4).fields["final"] is True
    back.run = "new"
    assert back.begin(kit.config()).fields["final"] is True


def test_a_lifetime_is_spent_run_by_run(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", more="lifetime = 1.3"))
    for run in ("one", "two"):
        asks.run = run
        assert asks.begin(kit.config()).kind == "ready"
        kinds = [asks.task(number).kind for number in range(1, 5)]
        assert kinds[0] == "update"
    assert kinds[-1] == "no"
    assert asks.node.ledger.spent() <= 1.3 + 1e-9


def test_an_old_copy_of_the_ledger_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the witness of the member's machine; and by the coordinator's heads where it was adopted on another."""
    asks = begun(tmp_path / "a")
    shutil.copy(tmp_path / "a" / "ledger.db", tmp_path / "old.db")
    head = asks.task(1).fields["head"]
    asks.node.ledger.close()
    for path in (tmp_path / "a").glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "a" / "ledger.db")
    with pytest.raises(BrokenLedgerError, match="an old copy"):
        kit.member(tmp_path / "a")
    monkeypatch.setenv("HUSH_WITNESS", f"{tmp_path}-another-machine")
    Ledger.adopt(tmp_path / "a" / "ledger.db").close()
    restored = kit.Coordinator(kit.member(tmp_path / "a"))
    answer = restored.task(2, head=head)
    assert "old copy" in answer.fields["reason"]
    assert charges(tmp_path / "a") == 0
    with pytest.raises(BrokenLedgerError):
        restored.node.ledger.check_head(head)


def test_rows_that_changed_under_a_ledger_are_refused_before_the_member_reports(tmp_path: Path) -> None:
    """New rows are registered and missing ones are fine; both at once are refused, once something was charged."""
    path = tmp_path / "a"
    dataset = kit.data()

    def restarted(x: np.ndarray, y: np.ndarray) -> int:
        np.savez(path / "data.npz", x=x, y=y)
        node = prepare(Kit(path, "a", "nowhere:1"), path / "policy.toml", path / "data.npz")
        node.ledger.close()
        return len(node.data.y)

    asks = begun(path)
    assert asks.task(1).kind == "update"
    asks.node.ledger.close()
    changed = dataset.x.copy()
    changed[3, 0] += 0.5
    with pytest.raises(HushError, match="rows were changed: 1 that it covers are gone, and 1 are new"):
        restarted(changed, dataset.y)
    with pytest.raises(HushError, match="rows were changed"):
        restarted(dataset.x, np.where(np.arange(kit.ROWS) == 0, 1 - dataset.y, dataset.y))
    more = np.concatenate([dataset.x, changed[3:4]])
    assert restarted(more, np.append(dataset.y, dataset.y[3])) == kit.ROWS + 1
    assert restarted(dataset.x[1:], dataset.y[1:]) == kit.ROWS - 1
    assert charges(path) == 1


def test_data_that_does_not_fit_is_refused_without_a_count(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a"))
    for changes in ({"shape": (7,)}, {"shape": (1, 2, 3)}, {"shape": ()}, {"classes": 0}):
        assert asks.enrol(kit.config(), **changes).fields["code"] == "schema"
    # No refusal reveals which labels there are: what is not declared fits any number of classes.
    assert asks.enrol(kit.config(), classes=1).kind == "facts"


def test_a_noised_count_is_charged_once_and_stays_the_same(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", samples="noised", more="lifetime = 3.0\nnoise = 40.0"))
    counts = {asks.enrol(kit.config()).fields["samples"] for _ in range(3)}
    assert len(counts) == 1
    assert charges(tmp_path / "a") == 1
    assert asks.node.ledger.spent() > 0
    drawn = set()
    for run in "bcdefgh":
        asks.run = run
        drawn.add(asks.enrol(kit.config()).fields["samples"])
    assert len(drawn) > 2


@pytest.mark.parametrize(
    "tensors",
    [
        {"models": torch.zeros(1, 20)}, {"models": torch.zeros(2, 21)}, {"models": torch.zeros(21)},
        {"models": torch.full((1, 21), torch.nan)}, {"models": torch.zeros(1, 21, dtype=torch.float64)}, {},
        {"models": torch.zeros(1, 21), "extras.drift": torch.zeros(1, 3)},
    ],
)  # fmt: skip
def test_tasks_that_make_no_sense_cost_nothing_released(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    asks = begun(tmp_path / "a")
    assert asks.ask("task", tensors, run=asks.run, round=1, head="").kind == "no"
    assert asks.ask("task", {"models": torch.zeros(1, 21)}, run=asks.run, round=99, head="").kind == "no"
    assert asks.ask("task", {"models": torch.zeros(1, 21)}, run=asks.run, round=1, head="", rate=1.0).kind == "no"
    assert asks.ask("wipe", run=asks.run).kind == "no"
    payload, _ = asks.node.handle(b"\x00" * 40)
    assert messages.decode(keys.opened(asks.node._key.public_key(), payload), len(payload)).kind == "no"
    states = [row["kind"] for row in export(tmp_path / "a" / "ledger.db")]
    assert "READY" not in states


@pytest.mark.parametrize(
    "extras",
    [
        {"clip": torch.tensor([1.0])}, {"drift": torch.zeros(1, 3)}, {"middle": torch.zeros(3)},
        {"middle": torch.zeros(21), "basis": torch.zeros(2, 3)},
    ],
)  # fmt: skip
def test_extras_that_the_recipe_does_not_send_are_refused_and_cost_nothing(
    tmp_path: Path, extras: dict[str, torch.Tensor]
) -> None:
    """Above all a clip: with it would go a count of gradients below it, for which this plan has no noise."""
    asks = begun(tmp_path / "a")
    answer = asks.task(1, **extras)  # type: ignore[arg-type]
    assert (answer.kind, dict(answer.tensors)) == ("no", {})
    assert charges(tmp_path / "a") == 0
    assert asks.task(1).kind == "update"


def test_an_adaptive_clip_is_sent_and_its_count_is_charged(tmp_path: Path) -> None:
    offer = kit.config(recipe={"name": "robust-hdp", "protect": {"rule": "dp-sgd", "clip": "adaptive"}})
    asks = kit.Coordinator(kit.member(tmp_path / "a", recipes=["any"], more="max_clip = 2.0"))
    assert asks.begin(offer).kind == "ready"
    assert asks.task(1).kind == "no"
    assert "clip 3 exceeds" in asks.task(1, clip=torch.tensor([3.0], dtype=torch.float64)).fields["reason"]
    assert charges(tmp_path / "a") == 0
    answer = asks.task(1, clip=torch.tensor([1.5], dtype=torch.float64))
    assert set(answer.tensors) == {"vector", "releases.clip quantile"}
    (charge,) = [row for row in export(tmp_path / "a" / "ledger.db") if row["kind"] == "RESERVED"]
    assert [cost.what for cost in from_json(charge["detail"])] == ["model update", "clip quantile"]


def test_noise_comes_from_the_members_own_plan(tmp_path: Path) -> None:
    """The same rows and the same task, other budgets: noise and charge follow the member's own budget."""
    norms, offer = {}, kit.config(privacy__noise="secure")
    for name, epsilon in (("loose", 8.0), ("strict", 0.05)):
        asks = kit.Coordinator(kit.member(tmp_path / name, epsilon=epsilon))
        assert asks.begin(offer).kind == "ready"
        norms[name] = float(asks.task(1).tensors["vector"].norm())
        (charge,) = [row for row in export(tmp_path / name / "ledger.db") if row["kind"] == "RESERVED"]
        (cost,) = from_json(charge["detail"])
        assert cost.noise == pytest.approx(kit.planned(offer, asks.node))
    assert norms["strict"] > 4 * norms["loose"]


def test_a_policy_can_be_tightened_and_not_loosened(tmp_path: Path) -> None:
    kit.member(tmp_path / "a").ledger.close()
    kit.member(tmp_path / "a", epsilon=0.5).ledger.close()
    with pytest.raises(Exception, match="lifetime policy"):
        kit.member(tmp_path / "a", epsilon=2.0)
    ledger = Ledger.open(tmp_path / "a" / "ledger.db")
    assert ledger.terms.policy.epsilon == 0.5
    ledger.close()


def test_replayable_answers_are_those_of_the_simulation(tmp_path: Path) -> None:
    a, b = (begun(tmp_path / name).task(1).tensors["vector"].numpy() for name in "ab")
    assert np.array_equal(a, b)
