"""TOML to strict models: an unknown key, a wrong type or an impossible value is an error that names key and line."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hush.types import HushError, unknown


def _either(words: str, *kinds: type) -> Callable[[Any], Any]:
    """A validator for a key that accepts several shapes; the owner of the key checks the rest."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"expected {words}")
        return value

    return check


def _delta(value: Any) -> Any:
    listed = value if isinstance(value, list) and value else [value]
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not 0 < v < 1 for v in listed):
        raise ValueError("expected a number between 0 and 1 (both excluded), or a list of them")
    return value


def _rate(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf):
        raise ValueError('expected a finite number above 0, or "auto"')
    return value


Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Budgets = Annotated[Any, BeforeValidator(_either("a number, a list, a file or a name", int, float, list, str))]
Delta = Annotated[Any, BeforeValidator(_delta)]
Rate = Annotated[Any, BeforeValidator(_rate)]
Batches = Annotated[Any, BeforeValidator(_either("a whole number, a list of choices or a name", int, list, str))]
Partition = Annotated[Any, BeforeValidator(_either("a name or a table with a name", str, dict))]
Sizes = Annotated[Any, BeforeValidator(_either('"equal", a whole number, a list or a table', str, int, list, dict))]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataConfig(_Strict):
    """`[data]`: which data, and how it is divided over the clients."""

    name: Name = "digits"
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
    """`[model]`: a model by name, or `module:factory` for one of your own."""

    name: Name = "logreg"
    hidden: Annotated[int, Field(ge=1)] = 200


class PrivacyConfig(_Strict):
    """`[privacy]`: what each client insists on."""

    budgets: Budgets = 1.0
    lifetime: Budgets | None = None
    delta: Delta = 1e-4
    clip: Positive = 1.0
    loss_clip: Positive = 4.0
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    accountant: Literal["pld", "rdp", "rdp-64"] = "pld"
    noise: Literal["replayable", "secure"] = "replayable"
    sampler: Literal["poisson", "fixed"] = "poisson"
    discrete: bool = False


class LocalConfig(_Strict):
    """`[local]`: a client's own training."""

    batch_size: Batches = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=1)] | None = None
    lr: Rate = 0.1
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class EngineConfig(_Strict):
    """`[engine]`: where and how the arithmetic runs. It changes the speed, not the algorithm."""

    device: Literal["cpu", "cuda", "auto"] = "cpu"
    physical_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    strict: bool = False


class Config(_Strict):
    """One run, whole."""

    mode: Literal["sound", "faithful"] = "sound"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Annotated[int, Field(ge=1)] = 20
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    quorum: Annotated[int, Field(ge=1)] = 1
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    local: LocalConfig = LocalConfig()
    recipe: dict[str, Any] = Field(default_factory=lambda: {"name": "robust-hdp"})
    engine: EngineConfig = EngineConfig()


def config_hash(config: Config) -> str:
    """SHA-256 of the whole config in canonical JSON."""
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


def parse(raw: Mapping[str, Any]) -> Config:
    """Check a nested mapping against the models."""
    try:
        return Config.model_validate(dict(raw))
    except ValidationError as error:
        key, words = _explain(error)
        raise HushError(f"{key}: {words}", key) from None


def located(error: HushError, path: Path, overrides: Sequence[str] = ()) -> HushError:
    """The same error, saying where in the file (or on the command line) its key stands."""
    if error.key is None:
        return error
    for override in overrides:
        if override.partition("=")[0].strip().startswith(error.key):
            return HushError(f"--set {error}", error.key)
    line = _line_of(_read(path), error.key)
    return HushError(f"{path}:{line}: {error}" if line else f"{path}: {error}", error.key)


def overridden(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A nested mapping with `key=value` strings applied to it."""
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
    """The first complaint as (dotted key, words)."""
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
    return sorted(model.model_fields)


def _line_of(text: str, key: str) -> int | None:
    """The line on which the longest written prefix of a dotted key stands."""
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
