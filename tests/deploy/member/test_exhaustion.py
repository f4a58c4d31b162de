"""One message cannot exhaust a member: what is too large is refused before it is built, planned or kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.member import policy
from hush.types import HushError
from tests.support import federation_kit as kit
from tests.support.paths import environment, helper

LIMIT = 1024 << 20
SECONDS = 5.0


def test_messages_made_to_exhaust_a_member_are_refused_at_once(tmp_path: Path) -> None:
    command = helper("exhausted_member", tmp_path)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    largest = found.pop("the largest model")
    assert len(found) >= 12
    for what, answer in found.items():
        assert (answer["kind"], answer["code"] in ("limits", "message")) == ("no", True), what
        assert answer["seconds"] < SECONDS, what
    assert largest["kind"] == "update"
    assert largest["peak"] < 1.2 * LIMIT


FACTORY = """
from torch import nn

devices = []


def make(shape, classes):
    made = nn.Linear(shape[0], classes)
    devices.append(made.weight.device.type)
    return made


def numpy(shape, classes):
    made = make(shape, classes)
    made.weight.detach().numpy()
    return made
"""


@pytest.mark.parametrize(("factory", "devices"), [("make", {"meta"}), ("numpy", {"meta", "cpu"})])
def test_the_size_of_an_accepted_module_is_known_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, devices: set[str]
) -> None:
    """One that fails without values is built to be counted, and refused then."""
    name = f"wide_{factory}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    node = kit.member(tmp_path / "a", recipes=["any"], more="max_parameters = 2000000")
    accept = node.policy.accept.model_copy(update={"models": [f"{name}:{factory}"]})
    node.policy = node.policy.model_copy(update={"accept": accept})
    with node.ledger:
        asks = kit.Coordinator(node)
        offer = kit.config(model={"name": f"{name}:{factory}"})
        answer = asks.enrol(offer, classes=300_000)
        assert (answer.kind, answer.fields.get("code")) == ("no", "limits")
        assert "a model of 2100000 parameters" in answer.fields["reason"]
        assert set(sys.modules[name].devices) == devices
        assert asks.enrol(offer).kind == "facts"


def test_a_config_can_lower_the_examples_that_are_held_at_a_time_and_not_raise_them(tmp_path: Path) -> None:
    asks = kit.Coordinator(kit.member(tmp_path / "a", more="lifetime = 9.0"))
    found = {}
    for wanted in ("auto", 3, 10**9):
        asks.run = f"run{wanted}"
        assert asks.begin(kit.config(engine={"physical_batch": wanted})).kind == "ready"
        found[wanted] = asks.node._examples(asks.node.agreed(asks.run))
    assert found[3] == 3
    assert found[10**9] == found["auto"] < 10**9


def test_limits_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    for more, words in (
        ("max_memory = 1024\nmax_message = 512", "max_message: 512 MiB is more than"),
        ("max_memory = 64\nmax_message = 1", "max_parameters: 20000000 do not fit"),
    ):
        with pytest.raises(HushError, match=words):
            kit.member(tmp_path / "a", more=more)


def test_the_template_limits_what_a_run_may_take(tmp_path: Path) -> None:
    kit.member(tmp_path / "a").ledger.close()
    found = policy.load(tmp_path / "a" / "policy.toml").limits
    assert found.model_copy(update={"runs_per_day": 10}) == policy.Bounds()
    assert (found.max_rounds, found.max_members, found.max_parameters) == (2_000, 200, 20_000_000)
    assert (found.max_memory, found.max_message, found.max_steps) == (4096, 256, 10_000)
