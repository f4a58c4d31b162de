"""What a protocol version computes and sends, as a record that later versions are compared with.

`python -m tests.support.protocol_record` writes the record of a new protocol version: raise `PROTOCOL` in
`src/hush/deploy/shared/protocol.py` first.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hush.config import Config, parse
from hush.data.schema import Schema
from hush.deploy.shared import run_spec
from hush.deploy.shared.protocol import PROTOCOL
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.recipes import RECIPES
from hush.types import Policy
from tests.support.loopback import Loopback, edited
from tests.support.paths import ROOT

FILE = ROOT / "tests" / "deploy" / "shared" / "protocol.json"
RUNS = ("robust-hdp", "hush")
MEMBERS, EPSILONS, ROWS = 2, (0.5, 2.0), (150, 400)


def config(recipe: str) -> Config:
    """A small run with seeded noise, whose numbers can be compared."""
    return parse(
        {
            "seed": 5, "rounds": 2, "data": {"name": "digits", "clients": MEMBERS},
            "privacy": {"budgets": list(EPSILONS), "delta": 1e-4, "noise": "seeded"},
            "local": {"batch_size": 50, "lr": 0.5}, "recipe": {"name": recipe},
        }
    )  # fmt: skip


def record() -> dict[str, Any]:
    """What this version computes and sends, as JSON has it."""
    found: dict[str, Any] = {
        "protocol": PROTOCOL,
        "defaults": parse({}).model_dump(),
        "plans": {name: list(plans(name)) for name in RECIPES},
        "runs": {name: run_of(name) for name in RUNS},
    }
    return dict(json.loads(json.dumps(found)))


def plans(recipe: str) -> Iterator[dict[str, Any]]:
    """Each member's plan: what is charged, and how it trains."""
    offer = config(recipe)
    facts = [
        RosterEntry(
            name=f"m{at}", epsilon=epsilon, delta=1e-4, relation="add-remove", samples=rows,
            group=at if recipe == "o-cdpfl" else None,
        )
        for at, (epsilon, rows) in enumerate(zip(EPSILONS, ROWS, strict=True))
    ]  # fmt: skip
    schema = Schema(shape=(64,), classes=10)
    for client, fact in enumerate(facts):
        own = run_spec.member_spec(offer, facts, client, Policy(fact.epsilon, fact.delta, "add-remove"), schema)
        for stage in own.schedule.stages:
            if stage.rounds:
                yield {
                    "client": client,
                    "rounds": stage.rounds,
                    "train": stage.spec.train,
                    "plan": {
                        name: getattr(stage.plan, name)
                        for name in ("samples", "batch", "sampler", "steps", "noise_multiplier", "clip")
                    },
                    "costs": [asdict(cost) for cost in stage.round_costs],
                }


def run_of(recipe: str) -> dict[str, Any]:
    """The messages of a run to its first member with the answers, and the files that a resumed run is read from."""
    with tempfile.TemporaryDirectory() as folder:
        federation = Loopback(Path(folder) / "fed", config(recipe))
        for kit in (federation.place.path / "kits").iterdir():
            edited(kit / "policy.toml", auto_approve="false")
        federation.join()
        approve(federation)
        out = federation.place.runs / "run"
        federation.coordinator().run(config(recipe), out)
        federation.leave()
        first = federation.place.path / "kits" / "m000"
        run = json.loads((out / "federation.json").read_bytes())["run"]
        return {
            "messages": [
                {"sent": base64.b64encode(sent).decode(), "answer": answer}
                for sent, answer in (
                    (sent, described(payload)) for name, sent, payload in federation.seen if name == "m000"
                )
                if answer["kind"] != "no"
            ],
            "agreed": json.loads((first / "runs" / f"{run}.json").read_text()),
            "preview": json.loads(next(first.glob("proposals/*.json")).read_text()),
            "federation": json.loads((out / "federation.json").read_bytes()),
        }


def approve(federation: Loopback) -> None:
    """Have whatever is proposed approved as soon as it is there, in place of people."""
    for node in federation.nodes.values():
        keep = node.consents.keep

        def kept(preview: Any, consents: Any = node.consents, keep: Any = keep) -> Any:
            proposal, new = keep(preview)
            consents.decide(proposal, "approved")
            return consents.named(proposal.name), new

        node.consents.keep = kept  # type: ignore[method-assign]


def described(payload: bytes) -> dict[str, Any]:
    """An answer: its kind and fields, the types and shapes of its tensors, and the values of small ones."""
    inner = payload[2 + int.from_bytes(payload[:2], "big") :]
    message = messages.decode(inner, len(inner))
    return {
        "kind": message.kind,
        "fields": sorted(message.fields),
        "tensors": {
            name: {"type": str(value.dtype), "shape": list(value.shape), "values": value.flatten().tolist()[:80]}
            for name, value in sorted(message.tensors.items())
        },
    }


def replayed(content: bytes) -> bytes:
    """A recorded message for another ledger: without the head of the one that it was sent to."""
    message = messages.decode(content, len(content))
    return messages.encode(Message(message.kind, {**message.fields, "head": ""}, message.tensors))


if __name__ == "__main__":
    os.environ.setdefault("HUSH_WITNESS", tempfile.mkdtemp(prefix="hush-witness-"))
    if FILE.exists() and json.loads(FILE.read_bytes())["protocol"] == PROTOCOL:
        raise SystemExit(f"{FILE} has the record of protocol {PROTOCOL}: raise PROTOCOL first")
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
    print(f"{FILE}: protocol {PROTOCOL}")
