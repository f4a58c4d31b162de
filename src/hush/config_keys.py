"""Every key of a config: its type, its default, and what it means in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hush.config import LOSSES, Config


@dataclass(frozen=True)
class ConfigKey:
    """A key: `name` is dotted, `accepts` and `default` are as one would write them in TOML."""

    name: str
    accepts: str
    default: str
    meaning: str


# Each sentence says what the value decides, in words that need no other page.
MEANINGS = {
    "mode": "`sound`: the stated guarantee holds. `faithful`: the setup of the recipe's paper, with its gaps.",
    "seed": "Seed of the partition, the initial model, and in simulations of batches and seeded noise.",
    "rounds": "Number of rounds of training.",
    "participation": "Fraction of the clients that take part in each round.",
    "quorum": "Least number of clients with budget left; with fewer, training ends.",
    "max_weight": "Upper limit on one client's share of a round. Not set: no limit in simulations, 2/n in federations.",
    "secure_aggregation": "Whether the server sees sums of updates alone. It lowers no epsilon; weights must be "
    "public, or noise estimated from sums over members of the same budget.",
    "data.name": "A built-in dataset (`hush list`), or `module:function` for one of your own.",
    "data.files": "Files of your own in place of a built-in dataset: one per client, or one with a client column.",
    "data.label": "The label column of these files.",
    "data.client": "The client column, if all rows are in one file.",
    "data.person": "The column with the key of each row's person; it is no feature and never leaves the client.",
    "data.schema": "What the columns may hold (kinds, bounds, categories), by which rows become inputs.",
    "data.clients": "Number of clients among which a dataset is divided.",
    "data.partition": "How the rows are divided: `iid`, `dirichlet`, `shards`, `similarity`, `rotation`, `label-flip`, "
    "`quality`, or `auto` for what the dataset suggests.",
    "data.sizes": "Number of rows of each client.",
    "data.test_fraction": "Fraction of each client's rows that is held out for testing.",
    "data.part": "Which part of a public dataset is used.",
    "data.rows": "`unit-norm` scales each row to norm 1.",
    "data.alpha": "Dataset `synthetic`: how much the clients' models differ.",
    "data.beta": "Dataset `synthetic`: how much the clients' inputs differ.",
    "data.samples": "Dataset `synthetic`: number of rows of each client.",
    "model.name": "A built-in model (`hush list`), or `module:factory` for one of your own.",
    "model.hidden": "Units of the hidden layer of `mlp`.",
    "model.weights": "Pretrained weights on this machine: a file of safetensors, or a directory of Hugging Face.",
    "model.encoder": "A frozen, public encoder whose features the model is trained on: `timm:NAME`, `hf:DIRECTORY`, "
    "a TorchScript file (.pt), `module:factory`, or `scattering`.",
    "model.features": "How each row of an encoder's features is scaled: to mean 0 and variance 1, to the norm of such "
    "a row, or not.",
    "model.fingerprint": "SHA-256 of the encoder's weights that are needed; federations set it, so that all members "
    "have the same.",
    "model.adapters": "`lora` freezes a model of your own and trains low-rank updates of its layers and its head; "
    "`ffa-lora` trains one factor of each update, half as many parameters.",
    "model.rank": "Rank of each update.",
    "model.alpha": "Each update is multiplied by alpha / rank.",
    "model.targets": "Layers that are adapted, by name or end of path. Not set: all linear layers and attention "
    "outside the head.",
    "model.head": "Layers that are trained as a whole beside adapters. Not set: the last linear layer, or what is not "
    "in the base model of Hugging Face. `linear` behind an encoder.",
    "objective.task": "What is predicted; `auto` decides by the labels.",
    "objective.loss": f"Loss of one example: one of {', '.join(LOSSES)}, or a function of your own.",
    "objective.metrics": "Metrics in addition to those of the task.",
    "objective.target_bounds": "Public bounds of the targets of a regression, to which they are clipped.",
    "privacy.budgets": "Epsilon of each client for this run.",
    "privacy.declared": "Epsilon that each client declares to the server, if not the one it keeps; in simulations.",
    "privacy.lifetime": "Epsilon of each client for all runs on the same data, kept in its ledger.",
    "privacy.delta": "Delta of each client.",
    "privacy.clip": "Clipping norm: the largest norm of one row's gradient in a step.",
    "privacy.loss_clip": "Upper bound on one row's loss where clients choose a model by noisy loss.",
    "privacy.relation": "Neighbouring relation: one row is added or removed, or one row is replaced.",
    "privacy.accountant": "How epsilon is computed: privacy loss distributions, Renyi, or Renyi at orders up to 64 "
    "(Robust-HDP's).",
    "privacy.noise": "`secure` noise cannot be drawn again; `seeded` noise is reproducible, for experiments. `auto`: "
    "secure with ledger files and in federations, otherwise seeded.",
    "privacy.sampler": "How a batch is drawn: each row independently, or a fixed number of rows.",
    "privacy.discrete": "Integer arithmetic and exact discrete Gaussian noise, for small models.",
    "privacy.unit": "What is protected: one row, one person (default with `data.person`) or one client, with all rows.",
    "privacy.row_budgets": "The column with the epsilon of each row, where rows of a client have budgets of their own.",
    "privacy.rows_per_person": "Rows of a sampled person that a step uses, chosen at random.",
    "privacy.retries": "Number of repeated rounds, after crashes of clients, that the budget must also cover.",
    "local.batch_size": "Expected batch size: one for all clients, or choices that are drawn for each client.",
    "local.epochs": "Passes over a client's rows in a round.",
    "local.steps": "Steps of a client in a round, in place of epochs.",
    "local.lr": "Learning rate; `auto` computes it from the planned noise and the number of rounds.",
    "local.weight_decay": "Weight decay of the local steps.",
    "evaluation.share": "Part of each client's epsilon that all evaluations on held-out rows cost, alone; 0: nothing "
    "is evaluated or released.",
    "evaluation.every": "Evaluate in every so many rounds, and in the last.",
    "evaluation.rounds": "The rounds that evaluate, in place of `evaluation.every`.",
    "evaluation.bins": "Bins of predicted probabilities, for the area under the curve and calibration.",
    "evaluation.metric": "What evaluations are compared by.",
    "evaluation.patience": "End the run after so many evaluations in a row without a better one; 0: never.",
    "evaluation.choose": "The model to release: that of the last round, or the one with the best evaluation.",
    "recipe": "The recipe: its `name` (`hush list`), and options for its slots `protect`, `local`, `assign`, "
    "`project`, `weight` and `step`.",
    "engine.name": "Where clients train: in this process, or on the workers of a Ray cluster (`hush[cluster]`).",
    "engine.address": "Address of the Ray cluster, or `auto` on one of its nodes; by default Ray is started here.",
    "engine.workers": "Most workers on Ray; `auto` takes one for each CPU, or for each GPU if training uses them.",
    "engine.block": "Clients that train together; `auto`: as many as memory allows, and on Ray at most a 64th.",
    "engine.device": "Where training runs; `auto` takes a GPU if there is one.",
    "engine.physical_batch": "Rows that are computed at once; the batch of the algorithm stays the same.",
    "engine.transport": "How models and updates are sent: `float16` halves what is sent and rounds to 11 bits, "
    "which costs no privacy; masked updates stay whole.",
    "engine.precision": "Precision of matrix products on a GPU.",
    "engine.strict": "Refuse a model that would train on a slow path, instead of warning of it.",
}


def config_keys() -> tuple[ConfigKey, ...]:
    """Return every key in the order of the config; `meaning` is empty for one that has no sentence here."""
    return tuple(_keys(Config, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[ConfigKey]:
    for attribute, field in model.model_fields.items():
        name = prefix + (field.alias or attribute)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{name}.")
        else:
            yield ConfigKey(name, _accepts(field), _default(field), MEANINGS.get(name, ""))


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "not set"
    if isinstance(value, dict):
        return "{ " + ", ".join(f'{key} = "{item}"' for key, item in value.items()) + " }"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _accepts(field: FieldInfo) -> str:
    """What a key accepts: the words of its validator, or those of its type and limits."""
    return _words(field.annotation, tuple(field.metadata))


def _words(kind: Any, metadata: tuple[Any, ...]) -> str:
    for constraint in metadata:
        words = (constraint.func.__doc__ or "").strip().rstrip(".") if isinstance(constraint, BeforeValidator) else ""
        if words:
            return words[0].lower() + words[1:]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(inside[0], tuple(inside[1:]))
    if origin is Literal:
        return ", ".join(f'"{value}"' for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(_words(each, metadata) for each in inside if each is not type(None))
    if origin is dict:
        return "a table"
    if origin is list:
        return f"a list, each {_words(inside[0], ())}"
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}.get(kind, "a value")
    return " ".join([plain, *_limits(metadata)]) if kind in (int, float) else plain


def _limits(metadata: tuple[Any, ...]) -> list[str]:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = [
        f"{word} {getattr(constraint, name):g}"
        for constraint in _flat(metadata)
        for name, word in words.items()
        if hasattr(constraint, name)
    ]
    return [" and ".join(found)] if found else []


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for constraint in metadata:
        inner = getattr(constraint, "metadata", None)
        yield from inner if isinstance(inner, list) else [constraint]
