"""Questions that a hostile coordinator may ask: configs, rosters and tasks, honest in most parts and odd in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from hush.deploy.shared.protocol import code_hash
from hush.deploy.shared.roster import BUDGET
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.recipes.slots.protect import CENTRE
from hush.recipes.slots.weight import COUNT
from tests.support import federation_kit as kit

ROWS = 40
RECIPES: tuple[dict[str, Any], ...] = (
    {"name": "robust-hdp"}, {"name": "hush"}, {"name": "dp-fedavg"}, {"name": "weiavg"}, {"name": "fedavg"},
    {"name": "minimum"}, {"name": "dp-scaffold"}, {"name": "o-cdpfl"}, {"name": "padpfl"}, {"name": "nothing"},
    {"name": "pfa"}, {"name": "pfa-plus"}, {"name": "rc-dpfl"}, {"name": "f-cdpfl"}, {"name": "km-cdpfl"},
    {"name": "dp-scaffold-warm"}, {"name": "maximum"}, {"name": "dp-fedsgd"},
    {"name": "dp-fedavg", "weight": {"rule": "samples", "counts": "noisy"}},
    {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "steps": 3}},
    {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "sampler": "even"}},
    {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "spread": "equal-noise", "noise": 0.5}},
    {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "clip": "adaptive"}},
    {"name": "robust-hdp", "protect": "none"}, {"weight": "os:system"}, {"weight": 3},
)  # fmt: skip
# Around the number of rows, and far from it: batches, steps and counts at which a true number would show.
NEAR = (1, 5, ROWS // 2, ROWS - 2, ROWS - 1, ROWS, ROWS + 1, ROWS + 2, 10**4, 10**9)
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "local__batch_size": st.sampled_from([*NEAR, [ROWS, ROWS + 1], "robust-hdp-paper"]),
    "local__epochs": st.sampled_from([1, 2, 249, 250, 10**4, 10**6]),
    "local__steps": st.sampled_from([None, 1, 10**4, 10**4 + 1]),
    "local__lr": st.sampled_from([0.5, "auto", 1e30]),
    "rounds": st.sampled_from([1, 2, 3, 2001, 10**6]),
    "participation": st.sampled_from([1.0, 0.5]),
    "model": st.sampled_from(
        [{"name": "logreg"}, {"name": "mlp", "hidden": 3}, {"name": "mlp", "hidden": 10**9}, {"name": "cnn"}]
    ),
    "privacy__clip": st.sampled_from([1.0, 1e-9, 1e9]),
    "privacy__relation": st.sampled_from(["add-remove", "replace-one"]),
    "privacy__accountant": st.sampled_from(["rdp", "pld", "rdp-64"]),
    "privacy__sampler": st.sampled_from(["poisson", "fixed"]),
    "privacy__delta": st.sampled_from([1e-4, 1e-300, [1e-4, 1e-5]]),
    "privacy__discrete": st.sampled_from([True, False]),
    "privacy__retries": st.sampled_from([0, 1, 1000, 10**9]),
    "privacy__loss_clip": st.sampled_from([4.0, 1e-9, 1e30]),
    "quorum": st.sampled_from([1, 2, 9]),
    "max_weight": st.sampled_from([1.0, 0.01, 2.0]),
    "privacy__noise": st.sampled_from(["secure", "seeded"]),
    "data__clients": st.sampled_from([1, 2, 3, 10**8]),
    "data__rows": st.sampled_from(["as-given", "unit-norm"]),
    "engine": st.sampled_from([{"physical_batch": 10**9}, {"device": "cuda"}, {"precision": "bf16"}]),
    "mode": st.sampled_from(["sound", "faithful"]),
    "seed": st.sampled_from([0, 1, 2**70]),
}


def mostly(draw: DrawFn, honest: Any, odd: Sequence[Any], one_in: int = 10) -> Any:
    """The honest value, or one time in so many an odd one."""
    return draw(st.sampled_from(odd)) if draw(st.integers(1, one_in)) == one_in else honest


@st.composite
def configs(draw: DrawFn) -> dict[str, Any]:
    """An honest config with a few settings changed; some cannot be parsed."""
    raw = kit.config(privacy__accountant="rdp", privacy__noise="secure", rounds=2).model_dump()
    raw["recipe"] = mostly(draw, raw["recipe"], RECIPES, 3)
    for key in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=2, unique=True)):
        table, _, name = key.partition("__")
        value = draw(CHANGES[key])
        raw[table] = {**raw[table], name: value} if name else {**raw[table], **value} if table == "engine" else value
    return raw


@st.composite
def facts(draw: DrawFn, name: str) -> dict[str, Any]:
    """A line of a roster, with a guess at the number of rows."""
    noised = ({COUNT: [10.0, 10.0]}, {BUDGET: [1.0, 1.0]}, {CENTRE: [1.0, 1.0]}, {COUNT: 3})
    return {
        "name": name, "epsilon": mostly(draw, 1.0, (50.0, 1e-9)), "delta": 1e-4, "relation": "add-remove",
        "samples": mostly(draw, ROWS, NEAR, 2), "factor": None, "group": None,
        "noised": mostly(draw, {}, noised, 4),
    }  # fmt: skip


@st.composite
def questions(draw: DrawFn) -> bytes:
    """A message of any kind."""
    kind = draw(st.sampled_from(["propose"] * 2 + ["enrol"] * 4 + ["begin"] * 6 + ["task"] * 2))
    kind = mostly(draw, kind, ["wipe"], 40)
    run = mostly(draw, draw(st.sampled_from("abcdef")), ["../x", "", "a" * 65], 30)
    fields: dict[str, Any] = {"run": run, "head": mostly(draw, "", ["9999:" + "0" * 64, "?", 3], 30)}
    tensors: dict[str, torch.Tensor] = {}
    if kind == "task":
        fields["round"] = mostly(draw, 1, [2, 0, 9, True, "1"], 3)
        odd = [torch.zeros(2, 21), torch.zeros(1, 20), torch.zeros(1, 21) / 0]
        tensors = {"models": mostly(draw, torch.zeros(1, 21), odd, 3)}
        if note := mostly(draw, "", ["extras.clip", "extras.drift", "extras.x"], 5):
            tensors[note] = torch.ones(1)
    else:
        shape = mostly(draw, [6], [[7], [1, 2, 3], []])
        schema: dict[str, Any] = {"shape": shape, "classes": mostly(draw, kit.CLASSES, range(8), 4)}
        if mostly(draw, False, [True], 20):
            schema["columns"] = [{"name": str(at), "low": -1.0, "high": 1.0} for at in range(len(shape))]
        fields |= {"config": draw(configs()), "schema": schema, "code": mostly(draw, code_hash(), ["0" * 64], 30)}
    if kind in ("propose", "enrol"):
        fields["number"] = mostly(draw, 0, [1, 5, -1, True])
    if kind == "propose":
        fields |= {
            "purpose": mostly(draw, "a study", ["", "x" * 501, 3]),
            "members": mostly(draw, ["a", "b"], [[], ["b"]]),
        }
    if kind == "begin":
        others = [draw(facts("b")) for _ in range(mostly(draw, 1, [0, 2]))]
        fields |= {"client": mostly(draw, 0, [1, -1, 7]), "roster": [draw(facts("a")), *others]}
        fields["centre"] = mostly(draw, "", ["0" * 64])
    if mostly(draw, False, [True], 40):
        fields["more"] = 1
    return messages.encode(Message(kind, fields, tensors))
