"""Record runs to the last bit: every recipe family, both modes, resume, a sweep and every training path of a CPU.

A change that must not change what is computed is checked with it: `.venv/bin/python -m scripts.record_runs before.json`
on the code before, `... after.json --against before.json` on the code after. Numbers are equal on one machine with one
version of PyTorch, and differ between machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hush
from hush.types import RoundRecord, RunResult

BASE: dict[str, Any] = {
    "seed": 3,
    "rounds": 3,
    "data": {"name": "digits", "clients": 6},
    "privacy": {"budgets": [0.5, 1.0, 1.0, 2.0, 4.0, 8.0], "delta": 1e-4},
    "local": {"batch_size": [16, 32], "lr": 0.1},
    "recipe": {"name": "robust-hdp"},
}
RECIPES = (
    "fedavg", "dp-fedavg", "dp-fedsgd", "fedprox", "weiavg", "minimum", "maximum", "pfa", "pfa-plus", "robust-hdp",
    "dp-scaffold", "dp-scaffold-warm", "scaffold-warm", "rc-dpfl", "f-cdpfl", "km-cdpfl", "o-cdpfl", "padpfl", "hush",
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"recipe": {"name": name}, "rounds": 6 if "warm" in name else 3} for name in RECIPES},
    **{
        f"{name}, faithful": {"recipe": {"name": name}, "mode": "faithful"}
        for name in ("robust-hdp", "dp-scaffold", "rc-dpfl", "padpfl")
    },
    "mlp": {"model": {"name": "mlp", "hidden": 20}},
    "cnn": {"model": {"name": "cnn"}, "rounds": 2},
    "discrete noise": {"privacy": {"discrete": True}, "rounds": 2, "local": {"steps": 3}},
    "noisy counts": {"recipe": {"name": "dp-fedavg", "weight": {"rule": "samples", "counts": "noisy"}}},
    "adaptive clip": {"recipe": {"name": "dp-fedavg", "protect": {"rule": "dp-sgd", "clip": "adaptive"}}},
    "automatic rate": {"local": {"lr": "auto"}},
    "participation": {"participation": 0.5},
}


class Gated(nn.Module):
    """A module with a parameter that no layer holds: it takes the slow path."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)
        self.gate = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.last(torch.tanh(self.first(x.flatten(1))) * self.gate)
        return logits


class _StopError(Exception):
    pass


@dataclass(frozen=True)
class Recorder:
    """Runs configs below a directory, and describes what came out."""

    directory: Path

    def run(self, name: str, changes: Mapping[str, Any], **given: Any) -> dict[str, Any]:
        """The digest of the model and the figures of one run."""
        out = self.directory / name
        return digest(hush.simulate(config(changes), out=out, **given), out)

    def resumed(self) -> dict[str, Any]:
        """The same of a run that was stopped after its second round."""

        def stop(record: RoundRecord) -> None:
            if record.round == 2:
                raise _StopError

        try:
            hush.simulate(config({}), out=self.directory / "resumed", progress=stop)
        except _StopError:
            return self.run("resumed", {}, resume=True)
        raise RuntimeError("the run did not stop")


def config(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base config with these changes; tables are merged, but for the recipe."""
    return {
        key: {**BASE[key], **value} if key in BASE and isinstance(value, dict) and key != "recipe" else value
        for key, value in {**BASE, **changes}.items()
    }


def digest(result: RunResult, out: Path) -> dict[str, Any]:
    """What must stay equal."""
    return {
        "model": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "accuracy": list(result.accuracy_per_client),
        "loss": result.loss,
        "epsilon": [card.epsilon_spent for card in result.guarantees],
        "noise": [card.noise_multiplier for card in result.guarantees],
    }


def record() -> dict[str, Any]:
    """All runs, by name."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorder = Recorder(Path(folder))
        found = {name: recorder.run(name, changes) for name, changes in SETTINGS.items()}
        found["resume"] = recorder.resumed()
        found["own module"] = recorder.run("own module", {"rounds": 2}, model=Gated())
        swept = hush.sweep(config({}), ["local.lr=0.05,0.1"], seeds=2)
        found["sweep"] = {name: variant["accuracy"] for name, variant in swept["recipes"].items()}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def main() -> None:
    """Record, and compare where a former record is given; the exit status is 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = record()
    given.out.write_text(json.dumps(found, indent=1, sort_keys=True), encoding="utf-8")
    print(f"{len(found)} runs recorded in {given.out}")
    if given.against is not None:
        before = json.loads(given.against.read_text(encoding="utf-8"))
        different = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
        raise SystemExit(f"different: {', '.join(different)}" if different else None)


if __name__ == "__main__":
    main()
