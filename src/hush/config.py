"""The config: TOML to strict models; an unknown key, a wrong type or an invalid value is an error with key and line."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer

from hush.types import HushError, Unit, unknown


def _either(words: str, *kinds: type) -> Callable[[Any], Any]:
    """Return a validator for a key that accepts several types; the module that uses the key checks the rest."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"expected {words}")
        return value

    check.__doc__ = words
    return check


def _delta(value: Any) -> Any:
    """A number between 0 and 1, a list of them, or a table by client name."""
    given = list(value.values()) if isinstance(value, dict) else value
    listed = given if isinstance(given, list) and given else [given]
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not 0 < v < 1 for v in listed):
        raise ValueError("expected a number between 0 and 1 (both excluded), a list of them, or a table by client name")
    return value


def _plain(value: Any) -> Any:
    # A table with dates converted to texts, which JSON can represent.
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


def _rate(value: Any) -> Any:
    """A number above 0, or "auto"."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _FASTEST
    if value != "auto" and not known:
        raise ValueError(f'expected a number above 0 and at most {_FASTEST:g}, or "auto"')
    return value


def _rounds(value: Any) -> Any:
    """A list of round numbers, 1 or more."""
    listed = value if isinstance(value, list) and value else [0]
    if any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in listed):
        raise ValueError("expected a list of round numbers, 1 or more")
    return value


def _loss(value: Any) -> Any:
    """A name, module:function, or a function in Python."""
    if callable(value) or value in LOSSES or (isinstance(value, str) and ":" in value):
        return value
    raise ValueError(f"expected one of {', '.join(LOSSES)}, module:function, or a function in Python")


def _metrics(value: Any) -> Any:
    """A list of names, of module:function, or of functions in Python."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if not all(callable(each) or (isinstance(each, str) and each) for each in listed):
        raise ValueError("expected a list of names, of module:function, or of functions in Python")
    return listed


def _target_bounds(value: Any) -> Any:
    """[low, high], or a list of such pairs, one for each target."""
    pairs = value if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple) else [value]
    for pair in pairs:
        numbers = isinstance(pair, list | tuple) and len(pair) == 2 and not any(isinstance(v, bool) for v in pair)
        if not numbers or not all(isinstance(v, int | float) and math.isfinite(v) for v in pair) or pair[0] >= pair[1]:
            raise ValueError("expected [low, high] with low < high, or a list of such pairs, one for each target")
    return [list(pair) for pair in value] if pairs is value else list(value)


LOSSES = ("auto", "cross-entropy", "mse", "huber")
_FASTEST = 1e20  # a learning rate whose square, times that of the noise, is a number
Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Limits on one row's contribution, which keep squares in float64 and multiples of the noise in float32 finite.
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
    person: Name | None = None
    # pydantic models have a method with the name of this key.
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
    """`[model]`: a built-in model, or `module:factory` for a custom one; how a pretrained one is fine-tuned; a frozen
    encoder in front of it.
    """

    name: Name = "logreg"
    hidden: Annotated[int, Field(ge=1)] = 200
    weights: Name | None = None
    encoder: Name | None = None
    features: Literal["group-norm", "unit-norm", "as-given"] = "group-norm"
    fingerprint: Name | None = None
    adapters: Literal["none", "lora", "ffa-lora"] = "none"
    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Positive = 16.0
    targets: list[Name] | None = None
    head: Literal["linear"] | list[Name] | None = None


class ObjectiveConfig(_Strict):
    """`[objective]`: what is predicted, by which loss it is learned, and by which metrics it is judged.

    Functions given in Python are kept as they are, and written as `module:name`.
    """

    task: Literal["auto", "binary", "multiclass", "multilabel", "regression"] = "auto"
    loss: Annotated[Any, BeforeValidator(_loss)] = "auto"
    metrics: Annotated[list[Any], BeforeValidator(_metrics)] = Field(default_factory=list)
    target_bounds: Annotated[Any, BeforeValidator(_target_bounds)] | None = None

    @field_serializer("loss", "metrics")
    def _code(self, value: Any) -> Any:
        return [code_name(each) for each in value] if isinstance(value, list) else code_name(value)


class PrivacyConfig(_Strict):
    """`[privacy]`: the privacy requirements of the clients."""

    budgets: Budgets = 1.0
    declared: Budgets | None = None
    lifetime: Budgets | None = None
    delta: Delta = 1e-4
    clip: Bound = 1.0
    loss_clip: Bound = 4.0
    relation: Literal["add-remove", "replace-one"] = "add-remove"
    accountant: Literal["pld", "rdp", "rdp-64"] = "pld"
    noise: Literal["auto", "seeded", "secure"] = "auto"
    sampler: Literal["poisson", "fixed"] = "poisson"
    discrete: bool = False
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    unit: Literal["auto", "row", "person", "client"] = "auto"
    row_budgets: Name | None = None
    rows_per_person: Annotated[int, Field(ge=1, le=10_000)] = 1


class LocalConfig(_Strict):
    """`[local]`: local training of a client."""

    batch_size: Batches = 32
    epochs: Annotated[int, Field(ge=1)] = 1
    steps: Annotated[int, Field(ge=1)] | None = None
    lr: Rate = "auto"
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class EvaluationConfig(_Strict):
    """`[evaluation]`: noised counts of held-out rows at the clients, as a part of each client's budget."""

    share: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    every: Annotated[int, Field(ge=1)] = 5
    rounds: Annotated[Any, BeforeValidator(_rounds)] | None = None
    bins: Annotated[int, Field(ge=2, le=1000)] = 20
    metric: Literal["accuracy", "auc", "loss"] = "accuracy"
    patience: Annotated[int, Field(ge=0)] = 0
    choose: Literal["last", "best"] = "last"


class EngineConfig(_Strict):
    """`[engine]`: where a run computes, and numerical settings. They affect speed, not the algorithm.

    `name`: `process` is this one, `ray` the workers of a Ray cluster (hush[cluster]). `address`: of the cluster; none
    starts Ray on this machine. `workers`: how many at most. `block`: clients that train together on a worker.
    `transport`: how models and updates are sent; `float16` rounds them, in simulations as well.
    """

    name: Literal["process", "ray"] = "process"
    address: str | None = None
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    block: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    physical_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    transport: Literal["float32", "float16"] = "float32"
    strict: bool = False


class Config(_Strict):
    """The config of one run."""

    mode: Literal["sound", "faithful"] = "sound"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Annotated[int, Field(ge=1)] = 20
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    quorum: Annotated[int, Field(ge=1)] = 1
    max_weight: Annotated[float, Field(gt=0, le=1)] | None = None
    secure_aggregation: bool = False
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    local: LocalConfig = LocalConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    recipe: dict[str, Any] = Field(default_factory=lambda: {"name": "robust-hdp"})
    engine: EngineConfig = EngineConfig()

    @field_serializer("recipe")
    def _recipe(self, recipe: dict[str, Any]) -> dict[str, Any]:
        return {key: described(value) for key, value in recipe.items()}


def described(value: Any) -> Any:
    """Return a `[recipe]` table as plain values: a record becomes its class, `module:Class`, and its fields.

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


def code_name(value: Any) -> str:
    """A function as `module:name`; a text as it is."""
    if isinstance(value, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def given(config: Config) -> dict[str, Any]:
    """What a config was given, as a nested mapping; options and functions of Python are kept as they are."""
    raw = {**config.model_dump(exclude_unset=True), "recipe": dict(config.recipe)}
    if "objective" in config.model_fields_set:
        raw["objective"] = {name: getattr(config.objective, name) for name in config.objective.model_fields_set}
    return raw


def with_noise(config: Config, *, lasting: bool) -> Config:
    """Return the config with the noise that "auto" means: secure where what is spent is recorded in a ledger file or a
    federation, since the data have an owner then; else seeded, which is for experiments.
    """
    if config.privacy.noise != "auto":
        return config
    found = config.privacy.model_copy(update={"noise": "secure" if lasting else "seeded"})
    return config.model_copy(update={"privacy": found})


def unit_of(config: Config) -> Unit:
    """The unit of privacy of a config; a row, where it is still open."""
    return "row" if config.privacy.unit == "auto" else config.privacy.unit


def with_unit(config: Config, persons: bool) -> Config:
    """Return the config with the unit of privacy that "auto" means: a person where `persons` are known, else a row."""
    unit = config.privacy.unit
    if unit == "person" and not persons:
        raise HushError(
            'privacy.unit: "person" needs to know which person each row is about; accepted with it: data.person, the '
            "column with their keys (person= in Python)",
            "privacy.unit",
        )
    found = ("person" if persons else "row") if unit == "auto" else unit
    if found != "person" and config.privacy.rows_per_person != 1:
        raise HushError(
            f'privacy.rows_per_person: found {config.privacy.rows_per_person} with unit "{found}"; accepted there: 1',
            "privacy.rows_per_person",
        )
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"unit": found})})


_PLACES = ("address", "workers")
_PRETRAINED = ("weights", "encoder", "features", "fingerprint", "adapters", "rank", "alpha", "targets", "head")


def config_hash(config: Config) -> str:
    """Return the SHA-256 of the config in canonical JSON; noise that is left open counts as in a plain simulation.

    Which cluster computes, and on how many workers, changes nothing, so that a run can be resumed on another. A config
    without evaluation, secure aggregation or pretrained weights has the hash that it had before there was any.
    """
    content = with_noise(config, lasting=False).model_dump()
    content["engine"] = {key: value for key, value in content["engine"].items() if key not in _PLACES}
    if config.evaluation == EvaluationConfig():
        del content["evaluation"]
    if not config.secure_aggregation:
        del content["secure_aggregation"]
    plain = ModelConfig()
    for key in _PRETRAINED:
        if getattr(config.model, key) == getattr(plain, key):
            del content["model"][key]
    if config.engine.transport == "float32":
        del content["engine"]["transport"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def in_one_process(config: Config) -> Config:
    """Return the config with its run in one process: as on one machine, and as in a task on a worker."""
    plain = config.engine.model_copy(update={"name": "process", "address": None, "workers": "auto"})
    return config.model_copy(update={"engine": plain})


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `key=value` overrides, and check every key."""
    raw = read(path)
    with locating(path, overrides):
        return parse(overridden(raw, overrides))


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file as a nested mapping; nothing is checked."""
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise HushError(f"{path}: not valid TOML: {error}") from None


def text_value(text: str) -> Any:
    """The value of `key=text` on a command line: as TOML has it, or else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


RENAMED = {  # former keys, or keys with former values
    "recipe.weigh": "recipe.weight",
    "privacy.noise = replayable": "privacy.noise = seeded",
}
# What other libraries call a key, or a value of one.
SYNONYMS = {
    "learning_rate": "local.lr",
    "epsilon": "privacy.budgets",
    "epsilons": "privacy.budgets",
    "budget": "privacy.budgets",
    "target_epsilon": "privacy.budgets",
    "target_delta": "privacy.delta",
    "max_grad_norm": "privacy.clip",
    "clip_norm": "privacy.clip",
    "clipping_norm": "privacy.clip",
    "noise_multiplier": "privacy.budgets (the noise follows from the budget)",
    "batch": "local.batch_size",
    "local_epochs": "local.epochs",
    "num_epochs": "local.epochs",
    "local_steps": "local.steps",
    "num_rounds": "rounds",
    "num_clients": "data.clients",
    "dataset": "data.name",
    "fraction_fit": "participation",
    "optimizer": "recipe.step",
    "strategy": "recipe.name",
    "algorithm": "recipe.name",
    "r": "model.rank",
    "lora_r": "model.rank",
    "lora_rank": "model.rank",
    "lora_alpha": "model.alpha",
    "target_modules": "model.targets",
    "modules_to_save": "model.head",
    "peft": "model.adapters",
    "lora": "model.adapters",
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


def located(error: HushError, path: Path | None, overrides: Sequence[str] = (), option: str = "--set") -> HushError:
    """Return the same error with the file and line (or the command-line option) of its key."""
    if error.key is None:
        return error
    for override in overrides:
        if _overlap(override.partition("=")[0].strip(), error.key):
            return HushError(f"{option} {error}", error.key)
    if path is None:
        return error
    line = _line_of(_read(path), error.key)
    return HushError(f"{path}:{line}: {error}" if line else f"{path}: {error}", error.key)


@contextmanager
def locating(path: Path | None, overrides: Sequence[str] = (), elsewhere: Iterable[str] = ()) -> Iterator[None]:
    """Errors about a key say where in the file, or on the command line, it stands; not where its key is elsewhere."""
    try:
        yield
    except HushError as error:
        if type(error) is not HushError or any(_overlap(key, error.key or "") for key in elsewhere):
            raise
        raise located(error, path, overrides) from None


def _overlap(one: str, other: str) -> bool:
    """Whether one of two dotted keys is the other or leads to it."""
    a, b = one.split("."), other.split(".")
    return a[: len(b)] == b or b[: len(a)] == a


def overridden(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a nested mapping with `key=value` overrides applied."""
    changed = copy.deepcopy(dict(raw))
    for override in overrides:
        _apply(changed, override)
    return changed


def assigned(raw: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a nested mapping with the value of a dotted key replaced."""
    first, dot, rest = key.partition(".")
    if not dot:
        return {**raw, first: value}
    table = raw.get(first, {})
    if not isinstance(table, Mapping):
        raise HushError(f"{key}: {first} is not a table, so it has no key {rest}", key)
    return {**raw, first: assigned(table, rest, value)}


def _read(path: Path) -> str:
    try:
        # Editors on Windows begin a file with a byte-order mark.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HushError(f"{path}: no such file; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HushError(f"{path}: cannot be read: {error}") from None


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise HushError(f"--set {override}: expected key=value, such as local.lr=0.05")
    *tables, last = key.strip().split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise HushError(f"--set {override}: {table} is not a table, so it has no key {last}")
    raw[last] = text_value(value)


def _explain(error: ValidationError) -> tuple[str, str]:
    """Return the first validation error as (dotted key, message)."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    key, found = ".".join(parts), first["input"]
    if first["type"] == "extra_forbidden":
        known = _keys_of(parts[:-1])
        says = unknown(key, "key", parts[-1], known, meant=_meant(parts[-1], known))
        return key, str(says).removeprefix(f"{key}: ")
    words = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return key, f"{words[0].lower()}{words[1:]}, found {json.dumps(found, default=str)}"


def _keys_of(parts: Sequence[str]) -> list[str]:
    model: Any = Config
    for part in parts:
        model = model.model_fields[part].annotation
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _meant(name: str, known: Sequence[str]) -> str:
    """The key that other libraries call so, or that stands in another table; none if one here is nearly the same."""
    if difflib.get_close_matches(name, known, 1, cutoff=0.8):
        return ""
    tables = {table: field.annotation for table, field in Config.model_fields.items()}
    elsewhere = [
        f"{table}.{key}" for table, model in tables.items() if isinstance(model, type) and issubclass(model, BaseModel)
        for key in _keys_of([table]) if key == name
    ]  # fmt: skip
    return SYNONYMS.get(name) or (name if name in Config.model_fields else next(iter(elsewhere), ""))


def silent_settings(config: Config) -> tuple[str, ...]:
    """Settings of a config that have no effect beside others, in words."""
    local = config.local
    if local.steps is None or local.epochs == 1:
        return ()
    return (f"local.epochs = {local.epochs} has no effect, because local.steps = {local.steps} is given",)


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
