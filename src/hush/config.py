"""The config: TOML to strict models; an unknown key, a wrong type or an invalid value is an error with key and line."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer

from hush.types import HushError, unknown


def _either(words: str, *kinds: type) -> Callable[[Any], Any]:
    """Return a validator for a key that accepts several types; the module that uses the key checks the rest."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"expected {words}")
        return value

    return check


def _delta(value: Any) -> Any:
    held = list(value.values()) if isinstance(value, dict) else value
    listed = held if isinstance(held, list) and held else [held]
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not 0 < v < 1 for v in listed):
        raise ValueError("expected a number between 0 and 1 (both excluded), a list of them, or a table by client name")
    return value


def _plain(value: Any) -> Any:
    """A table whose dates are texts, as JSON can hold it."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


def _rate(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf):
        raise ValueError('expected a finite number above 0, or "auto"')
    return value


Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Bounds on what a row adds, with room for the squares of float64 and the noise's multiples of float32.
Bound = Annotated[float, Field(ge=1e-20, le=1e20, allow_inf_nan=False)]
Budgets = Annotated[
    Any,
    BeforeValidator(_either("a number, a list, a table by client name, a file or a name", int, float, list, str, dict)),
]
Delta = Annotated[Any, BeforeValidator(_delta)]
Rate = Annotated[Any, BeforeValidator(_rate)]
Batches = Annotated[
    Any,
    BeforeValidator(_either("an integer, a list of choices, a table by client name or a name", int, list, str, dict)),
]
Partition = Annotated[Any, BeforeValidator(_either("a name or a table with a name", str, dict))]
Sizes = Annotated[Any, BeforeValidator(_either('"equal", an integer, a list or a table', str, int, list, dict))]


Files = Annotated[Any, BeforeValidator(_either("a path, a pattern such as sites/*.csv, or a list of paths", str, list))]
Table = Annotated[
    Any, BeforeValidator(_plain), BeforeValidator(_either("a table, or the path of a TOML file", dict, str))
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True)


class DataConfig(_Strict):
    """`[data]`: the dataset and its partition among the clients."""

    name: Name = "digits"
    files: Files | None = None
    label: Name | None = None
    client: Name | None = None
    # A model of pydantic has a method of the name that the key has.
    table_schema: Table | None = Field(default=None, alias="schema")
    clients: Annotated[int, Field(ge=1)] = 20
    partition: Partition = "auto"
    sizes: Sizes = "equal"
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    part: Literal["train", "test", "all"] = "train"
    rows: Literal["as-given", "unit-norm"] = "as-given"
    alpha: Annotated[float, Field(ge=0)] = 0.0
    beta: Annotated[float, Field(ge=0)] = 0.0
    samples: Annotated[int, Field(ge=2)] = 5000


class ModelConfig(_Strict):
    """`[model]`: a built-in model, or `module:factory` for a custom one."""

    name: Name = "logreg"
    hidden: Annotated[int, Field(ge=1)] = 200


class PrivacyConfig(_Strict):
    """`[privacy]`: the privacy requirements of the clients."""

    budgets: Budgets = 1.0
    lifetime: Budgets | None = None
    delta: Delta = 1e-4
    clip: Bound = 1.0
    loss_clip: Bound = 4.0
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    accountant: Literal["pld", "rdp", "rdp-64"] = "pld"
    noise: Literal["seeded", "secure"] = "seeded"
    sampler: Literal["poisson", "fixed"] = "poisson"
    discrete: bool = False
    retries: Annotated[int, Field(ge=0, le=1000)] = 0


class LocalConfig(_Strict):
    """`[local]`: local training of a client."""

    batch_size: Batches = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=1)] | None = None
    lr: Rate = "auto"
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class EngineConfig(_Strict):
    """`[engine]`: device and numerical settings. They affect speed, not the algorithm."""

    device: Literal["cpu", "cuda", "auto"] = "cpu"
    physical_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    strict: bool = False


class Config(_Strict):
    """The config of one run."""

    mode: Literal["sound", "faithful"] = "sound"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Annotated[int, Field(ge=1)] = 20
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    quorum: Annotated[int, Field(ge=1)] = 1
    max_weight: Annotated[float, Field(gt=0, le=1)] | None = None
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    local: LocalConfig = LocalConfig()
    recipe: dict[str, Any] = Field(default_factory=lambda: {"name": "robust-hdp"})
    engine: EngineConfig = EngineConfig()

    @field_serializer("recipe")
    def _recipe(self, recipe: dict[str, Any]) -> dict[str, Any]:
        return {key: described(value) for key, value in recipe.items()}


def described(value: Any) -> Any:
    """What a `[recipe]` table holds as plain values: a record is its class, `module:Class`, and its fields.

    An importable class with plain fields reads back as the same option.
    """
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind, fields = type(value), dataclasses.fields(value)
        named = {field.name: described(value.__dict__[field.name]) for field in fields}
        return {"rule": f"{kind.__module__}:{kind.__qualname__}", **named}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def config_hash(config: Config) -> str:
    """Return the SHA-256 of the config in canonical JSON."""
    text = json.dumps(config.model_dump(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides, and check every key."""
    text = _read(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HushError(f"{path}: not valid TOML: {error}") from None
    try:
        return parse(overridden(raw, overrides))
    except HushError as error:
        raise located(error, path, overrides) from None


RENAMED = {  # former keys, or keys with former values
    "recipe.weigh": "recipe.weight",
    "privacy.noise = replayable": "privacy.noise = seeded",
}
_ABSENT = object()


def check_renamed(raw: Mapping[str, Any]) -> None:
    """Raise a `HushError` with the new name if a nested mapping uses a former key or value."""
    for old, new in RENAMED.items():
        key, _, value = old.partition(" = ")
        found: object = raw
        for part in key.split("."):
            found = found.get(part, _ABSENT) if isinstance(found, Mapping) else _ABSENT
        if found is not _ABSENT and (not value or found == value):
            raise HushError(f"{old}: renamed to {new}", key)


def parse(raw: Mapping[str, Any]) -> Config:
    """Return the validated config, or raise a `HushError` that names the key."""
    check_renamed(raw)
    try:
        return Config.model_validate(dict(raw))
    except ValidationError as error:
        key, words = _explain(error)
        raise HushError(f"{key}: {words}", key) from None


def located(error: HushError, path: Path, overrides: Sequence[str] = ()) -> HushError:
    """Return the same error with the file and line (or the command-line option) of its key."""
    if error.key is None:
        return error
    for override in overrides:
        if override.partition("=")[0].strip().startswith(error.key):
            return HushError(f"--set {error}", error.key)
    line = _line_of(_read(path), error.key)
    return HushError(f"{path}:{line}: {error}" if line else f"{path}: {error}", error.key)


def overridden(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a nested mapping with `key=value` overrides applied."""
    changed = copy.deepcopy(dict(raw))
    for override in overrides:
        _apply(changed, override)
    return changed


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise HushError(f"{path}: no such file; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HushError(f"{path}: cannot be read: {error}") from None


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise HushError(f"--set {override}: expected key=value, such as local.lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *tables, last = key.strip().split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise HushError(f"--set {override}: {table} is not a table, so it has no key {last}")
    raw[last] = parsed


def _explain(error: ValidationError) -> tuple[str, str]:
    """Return the first validation error as (dotted key, message)."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    key, found = ".".join(parts), first["input"]
    if first["type"] == "extra_forbidden":
        known = _keys_of(parts[:-1])
        return key, str(unknown(key, "key", parts[-1], known)).removeprefix(f"{key}: ")
    words = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return key, f"{words[0].lower()}{words[1:]}, found {json.dumps(found, default=str)}"


def _keys_of(parts: Sequence[str]) -> list[str]:
    model: Any = Config
    for part in parts:
        model = model.model_fields[part].annotation
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _line_of(text: str, key: str) -> int | None:
    """Return the line of the longest prefix of a dotted key that occurs in the file."""
    table: tuple[str, ...] = ()
    best, best_length = None, 0
    wanted = tuple(key.split("."))
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\-]+)\s*\]", line):
            table = tuple(header[1].split("."))
            found = table
        elif entry := re.match(r"\s*([\w.\-]+)\s*=", line):
            found = (*table, *entry[1].split("."))
        else:
            continue
        if wanted[: len(found)] == found and len(found) > best_length:
            best, best_length = number, len(found)
    return best
