"""A member in a process of its own that is sent messages made to exhaust it; prints what came of each, as JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hush.deploy.admin import keys
from hush.deploy.transport import messages
from hush.deploy.transport.inbox import read_message
from hush.deploy.transport.messages import Message
from hush.types import HushError
from tests.support import federation_kit as kit

LIMITS = "max_memory = 1024\nmax_message = 64\nmax_parameters = 2000000\nlifetime = 9.0"
_PIECE = 4 << 20
OFFERS: dict[str, dict[str, Any]] = {
    "hidden 10^8": {"model": {"name": "mlp", "hidden": 10**8}},
    "hidden 10^9": {"model": {"name": "mlp", "hidden": 10**9}},
    "hidden 10^18": {"model": {"name": "mlp", "hidden": 10**18}},
    "rounds 10^6": {"rounds": 10**6},
    "rounds 10^6 of hush": {"rounds": 10**6, "recipe": {"name": "hush"}},
    "members 10^8": {"rounds": 1, "data__clients": 10**8},
    "steps 10^12": {"local__steps": 10**12},
    "epochs 10^12": {"local__epochs": 10**12},
    "steps of the recipe 10^12": {
        "recipe": {"name": "robust-hdp", "protect": {"rule": "dp-sgd", "steps": 10**12}},
    },
}


def _peak() -> int:
    """The most memory that this process has held. (`ru_maxrss` also counts that of the process which started it.)"""
    (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) << 10


def main(path: Path) -> None:
    node = kit.member(path / "a", recipes=["any"], more=LIMITS)
    asks, found = kit.Coordinator(node), dict[str, Any]()

    def tell(what: str, kind: str, code: str | None, began: float) -> None:
        peak = _peak()
        found[what] = {"kind": kind, "code": code, "seconds": time.perf_counter() - began, "peak": peak}

    for what, changes in OFFERS.items():
        for ask in (asks.enrol, asks.begin):
            began = time.perf_counter()
            answer = ask(kit.config(**changes))
            if answer.kind == "no" or ask == asks.begin:
                tell(f"{what}, {ask.__name__}", answer.kind, answer.fields.get("code"), began)
    began = time.perf_counter()
    answer = asks.enrol(kit.config(), classes=10**9)
    tell("classes 10^9", answer.kind, answer.fields.get("code"), began)

    began = time.perf_counter()
    try:
        read_message(str(node.policy.message_cap), (bytes(_PIECE) for _ in range(300)), node.policy.message_cap)
        tell("notes of 1 GiB", "accepted", None, began)
    except HushError:
        tell("notes of 1 GiB", "no", "message", began)

    began = time.perf_counter()
    big = messages.encode(Message("task", {"run": "a", "round": 1, "head": ""}, {"models": torch.zeros(1, 17 << 20)}))
    payload, _ = node.handle(big)
    answer = messages.decode(keys.opened(node._key.public_key(), payload), len(payload))
    tell("a message above the limit", answer.kind, answer.fields.get("code"), began)

    # The largest model that is allowed, with as many examples at a time as a config can ask for.
    began = time.perf_counter()
    offer = kit.config(model={"name": "mlp", "hidden": 199_000}, engine={"physical_batch": 10**9})
    answer = asks.begin(offer)
    if answer.kind == "ready":
        answer = asks.task(1, torch.zeros(1, 10 * 199_000 + 3))
    tell("the largest model", answer.kind, answer.fields.get("code"), began)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
