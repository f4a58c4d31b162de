"""Fingerprints of a run's data and model, which a resumed run must match.

A fingerprint is a SHA-256. It is stored in the manifest of a simulation, together with results without noise.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from hush.data.client_rows import Clients
from hush.data.datasets import Dataset
from hush.engines.objective import own_code
from hush.engines.setup import Federation
from hush.models import Model
from hush.models.fingerprint import code, digest, functions_of, is_plain, structure, tensor_parts, weights_fingerprint

Hashes = dict[int, dict[str, str]]


def identity(federation: Federation, known: Hashes | None = None) -> dict[str, Any]:
    """Return name and fingerprint of model and data, for the manifest.

    `known` caches the hashes of the arrays of each dataset, for runs in one process that share them.
    """
    data, memory = federation.data, {} if known is None else known
    names = tuple(member.name for member in federation.members)
    key = id(data.dataset)
    if key not in memory:
        memory[key] = arrays_fingerprint(data.dataset)
    return {
        "data": {
            "name": data.dataset.title,
            "own": data.dataset.own,
            "fingerprint": {**memory[key], "partition": partition_fingerprint(data, names)},
        },
        "model": {
            "name": federation.model.name,
            "own": federation.own_module,
            "fingerprint": model_fingerprint(federation.model),
        },
        **_objective(federation),
    }


def _objective(federation: Federation) -> dict[str, Any]:
    """Return the user's own functions among loss and metrics; the config's hash covers those given by name."""
    found = own_code(federation.config.objective)
    if not found:
        return {}
    codes = {name: digest(_callable(each)) for name, each in found.items()}
    return {"objective": {"name": ", ".join(codes), "own": True, "fingerprint": codes}}


def _callable(given: Any) -> Iterator[object]:
    """Yield what identifies a function or module of the user's own, as far as it can be inspected."""
    if isinstance(given, nn.Module):
        yield from (*structure(given), *code(given))
        for name, value in sorted([*given.named_parameters(), *given.named_buffers()]):
            yield from (name, *tensor_parts(value))
        return
    seen: set[int] = set()
    if isinstance(given, functools.partial):
        yield from (repr(given.args), repr(sorted(given.keywords.items())))
        given = given.func
    if not isinstance(given, types.FunctionType | types.MethodType):
        attributes = getattr(given, "__dict__", {})
        yield from (type(given).__qualname__, *sorted((k, repr(v)) for k, v in attributes.items() if is_plain(v)))
        given = type(given).__call__
    yield getattr(given, "__qualname__", "")
    yield from functions_of(given, seen)


def arrays_fingerprint(dataset: Dataset) -> dict[str, str]:
    """Return the fingerprint of the rows and labels, with their shapes and types."""
    spec = () if dataset.inputs is None else (dataset.inputs,)
    found = {"inputs": digest([*_array(dataset.x), *spec]), "labels": digest([*_array(dataset.y), dataset.classes])}
    if dataset.person is None:
        return found
    return {**found, "persons": digest(_array(np.unique(dataset.person, return_inverse=True)[1]))}


def partition_fingerprint(clients: Clients, names: Sequence[str] = ()) -> str:
    """Return the fingerprint of the assignment of rows to clients, of their transforms and of their names."""

    def parts() -> Iterator[object]:
        yield from (clients.seed, *(name for name in names if name))
        for share, train, test in zip(clients.shares, clients.train, clients.test, strict=True):
            yield from (share.group, share.rotate, share.flip, share.salt, *_array(train), *_array(test))

    return digest(parts())


def model_fingerprint(model: Model) -> dict[str, str]:
    """Return the fingerprint of a model: structure, initial weights, and Python code as far as it is available."""
    module = model.module if model.source is None else model.source
    return {
        "structure": digest([model.layout.names, *structure(module)]),
        "initial_weights": weights_fingerprint(module),
        "code": digest(code(module)),
        **({"encoder": model.features_key} if model.encoder else {}),
    }


def _array(values: np.ndarray) -> tuple[object, ...]:
    return values.shape, str(values.dtype), np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
