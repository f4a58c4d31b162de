"""The files of a trained model: weights as safetensors and everything else as JSON, in a run's directory or in its own.

model.json               what the model is, how rows are read, guarantees, and the SHA-256 of each file
model.safetensors        the trained parameters
fixed.safetensors        parameters and buffers that were not trained, where there are any

Nothing in these files is code, and none is unpickled. The sums tell damage and mixed-up files; they are no signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.data import input_format
from hush.data.input_format import InputFormat
from hush.models import Model, adapters_of, build_model
from hush.models.encoders import is_code
from hush.models.inputs import shapes_of
from hush.models.pretrained import PREFIX as HUGGING_FACE
from hush.models.pretrained import hugging_face
from hush.models.user_module import from_user, given_module
from hush.objective import CLASSIFICATION, Objective, TargetBounds
from hush.server.run_directory import MANIFEST, MODEL, RESULT, guarantee, read_json, to_json, write_atomically
from hush.trained_model.network import WithFeatures, filled, fixed_of, probe_outputs
from hush.trained_model.trained_model import TrainedModel
from hush.types import HushError

DESCRIPTION, FIXED = "model.json", "fixed.safetensors"
FORMAT = 1
_CLOSE = 1e-3
_SUM = "sha256"
_OBJECTIVE = ("task", "outputs", "classes", "bounds", "class_names")
Architecture = nn.Module | Callable[..., nn.Module] | str


def save(model: TrainedModel, directory: Path) -> Path:
    """Write a model to an empty or new directory, and return it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise HushError(f"{directory}: not empty; accepted: a new or an empty directory")
        for name, content in contents(model).items():
            write_atomically(directory / name, content)
    except OSError as error:
        raise HushError(f"{directory}: the model cannot be written: {error.strerror or error}") from None
    return directory


def contents(model: TrainedModel) -> dict[str, bytes]:
    """Return the files of a model by name, the description last: where it is, all the rest is."""
    files = {MODEL: bytes_of(_trained(model))}
    if fixed := fixed_of(model.networks[0], model.parameters):
        files[FIXED] = bytes_of(fixed)
    return {**files, DESCRIPTION: _description(model, files)}


def load(
    directory: str | Path, model: Architecture | None = None, *, encoder: str | None = None,
    weights: str | Path | None = None,
) -> TrainedModel:  # fmt: skip
    """Return the trained model in a directory that `TrainedModel.save` or a finished run wrote.

    Args:
        directory: The model's or the run's. Its files are data, and no code in them is run.
        model: The architecture, where it is a module of your own: an instance, whose weights do not matter and which is
            not changed; a function or class that makes one, called without arguments or with (input shape, number of
            classes); or `module:function`.
        encoder: The frozen encoder that the model was trained behind, as `model.encoder` of a config: where it is code,
            which is run only if it is named here, or where it is somewhere else now. Its weights must be the same.
        weights: Where its weights are, likewise: as `model.weights`.

    Raises:
        HushError: The directory holds no trained model, was changed, or needs another architecture.
    """
    if not isinstance(directory, str | Path) or "\0" in str(directory):
        raise HushError(f"directory: found {directory!r:.80}; accepted: a path")
    path = Path(directory)
    raw = _read(path)
    try:
        return _model(path, _moved(raw, path, encoder, weights), model)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise HushError(f"{path / DESCRIPTION}: not written by this version of hush: {error!r}") from None


def _read(path: Path) -> dict[str, Any]:
    """Return the description of the model, unchanged since it was written."""
    if not (path / DESCRIPTION).exists():
        if (path / MANIFEST).exists() and not (path / RESULT).exists():
            raise HushError(f"{path}: a run that has not finished; resume it first")
        if (path / RESULT).exists():
            raise HushError(
                f"{path}: a run of an earlier version, without {DESCRIPTION}; run it again in a new directory"
            )
        raise HushError(f"{path}: holds no trained model; accepted: a directory that save() or a finished run wrote")
    raw = read_json(path / DESCRIPTION)
    if raw.get("format") != FORMAT:
        raise HushError(f"{path / DESCRIPTION}: format {raw.get('format')!r:.40}; accepted: {FORMAT}")
    if raw.pop(_SUM, None) != _digest(raw):
        raise HushError(f"{path / DESCRIPTION}: was changed after it was written (its SHA-256 differs); save it again")
    return raw


def _moved(raw: Mapping[str, Any], path: Path, encoder: str | None, weights: str | Path | None) -> Mapping[str, Any]:
    """Return the description with the places where the encoder and its weights are now."""
    places = {"encoder": encoder, "weights": None if weights is None else str(weights)}
    given = {key: value for key, value in places.items() if value is not None}
    if given and raw["settings"].get("encoder") is None:
        raise HushError(f"{next(iter(given))}: given, and {path} was trained without an encoder; accepted: none")
    named = raw["settings"].get("encoder")
    if encoder is None and named is not None and is_code(named):
        raise HushError(
            f"encoder: missing; {path} was trained behind {named!r:.80}, which is code and not in these files; "
            "accepted: encoder=, the same if you trust it"
        )
    return {**raw, "settings": {**raw["settings"], **given}}


def _model(path: Path, raw: Mapping[str, Any], given: Architecture | None) -> TrainedModel:
    if not raw["trained"]:
        raise HushError(f"{path}: no client could afford a round of this run, so nothing was trained")
    tensors = {name: _tensors(path, name, found) for name, found in raw["files"].items()}
    reading = input_format.from_record(raw["input"])
    base = _architecture(path, raw, reading, given)
    number, trained = len(raw["probe"]), tensors[MODEL]
    names = {name: tuple(shape) for name, shape in raw["parameters"].items()}
    networks = []
    for each in range(number):
        prefix = f"{each}." if number > 1 else ""
        own = {name: trained[f"{prefix}{name}"] for name in names}
        networks.append(filled(base, own, tensors.get(FIXED, {})))
    for network, wanted in zip(networks, raw["probe"], strict=True):
        if not _alike(probe_outputs(network, reading.shape, reading.inputs), wanted):
            raise HushError(
                f"{path}: the given model computes something else with these weights than the trained one did; "
                "accepted: the module that was trained"
            )
    return TrainedModel(
        networks=tuple(networks),
        name=raw["name"],
        settings=raw["settings"],
        own=raw["own"],
        parameters=names,
        input_format=reading,
        objective=_objective(raw["objective"]),
        class_values=tuple(raw["class_values"]),
        clients=tuple(raw["clients"]),
        placed=tuple(raw["placed"]),
        recipe=raw["recipe"],
        rounds=raw["rounds"],
        trained=raw["trained"],
        guarantees=tuple(map(guarantee, raw["guarantees"])),
        not_covered=tuple(raw["not_covered"]),
        warnings=tuple(raw["warnings"]),
        config_hash=raw["config_hash"],
        versions=raw["versions"],
    )


def _architecture(path: Path, raw: Mapping[str, Any], reading: InputFormat, given: Architecture | None) -> Model:
    """Return the model before training: built by name, or from the module that the user gives."""
    objective = _objective(raw["objective"])
    name, shape, outputs = raw["name"], reading.shape, objective.outputs
    if not raw["own"]:
        if given is not None:
            raise HushError(f"model: given, and {path} holds the built-in {name}; accepted: none")
        settings = ModelConfig(**raw["settings"])
        if settings.encoder is None:
            # The file of pretrained weights is not needed: what was not trained is stored beside what was.
            settings = settings.model_copy(update={"weights": None})
        return build_model(settings, shape, outputs, 0, reading.inputs)
    settings = ModelConfig(**raw["settings"])
    classes = objective.classes if objective.task in ("binary", "multiclass") else outputs
    adapters = adapters_of(settings, 0)
    if given is None and name.startswith(HUGGING_FACE) and settings.weights is not None:
        module = hugging_face(name, settings.weights, outputs)
        return from_user(module, shape, 1, name, reading.inputs, key=None, adapters=adapters)
    if given is None:
        raise HushError(
            f"model: missing; {path} holds the weights of {name}, not its code; accepted: model=, an instance, a "
            "function or class that makes one, or module:function"
        )
    module = given_module(given, shapes_of(shape, reading.inputs), classes)
    return from_user(module, shape, 1, name, reading.inputs, key=None, adapters=adapters)


def _objective(raw: Mapping[str, Any]) -> Objective:
    bounds = raw["bounds"]
    if bounds is not None:
        bounds = TargetBounds(tuple(bounds["low"]), tuple(bounds["high"]))
    return replace(CLASSIFICATION, **{**raw, "bounds": bounds, "class_names": tuple(raw["class_names"])})


def _trained(model: TrainedModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for number, network in enumerate(model.networks):
        inner = network.module if isinstance(network, WithFeatures) else network
        parameters = dict(inner.named_parameters())
        prefix = f"{number}." if len(model.networks) > 1 else ""
        tensors |= {f"{prefix}{name}": parameters[name].detach().contiguous() for name in model.parameters}
    return tensors


def _description(model: TrainedModel, files: Mapping[str, bytes]) -> bytes:
    reading = model.input_format
    raw = {
        "format": FORMAT,
        "name": model.name,
        "settings": model.settings,
        "own": model.own,
        "parameters": model.parameters,
        "input": reading.record(),
        "objective": {key: getattr(model.objective, key) for key in _OBJECTIVE},
        "class_values": model.class_values,
        "clients": model.clients,
        "placed": model.placed,
        "recipe": model.recipe,
        "rounds": model.rounds,
        "trained": model.trained,
        "guarantees": model.guarantees,
        "not_covered": model.not_covered,
        "warnings": model.warnings,
        "config_hash": model.config_hash,
        "versions": model.versions,
        "probe": [probe_outputs(network, reading.shape, reading.inputs) for network in model.networks],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    whole: dict[str, Any] = json.loads(to_json(raw))
    return to_json({**whole, _SUM: _digest(whole)})


def _tensors(directory: Path, name: str, wanted: str) -> dict[str, Tensor]:
    if name not in (MODEL, FIXED):
        raise HushError(f"{directory / DESCRIPTION}: names the file {name!r:.80}; accepted: {MODEL}, {FIXED}")
    path = directory / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HushError(f"{path}: cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != wanted:
        raise HushError(f"{path}: is not the file that {DESCRIPTION} describes (its SHA-256 differs)")
    try:
        tensors: dict[str, Tensor] = tensors_of(content)
    except SafetensorError as error:
        raise HushError(f"{path}: not a safetensors file: {error}") from None
    return tensors


def _digest(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _alike(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float | None]]) -> bool:
    """Return whether a network returns the stored outputs up to rounding. Numbers outside JSON count as equal."""
    have, want = np.array(found, float), np.array(wanted, float)
    if have.shape != want.shape:
        return False
    finite = np.isfinite(have) & np.isfinite(want)
    scale = 1.0 + np.abs(want[finite]).max(initial=0.0)
    return bool(np.abs(have[finite] - want[finite]).max(initial=0.0) <= _CLOSE * scale)
