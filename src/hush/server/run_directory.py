"""A run directory: all files of one run, written so that a process killed at any time loses at most one round.

manifest.json       config, its hash, fingerprints of data and model, seed, versions, command
privacy.json        what each round costs each client
rounds.jsonl        one line per round
checkpoint-N        the server's state after round N (safetensors)
result.json         the result, after the last round
model.safetensors   the released model; model.json describes it (`hush.trained_model.files`)
report.html         the HTML report
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hush.server.loop import ServerState
from hush.types import Guarantee, HushError, RoundRecord, RunResult

MANIFEST, ROUNDS, RESULT, MODEL, REPORT, COSTS = (
    "manifest.json", "rounds.jsonl", "result.json", "model.safetensors", "report.html", "privacy.json",
)  # fmt: skip
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync and rename, so that readers never see a partial file."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_tensors_atomically(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """The same for tensors, as safetensors: one after the other from where they are in memory, without a copy."""
    header, content, end = dict[str, Any](), list[Tensor](), 0
    for name in sorted(tensors, key=lambda each: (-tensors[each].element_size(), each)):
        flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        place = [end, end + len(flat)]
        header[name] = {"dtype": _TYPES[tensors[name].dtype], "shape": list(tensors[name].shape), "data_offsets": place}
        content.append(flat)
        end += len(flat)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for flat in content:
            file.write(flat.numpy().data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def to_json(value: Any) -> bytes:
    """Return records and mappings as indented JSON; NaN and infinity become null."""
    return json.dumps(plain(value), indent=2, allow_nan=False).encode() + b"\n"


def plain(value: Any) -> Any:
    """Convert records, tuples and non-finite numbers to values that JSON can represent."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunDir:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunDir:
        """Start a new run in an empty or missing directory."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise HushError(f"{path}: not empty; choose another directory, or use --resume to resume the run in it")
            write_atomically(path / MANIFEST, to_json(manifest))
        except OSError as error:
            raise HushError(f"{path}: cannot write a run directory: {error.strerror or error}") from None
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, config_hash: str, identity: Mapping[str, Any] | None = None) -> RunDir:
        """Open an existing run. Its config, and its data and model if `identity` is given, must be the same."""
        manifest = read_json(path / MANIFEST)
        found = manifest.get("config_hash")
        if found != config_hash:
            # A learning rate that is chosen from data and model differs with them: what is behind it is named first.
            if any(part["name"] != (manifest.get(what) or {}).get("name") for what, part in (identity or {}).items()):
                check_identity(path, manifest, identity or {})
            raise HushError(
                f"{path}: contains a run with a different config (hash {str(found)[:12]}, this one "
                f"{config_hash[:12]}); "
                "resume it with its original config file, or choose another directory"
            )
        if identity is not None:
            check_identity(path, manifest, identity)
        if not os.access(path, os.W_OK):
            raise HushError(f"{path}: cannot be written")
        return cls(path)

    def discard(self) -> None:
        """Remove a run in which no round has been saved."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_costs(self, content: bytes) -> None:
        """Write what the rounds cost the clients (`hush.privacy.round_costs`)."""
        try:
            write_atomically(self.path / COSTS, content)
        except OSError as error:
            raise HushError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def save(self, state: ServerState, record: RoundRecord) -> None:
        """Save one round: append its record, write the state, then update the pointer to the state."""
        try:
            with (self.path / ROUNDS).open("ab") as file:
                file.write(json.dumps(plain(record), allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            write_tensors_atomically(self._checkpoint(state.round), _tensors(state))
        except OSError as error:
            raise HushError(f"{self.path}: round {state.round} cannot be saved: {error.strerror or error}") from None
        for old in self.path.glob("checkpoint-*.safetensors"):
            if old != self._checkpoint(state.round):
                old.unlink(missing_ok=True)

    def restore(self) -> tuple[ServerState, list[RoundRecord]] | None:
        """Return the latest complete state and its rounds. Records of later rounds are removed; these are repeated."""
        rounds = sorted(int(path.stem.rpartition("-")[2]) for path in self.path.glob("checkpoint-*.safetensors"))
        if not rounds:
            (self.path / ROUNDS).unlink(missing_ok=True)
            return None
        path = self._checkpoint(rounds[-1])
        try:
            state = _state(rounds[-1], load_file(path))
        except (OSError, SafetensorError, KeyError) as error:
            raise HushError(f"{path}: not a checkpoint of this version: {error}") from None
        lines = (self.path / ROUNDS).read_bytes().split(b"\n")[: state.round]
        write_atomically(self.path / ROUNDS, b"".join(line + b"\n" for line in lines))
        return state, [_record(line) for line in lines]

    def last(self) -> tuple[ServerState, list[RoundRecord]]:
        """The state and the rounds that a finished run ended with."""
        kept = self.restore() if any(self.path.glob("checkpoint-*.safetensors")) else None
        if kept is None:
            raise HushError(f"{self.path}: has a result and no checkpoint; choose another directory to run again")
        return kept

    def records(self) -> list[RoundRecord]:
        """Return the records of all rounds so far."""
        return [_record(line) for line in (self.path / ROUNDS).read_bytes().splitlines()]

    def finish(self, result: Any, model: Mapping[str, bytes]) -> None:
        """Write the files of the model, then the result: if `result.json` is present, all other files are complete."""
        for name, content in model.items():
            write_atomically(self.path / name, content)
        write_atomically(self.path / RESULT, to_json(result))

    def finished(self) -> RunResult | None:
        """Return the result if the run has finished."""
        path = self.path / RESULT
        if not path.exists():
            return None
        raw = read_json(path)
        try:
            return _result(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise HushError(
                f"{path}: not written by this version of hush: {error!r}; choose another directory"
            ) from None

    def _checkpoint(self, number: int) -> Path:
        return self.path / f"checkpoint-{number:06d}.safetensors"


def saved_round(path: Path) -> int:
    """The last round that is saved in a directory of one or more runs; 0 where there is none."""
    return max((int(each.stem.rpartition("-")[2]) for each in path.rglob("checkpoint-*.safetensors")), default=0)


def check_identity(path: Path, manifest: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise a `HushError` that names the difference if the run used other data or another model.

    `identity` has a name and a fingerprint for the data and for the model, as in the manifest.
    """
    for what, found in identity.items():
        kept = manifest.get(what)
        if not isinstance(kept, Mapping) or not isinstance(kept.get("fingerprint"), Mapping):
            raise HushError(
                f"{path}: its manifest has no fingerprint of its {what}, because an earlier version wrote it; start "
                "again "
                "in another directory"
            )
        parts = [part for part, value in found["fingerprint"].items() if kept["fingerprint"].get(part) != value]
        if parts:
            other = f"{'other' if what == 'data' else 'another'} {what}"
            words = ", ".join(part.replace("_", " ") for part in parts)
            raise HushError(
                f"{path}: holds a run with {other} ({words}): it has {kept.get('name')}, given is "
                f"{found['name']}; use the {what} it was started with, or choose another directory"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a `HushError` that says why it cannot be read."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise HushError(f"{path}: no such file; is {path.parent} a run directory?") from None
    except (OSError, ValueError) as error:
        raise HushError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise HushError(f"{path}: expected a JSON object")
    return value


def _tensors(state: ServerState) -> dict[str, Tensor]:
    slots = {f"{slot}.{name}": t.contiguous() for slot, tensors in state.slots.items() for name, t in tensors.items()}
    return {"models": state.models.contiguous(), "released": state.released.clone(), **slots}


def _state(number: int, tensors: Mapping[str, Tensor]) -> ServerState:
    slots: dict[str, dict[str, Tensor]] = {"evaluation": {}, "step": {}, "assign": {}, "local": {}, "protect": {}}
    for key, value in tensors.items():
        slot, dot, name = key.partition(".")
        if dot:
            slots.setdefault(slot, {})[name] = value
    return ServerState(number, tensors["models"], tensors["released"], slots)


def _record(line: bytes) -> RoundRecord:
    raw = json.loads(line)
    for key in ("weights", "noise_estimated", "noise_planned", "refused", "placed", "warnings"):
        raw[key] = {int(client): value for client, value in raw.get(key, {}).items()}
    for key in ("charged", "accuracy_per_client"):
        raw[key] = tuple(raw[key])
    raw["score_per_client"] = tuple(map(_number, raw.get("score_per_client", ())))
    return RoundRecord(**raw)


def _cost(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read a cost of a card as the engine writes it: with tuples."""
    return {key: tuple(map(tuple, value)) if key == "groups" else value for key, value in raw.items()}


def guarantee(raw: Mapping[str, Any]) -> Guarantee:
    """Read a guarantee card. A missing bound means an infinite one, which JSON cannot represent."""
    whole = {key: int(raw[key]) for key in ("client", "samples", "batch_size", "rounds", "steps")}
    real = {key: float(raw[key]) for key in ("delta", "sample_rate", "noise_multiplier")}
    bounds = {k: math.inf if raw[k] is None else float(raw[k]) for k in ("epsilon_budget", "epsilon_spent", "clip")}
    if math.isinf(bounds["epsilon_spent"]):
        # Someone who sees only the models gets the same guarantee as the server.
        bounds["epsilon_third_party"] = bounds["epsilon_filter"] = math.inf
    stages = tuple(tuple(map(_cost, stage)) for stage in raw["stages"])
    texts = {key: tuple(raw.get(key, ())) for key in ("not_covered", "warnings", "row_groups")}
    return Guarantee(**{**raw, **whole, **real, **bounds, **texts, "stages": stages})


def _result(raw: Mapping[str, Any]) -> RunResult:
    names = ("accuracy_per_client", "not_covered", "warnings", "clients", "evaluation")
    listed = {key: tuple(raw.get(key, ())) for key in names}
    spent = {int(client): number for client, number in raw.get("out_of_budget", {}).items()}
    checked = {
        "loss": _number(raw["loss"]),
        "accuracy": {key: _number(value) for key, value in raw["accuracy"].items()},
        "score": {key: _number(value) for key, value in raw.get("score", raw["accuracy"]).items()},
        "score_per_client": tuple(map(_number, raw.get("score_per_client", ()))),
        "metrics": _with_numbers(raw.get("metrics", {})),
        "out_of_budget": spent,
    }
    return RunResult(**{**raw, **listed, **checked, "guarantees": tuple(map(guarantee, raw["guarantees"]))})


def _number(value: Any) -> Any:
    """JSON has no number that is not finite: null stands for it."""
    return math.nan if value is None else value


def _with_numbers(value: Any) -> Any:
    return {key: _with_numbers(each) for key, each in value.items()} if isinstance(value, dict) else _number(value)
