"""Rounds with secure aggregation: the sums of a simulation, whoever dies when, and one sum for each round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import torch
from safetensors.torch import load_file

from hush.config import Config, parse
from hush.deploy.admin import audit_log, keys
from hush.deploy.coordinator import run as coordinator_run
from hush.deploy.coordinator.secure_round import SURVIVORS
from hush.deploy.member.process import Node
from hush.deploy.shared import sum_messages
from hush.deploy.shared.refusal import REFUSAL
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.engines import setup, simulator
from hush.engines.run_ledgers import RunLedgers
from hush.seeds import rng
from hush.server.loop import plans_of_sums, serve, start
from hush.types import HushError, RunResult
from tests.support.unreliable_members import UnreliableMembers, without_pauses

pytestmark = pytest.mark.slow

STEPS = ("keys", "shares", "task", "confirm", "reveal")
DECLARED = {"rule": "estimated-noise", "estimator": "declared"}


def config(members: int = 4, rounds: int = 2, **more: Any) -> Config:
    return parse(
        {
            "seed": 5, "rounds": rounds, "data": {"name": "digits", "clients": members}, "max_weight": 1.0,
            "privacy": {"budgets": [2.0 + c % 3 for c in range(members)], "delta": 1e-4, "noise": "seeded"},
            "local": {"batch_size": 64, "lr": 0.5}, "recipe": {"name": "weiavg"}, "secure_aggregation": True, **more,
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[UnreliableMembers]:
    made = UnreliableMembers(tmp_path / "federation", config())
    yield made
    made.close()


def models(path: Path) -> torch.Tensor:
    return load_file(sorted(path.glob("checkpoint-*.safetensors"))[-1])["models"]


def rounds(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def run(made: UnreliableMembers, name: str = "run", **more: Any) -> tuple[RunResult, Path]:
    coordinator, _ = made.coordinator(**more)
    return coordinator.run(made.config, made.place.runs / name), made.place.runs / name


def refusals(node: Node) -> list[str]:
    return [str(line["reason"]) for line in audit_log.read(node.log.path) if line["event"] == "refused"]


@pytest.mark.parametrize(
    ("recipe", "budgets"),
    [
        ({"name": "dp-fedavg"}, None),
        ({"name": "robust-hdp", "weight": DECLARED}, None),
        ({"name": "robust-hdp"}, [0.5, 2.0, 6.0] * 3),
    ],
    ids=["dp-fedavg", "declared noise", "estimated from sums of budgets"],
)
def test_a_federation_forms_the_sums_of_its_simulation(tmp_path: Path, recipe: Any, budgets: Any) -> None:
    wanted = config(recipe=recipe)
    if budgets:
        wanted = config(members=9, recipe=recipe, privacy={"budgets": budgets, "delta": 1e-4, "noise": "seeded"})
    made = UnreliableMembers(tmp_path / "federation", wanted)
    result, out = run(made)
    made.close()
    simulated = simulator.run(setup.prepare(wanted))
    # Training several clients at once rounds otherwise than training one: as without secure aggregation.
    assert torch.allclose(models(out), simulated.models, atol=1e-6)
    for mine, theirs in zip(rounds(out), simulated.records, strict=True):
        assert {int(c): w for c, w in mine["weights"].items()} == pytest.approx(dict(theirs.weights), rel=1e-6)
    assert [card.epsilon_spent for card in result.guarantees] == [
        card.epsilon_spent for card in simulated.result.guarantees
    ]
    plain = simulator.run(setup.prepare(wanted.model_copy(update={"secure_aggregation": False})))
    assert [card.epsilon_spent for card in plain.result.guarantees] == [
        card.epsilon_spent for card in simulated.result.guarantees
    ]
    if not budgets:
        assert torch.allclose(plain.models, simulated.models, atol=1e-6)
    assert "sums over" in result.guarantees[0].server_view
    assert plain.result.guarantees[0].server_view == ""


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(s, marks=pytest.mark.soak) for s in range(3, 60))])
def test_a_minority_may_die_in_any_step(tmp_path: Path, seed: int) -> None:
    """The processes of one or two of five members end in each round, before or after they answer."""
    drawn, number = rng(seed, "deaths"), 3
    made = UnreliableMembers(tmp_path / "federation", config(members=5, rounds=number))
    plan: dict[int, dict[str, tuple[str, str]]] = {}
    for at in range(1, number + 1):
        dead = drawn.choice(5, int(drawn.integers(1, 3)), replace=False)
        plan[at] = {
            f"m{c:03d}": (STEPS[int(drawn.integers(5))], ("before", "after")[int(drawn.integers(2))]) for c in dead
        }

    def dies(name: str, kind: str, fields: Mapping[str, Any]) -> str:
        step, when = plan.get(fields.get("round", 0), {}).get(name, ("", ""))
        return when if kind == step else ""

    _, out = run(made, dies=dies)
    for record in rounds(out):
        gone = {name for name, (step, _) in plan[record["round"]].items() if STEPS.index(step) <= 2}
        alive = {c for c in range(5) if f"m{c:03d}" not in gone}
        assert {int(c) for c in record["weights"]} == alive, (record, plan[record["round"]])
    for name, node in made.nodes.items():
        # Once for each round at most: what was masked for a sum that was lost is masked again, not computed again.
        assert len(node.ledger.charged(_run_of(out))) <= number, name
    made.close()
    reference = _with_these_answers(made.config, [{int(c) for c in each["weights"]} for each in rounds(out)])
    assert torch.allclose(models(out), reference, atol=1e-5)


def _run_of(out: Path) -> str:
    return str(json.loads((out / "federation.json").read_text())["run"])


def _with_these_answers(wanted: Config, present: list[set[int]]) -> torch.Tensor:
    """The plain weighted sums of a simulation in which these clients answered in each round."""
    federation = setup.prepare(wanted.model_copy(update={"secure_aggregation": False}))
    ledgers = RunLedgers(federation.ledgers(None, lambda text: None, "r"), "r", durable=False)
    host = simulator.Simulator(federation, ledgers)
    loop = serve(federation.terms, start(federation.terms, federation.starts(), {}), lambda state, record: None)
    tasks = next(loop)
    try:
        for clients in present:
            answers = host.answer([task for task in tasks if task.client in clients])
            tasks = loop.send(answers)
    except StopIteration as end:
        ledgers.close()
        return end.value.models
    raise AssertionError("the loop did not end")


class CrashError(Exception):
    """The coordinator's process ends here."""


@pytest.mark.parametrize(
    "step", [s if s in ("task", "reveal") else pytest.param(s, marks=pytest.mark.soak) for s in STEPS]
)
def test_a_coordinator_that_crashes_in_a_step_forms_the_same_sum_again(
    federation: UnreliableMembers, step: str
) -> None:
    _, reference = run(federation, "reference")

    def crashes(name: str, kind: str, fields: Mapping[str, Any]) -> str:
        if (kind, fields.get("round"), name) == (step, 2, "m002"):
            raise CrashError
        return ""

    coordinator, _ = federation.coordinator(crashes)
    out = federation.place.runs / "run"
    with pytest.raises(CrashError):
        coordinator.run(federation.config, out)
    assert (out / SURVIVORS).exists()
    coordinator, _ = federation.coordinator()
    coordinator.run(federation.config, out, resume=True)
    assert torch.equal(models(out), models(reference))
    for node in federation.nodes.values():
        assert len(node.ledger.charged(_run_of(out))) == 2


def test_a_second_sum_of_a_round_is_refused_also_with_weights_that_differ_in_a_digit(
    federation: UnreliableMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between confirmation and reveal a coordinator begins again, to get a second sum and subtract the first."""

    def crashes(name: str, kind: str, fields: Mapping[str, Any]) -> str:
        if (kind, fields.get("round")) == ("reveal", 1):
            raise CrashError
        return ""

    for attack in ("weights", "members"):
        coordinator, _ = federation.coordinator(crashes)
        out = federation.place.runs / attack
        with pytest.raises(CrashError):
            coordinator.run(federation.config, out)
        honest = plans_of_sums
        if attack == "weights":

            def other(*args: Any) -> Any:
                return [replace(plan, weights=plan.weights * (1 + 1e-8)) for plan in honest(*args)]  # noqa: B023

            monkeypatch.setattr(coordinator_run, "plans_of_sums", other)
        else:
            (out / SURVIVORS).unlink()
        hidden = "m003" if attack == "members" else ""
        coordinator, _ = federation.coordinator(
            lambda name, kind, fields: "before" if (name, kind, fields.get("round")) == (hidden, "keys", 1) else ""  # noqa: B023
        )
        coordinator.run(federation.config, out, resume=True)
        monkeypatch.setattr(coordinator_run, "plans_of_sums", honest)
        first, second = rounds(out)
        assert first["weights"] == {}
        assert len(second["weights"]) == 4
        assert any("has confirmed another sum of this round" in text for text in refusals(federation.nodes["m000"]))


def test_what_a_hostile_coordinator_asks_for_is_refused_and_costs_nothing(federation: UnreliableMembers) -> None:
    tried: dict[str, str] = {}
    forged = keys.new_key()

    def asked(node: Node, message: Message, what: str, **changes: Any) -> None:
        before = len(node.ledger.charged(str(message.fields["run"])))
        said = {key: value for key, value in {**message.fields, **changes}.items() if value is not None}
        payload, receipt = node.handle(messages.encode(Message(message.kind, said, message.tensors)))
        answer = messages.decode(keys.opened(node.public, payload), len(payload))
        assert answer.kind == REFUSAL, what
        assert receipt is None
        assert set(answer.fields) == {"run", "code", "final"}
        assert len(node.ledger.charged(str(message.fields["run"]))) == before
        tried[what] = refusals(node)[-1]

    def resigned(content: bytes) -> bytes:
        end = 2 + int.from_bytes(content[:2], "big")
        return keys.signed(forged, content[end:])

    def looks(node: Node, message: Message) -> None:
        fields = message.fields
        if node.name != "m000" or fields.get("round") != 1:
            return
        if message.kind == "keys":
            asked(node, message, "one weight", weights=[1.0, 0.0, 0.0, 0.0])
            asked(node, message, "other step", step=2 * fields["step"])
            asked(node, message, "fewer members", clients=[0, 1], weights=fields["weights"][:2])
            asked(node, message, "another round", round=77)
        if message.kind == "shares":
            relayed = sum_messages.bytes_of(fields["keys"])
            forgery = sum_messages.byte_fields({**relayed, 1: resigned(relayed[1])})
            asked(node, message, "forged key", keys=forgery)
            asked(node, message, "replayed key", keys=sum_messages.byte_fields({**relayed, 1: relayed[2]}))
            asked(node, message, "two members", keys=sum_messages.byte_fields({c: relayed[c] for c in (0, 1)}))
        if message.kind == "task":
            asked(node, message, "no shares", shares=None, attempt=None)
            asked(node, message, "another attempt", attempt="1234")
            asked(node, message, "too few shares", shares={"1": fields["shares"]["1"]})
        if message.kind == "confirm":
            asked(node, message, "sum of two", survivors=[0, 1])
            asked(node, message, "sum without", survivors=[1, 2, 3])
            asked(node, message, "sum of strangers", survivors=[0, 1, 7])
            node.handle(messages.encode(message))
            asked(node, message, "second sum", survivors=[0, 1, 2])
        if message.kind == "reveal":
            relayed = sum_messages.bytes_of(fields["confirmed"])
            few = dict(list(relayed.items())[:2])
            asked(node, message, "two confirmations", confirmed=sum_messages.byte_fields(few))
            third = next(c for c in relayed if c not in few)
            repeated = {**few, third: relayed[next(iter(few))]}
            asked(node, message, "repeated confirmation", confirmed=sum_messages.byte_fields(repeated))
            invented = {**few, third: resigned(relayed[third])}
            asked(node, message, "invented confirmation", confirmed=sum_messages.byte_fields(invented))

    _, out = run(federation, looks=looks)
    assert {len(record["weights"]) for record in rounds(out)} == {4}
    for what, words in {
        "one weight": "do not follow from the agreed run", "other step": "do not follow",
        "fewer members": "do not follow", "another round": "does not take part in round 77",
        "forged key": "not signed by the member", "replayed key": "not signed by the member",
        "two members": "keys of 2 members; accepted: 3 or more", "no shares": "without although it has",
        "another attempt": "no keys for round 1", "too few shares": "shares of 2 members; accepted: 3",
        "sum of two": "a sum of 2 members; accepted: 3", "sum without": "a sum without this member",
        "sum of strangers": "others than those that are masked", "second sum": "has confirmed another sum",
        "two confirmations": "2 members confirmed this sum; accepted: 3", "repeated confirmation": "not signed by",
        "invented confirmation": "not signed by the member",
    }.items():  # fmt: skip
        assert words in tried[what], (what, tried[what])


def test_a_member_whose_policy_knows_other_keys_does_not_take_part(tmp_path: Path) -> None:
    made = UnreliableMembers(tmp_path / "federation", config(members=5))
    prints = {name: keys.fingerprint(node.public) for name, node in made.nodes.items()}
    right = ", ".join(f'{name} = "{print_}"' for name, print_ in prints.items())
    wrong = right.replace(prints["m001"], "0" * 64)
    for name, pins, least in (("m000", wrong, 2), ("m002", right, 2), ("m003", right, 4)):
        policy = made.path / "kits" / name / "policy.toml"
        text = policy.read_text().replace("# peers = {", f"peers = {{ {pins} }}\n# peers = {{")
        policy.write_text(text.replace("min_sum = 2 ", f"min_sum = {least} "))
        made.restart(name)
    _, out = run(made)
    assert {len(record["weights"]) for record in rounds(out)} == {3}
    assert "which secure_aggregation.peers does not list for it" in " ".join(refusals(made.nodes["m000"]))
    assert "sums of 3 members would do; accepted: 4 or more" in " ".join(refusals(made.nodes["m003"]))
    assert not refusals(made.nodes["m002"])
    made.close()


def test_a_member_that_requires_sums_refuses_a_run_without(tmp_path: Path) -> None:
    wanted = config(members=3).model_copy(update={"secure_aggregation": False})
    made = UnreliableMembers(tmp_path / "federation", wanted)
    policy = made.path / "kits" / "m000" / "policy.toml"
    policy.write_text(policy.read_text().replace("required = false ", "required = true "))
    made.restart("m000")
    run(made)
    assert any("accepts secure aggregation alone" in text for text in refusals(made.nodes["m000"]))
    made.close()


def test_a_recipe_that_needs_single_updates_is_refused_before_members_are_asked(federation: UnreliableMembers) -> None:
    coordinator, hub = federation.coordinator()
    wanted = federation.config.model_copy(update={"recipe": {"name": "pfa"}})
    with pytest.raises(HushError, match=r"secure_aggregation: recipe\.project needs each member's update"):
        coordinator.run(wanted, federation.place.runs / "pfa")
    assert not hub.seen


@pytest.mark.parametrize("secure", [False, True])
def test_a_federation_in_half_precision_computes_what_its_simulation_does(tmp_path: Path, secure: bool) -> None:
    wanted = config(secure_aggregation=secure, engine={"transport": "float16"})
    made = UnreliableMembers(tmp_path / "federation", wanted)
    kinds: set[str] = set()

    def looks(node: Node, message: Message) -> None:
        kinds.update(str(value.dtype) for name, value in message.tensors.items() if name == "models")

    result, out = run(made, looks=looks)
    made.close()
    assert kinds == {"torch.float16"}
    simulated = simulator.run(setup.prepare(wanted))
    # Where training one client rounds otherwise than training several, a number may be rounded to its neighbour.
    assert torch.allclose(models(out), simulated.models, atol=1e-3)
    assert [r["bytes_up"] for r in rounds(out)] == [r.bytes_up for r in simulated.records]
    assert result.guarantees[0].epsilon_spent == simulated.result.guarantees[0].epsilon_spent
