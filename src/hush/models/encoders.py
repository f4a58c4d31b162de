"""Frozen encoders: public modules whose outputs are the features of rows, in front of a model that is trained.

An encoder is built from files of this machine, put into evaluation mode, and proved to process rows independently
(`hush.models.isolation`) before the first row goes through it. It is never trained and never sent.

Assumptions:
    - Its weights are public: nothing of the private rows may have gone into them. Nothing can check that.
    - A TorchScript file holds code, which PyTorch's interpreter runs with the rights of this process: whoever names
      such a file trusts it.

Edge cases:
    - TorchScript cannot be traced. Its graph is frozen and must neither hold state nor write to its constants, nor use
      memory beyond its tensors' own values; then it computes one row at a time, from a copy of that row.
    - Where features are found on disk (`hush.engines.feature_cache`), nothing is proved: the key of what is found
      holds the encoder's weights and code, so that it was proved when they were computed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.models import pretrained, scattering
from hush.models.fingerprint import digest, module_fingerprint, tensor_parts, weights_fingerprint
from hush.models.inputs import UnpackedInputs, example_rows, shapes_of
from hush.models.outputs import ACCEPTED, describe_output, logits_of
from hush.models.user_module import frozen
from hush.models.validation import check_initialised, copied, seeded
from hush.types import HushError, InputSpec
from hush.user_code import user_code

if TYPE_CHECKING:
    from hush.config import ModelConfig

Shape = tuple[int, ...]
Scale = Literal["group-norm", "unit-norm", "as-given"]
KEY, SCATTERING, TIMM = "model.encoder", "scattering", "timm:"
SCRIPTS = (".pt", ".ts")
_ACCEPTED = "timm:NAME, hf:DIRECTORY, a TorchScript file (.pt), module:factory for one of your own, or scattering"
_NUMBERS = 1 << 19  # of rows that go through an encoder at a time on a CPU: activations stay in the cache
_NUMBERS_CUDA = 1 << 24
# Nodes of a frozen graph that read or change what outlives a call, or call what was not inlined.
_STATE = ("prim::GetAttr", "prim::SetAttr", "prim::CallMethod", "prim::CallFunction")
# Operations that read a tensor's memory beyond its own values, or memory that nothing has written.
_MEMORY = ("as_strided", "set_", "resize", "empty", "new_empty")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Fixed features in front of a model.

    Attributes:
        name: As the config has it.
        features: The features of a batch, one flat row each; on the device of the batch.
        shape: Of one row of features.
        key: What tells these features from others, for a cache of them.
        fingerprint: Of the weights, the same on every machine: what members of a federation compare.
    """

    name: str
    features: Callable[[Tensor], Tensor]
    shape: Shape
    key: str
    fingerprint: str


def encoder_of(config: ModelConfig, shape: Shape, inputs: InputSpec | None = None) -> Encoder | None:
    """Return the encoder that a config names, for rows of that shape, or none; nothing is downloaded or unpickled.

    Raises:
        HushError: A file, a package or the encoder itself is not as it must be.
    """
    if config.name == "scattering-linear" or config.encoder == SCATTERING:
        return _scattering(config, shape)
    if config.encoder is None:
        return None
    module, content = _module(config, shape, inputs)
    name = config.encoder
    check_initialised(module, KEY)
    whole = module if isinstance(module, _Rows) else _Features(module, inputs, name)
    whole = whole.eval().requires_grad_(False).to(torch.float32)
    probes = torch.zeros(2, *shape) if inputs is None else example_rows(inputs, 2)
    found = _probed(whole, probes, name)
    parts = content if content is not None else module_fingerprint(whole)
    features = FrozenFeatures(whole, shape, None if inputs is None else probes, name, config.features)
    made = Encoder(
        name=name,
        features=features,
        shape=tuple(found.shape[1:]),
        key=digest(["encoder", _own_code(), sorted(parts.items()), config.features, *tensor_parts(found)]),
        fingerprint=parts["weights"] if content is not None else weights_fingerprint(whole),
    )
    if config.fingerprint is not None and config.fingerprint != made.fingerprint:
        raise HushError(
            f"model.fingerprint: the weights of {name} here have {made.fingerprint[:16]}..., and "
            f"{config.fingerprint[:16]}... is needed; accepted: the encoder with these weights",
            "model.fingerprint",
        )
    return made


def is_factory(name: str) -> bool:
    """Return whether an encoder is named as `module:factory`, and not by files of one machine."""
    return ":" in name and not name.startswith((pretrained.PREFIX, TIMM)) and not name.endswith(SCRIPTS)


def is_code(name: str) -> bool:
    """Return whether using an encoder runs code that it names: a factory, or a TorchScript file."""
    return is_factory(name) or name.endswith(SCRIPTS)


def check(config: ModelConfig) -> None:
    """Raise a `HushError` for settings that an encoder does not go together with, or that need one."""
    if config.encoder is None:
        for key in ("features", "fingerprint"):
            if key in config.model_fields_set and getattr(config, key) != type(config).model_fields[key].default:
                raise HushError(f"model.{key}: given without an encoder; accepted: with model.encoder", f"model.{key}")
        if config.head == "linear":
            raise HushError('model.head: "linear" needs an encoder; accepted: names of layers', "model.head")
        return
    if config.head not in (None, "linear"):
        raise HushError(
            f'model.head: found {config.head!r} with an encoder; accepted: "linear", or model.name for another model '
            "behind its features",
            "model.head",
        )
    if config.adapters != "none":
        raise HushError(
            f'model.adapters: "{config.adapters}" trains a part of the model, and an encoder is frozen; accepted: one '
            "of the two",
            "model.adapters",
        )
    if config.name not in ("logreg", "mlp") or (config.head == "linear" and config.name != "logreg"):
        raise HushError(
            f"model.name: {config.name} with an encoder; accepted: logreg, which is a linear head, or mlp", "model.name"
        )


class FrozenFeatures:
    """The features of a batch by an encoder, proved at the first call to process rows independently.

    Args:
        module: In evaluation mode, with nothing to train.
        shape: Of a stored row.
        examples: Some stored rows that are public, where random numbers are none that the module takes.
        name: For messages.
        scale: How each row of features is scaled: see `scaled`.
    """

    def __init__(self, module: nn.Module, shape: Shape, examples: Tensor | None, name: str, scale: Scale) -> None:
        self._given, self._shape, self._examples, self._name, self._scale = module, shape, examples, name, scale
        self._proved: nn.Module | None = None
        self._lock = threading.Lock()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return one flat row of features for each row, on its device."""
        module = self._module()
        if next((value.device for value in (*module.parameters(), *module.buffers())), x.device) != x.device:
            module.to(x.device)
        number = (_NUMBERS_CUDA if x.is_cuda else _NUMBERS) // max(1, x[:1].numel())
        parts = [module(part).flatten(1).float() for part in x.split(max(1, min(number, 4096)))]
        return scaled(torch.cat(parts) if len(parts) != 1 else parts[0], self._scale)

    def _module(self) -> nn.Module:
        with self._lock:
            if self._proved is None:
                self._proved = _isolated(self._given, self._shape, self._examples, self._name)
            return self._proved

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenFeatures:
        """Return the same: it holds nothing that changes."""
        return self


def scaled(features: Tensor, scale: Scale) -> Tensor:
    """Return rows of features, each scaled by itself, so that one clipping norm suits all.

    "group-norm" subtracts a row's mean and divides by its deviation, as scattering does within groups of channels;
    "unit-norm" gives a row the norm of one of unit variance, sqrt(width); "as-given" changes nothing.
    """
    if scale == "group-norm":
        return functional.layer_norm(features, features.shape[1:])
    if scale == "unit-norm":
        return functional.normalize(features) * math.sqrt(features.shape[1])
    return features


def _scattering(config: ModelConfig, shape: Shape) -> Encoder:
    if len(shape) != 3:
        raise HushError(f"model.name: scattering-linear needs images, found inputs of shape {shape}", "model.name")
    key = scattering.fingerprint()
    return Encoder(
        name=SCATTERING,
        features=scattering.features,
        shape=tuple(scattering.features(torch.zeros(1, *shape)).shape[1:]),
        key=key,
        fingerprint="" if config.encoder is None else key,
    )


class _Features(nn.Module):
    """An encoder for stored rows: its features as one flat row each."""

    def __init__(self, module: nn.Module, inputs: InputSpec | None, name: str) -> None:
        super().__init__()
        self.module = module if inputs is None else UnpackedInputs(module, inputs, name)

    def forward(self, x: Tensor) -> Any:
        """Return the features; what the module returns, if that is not clear."""
        output = self.module(x)
        found = logits_of(output)
        return output if found is None else found.flatten(1)


class PooledStates(nn.Module):
    """A base model of Hugging Face: the mean of its last hidden states over all positions that are not masked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor, **inputs: Tensor) -> Tensor:
        """Return one row of features for each example."""
        states: Tensor = self.model(*args, **inputs).last_hidden_state
        if states.ndim == 4:
            return states.mean((2, 3))
        mask = inputs.get("attention_mask")
        if mask is None:
            return states.mean(1)
        real = mask.to(states.dtype)[..., None]
        return (states * real).sum(1) / real.sum(1).clamp_min(1.0)


class _Rows(nn.Module):
    """A frozen TorchScript graph, which computes one row at a time."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.__dict__["_script"] = script

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of each row, computed without the others."""
        script = self.__dict__["_script"]
        if not len(x):
            return torch.zeros(0, 1)
        found = [_tensor(script(row[None].clone())).reshape(1, -1).float() for row in x.cpu()]
        return torch.cat(found).to(x.device)


def _module(config: ModelConfig, shape: Shape, inputs: InputSpec | None) -> tuple[nn.Module, Mapping[str, str] | None]:
    """Return an encoder as it was given, and what identifies it, where that is not its structure, weights and code."""
    name = config.encoder or ""
    if name.startswith(pretrained.PREFIX):
        return PooledStates(pretrained.base_model(name.removeprefix(pretrained.PREFIX), config.weights)), None
    if name.startswith(TIMM):
        return _timm(name.removeprefix(TIMM), config.weights), None
    if name.endswith(SCRIPTS):
        return _script(Path(name), config.weights)
    if ":" not in name:
        raise HushError(f"{KEY}: found {name!r:.80}; accepted: {_ACCEPTED}", KEY)
    with seeded(0):
        module = _made(name, shapes_of(shape, inputs))
    if config.weights is not None:
        module = copied(module, name)
        pretrained.load_weights(module, config.weights)
    return module, None


def _made(name: str, shape: object) -> nn.Module:
    """Return what `module:factory` makes: a function of nothing, or of the shape of a row."""
    wanted = "expected module:factory, where factory() or factory(shape) returns an nn.Module"
    try:
        factory = user_code(name)
        needed = [
            each for each in inspect.signature(factory).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        made = factory(shape) if needed else factory()
    except Exception as error:  # the user's own code
        raise HushError(f"{KEY}: {name!r:.80} cannot be used: {error!r:.200}; {wanted}", KEY) from None
    if not isinstance(made, nn.Module):
        raise HushError(f"{KEY}: {name!r:.80} returned {type(made).__name__}; {wanted}", KEY)
    return made


def _timm(name: str, weights: str | None) -> nn.Module:
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError:
        raise HushError(
            f"{KEY}: timm:{name} needs the package timm; accepted: pip install timm (it brings torchvision, in the "
            "build that fits your PyTorch), or module:factory",
            KEY,
        ) from None
    if weights is None:
        raise HushError(
            f"model.weights: missing; timm:{name} needs a file of safetensors on this machine: nothing is downloaded",
            "model.weights",
        )
    try:
        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    except Exception as error:  # the library's own, of many kinds
        raise HushError(f"{KEY}: timm:{name} cannot be made: {error!s:.200}", KEY) from None
    heads = getattr(module, "default_cfg", {}).get("classifier") or ()
    pretrained.load_weights(module, weights, [heads] if isinstance(heads, str) else list(heads))
    return module


def _script(path: Path, weights: str | None) -> tuple[nn.Module, Mapping[str, str]]:
    """Return a TorchScript module. Its code is run by PyTorch's interpreter: the user named this file."""
    if weights is not None:
        raise HushError("model.weights: a TorchScript file has its own; accepted: left out", "model.weights")
    if not path.is_file():
        raise HushError(f"{KEY}: {path} is not there; accepted: a file that torch.jit.save wrote", KEY)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script: Any = torch.jit.load(path, map_location="cpu")
            _check_memory(script.inlined_graph, str(path))
            module = _stateless(torch.jit.freeze(script.eval()), str(path))
    except RuntimeError:
        raise HushError(
            f"{KEY}: {path} is no TorchScript file; accepted: what torch.jit.save wrote (pickles are not read)", KEY
        ) from None
    return module, {"weights": content}


def _isolated(module: nn.Module, shape: Shape, examples: Tensor | None, name: str) -> nn.Module:
    """Return a module in which each row of the output is computed from its own row alone, or raise a `HushError`."""
    if isinstance(module, _Rows):
        return module
    try:
        return frozen(module, shape, name, examples)
    except HushError as error:
        raise HushError(f"{KEY}: {error}", KEY) from None


def _stateless(script: Any, name: str) -> nn.Module:
    """Return a frozen graph that holds no state, to compute one row at a time, or raise a `HushError`."""
    aliases = script.graph.alias_db()
    for node in _nodes(script.graph):
        kind = node.kind()
        written = kind == "prim::Constant" and any(map(aliases.has_writers, node.outputs()))
        if kind in _STATE or written:
            raise HushError(
                f"{KEY}: {name} keeps state between calls ({'writes to a constant' if written else kind}), so that a "
                "row's features could depend on other rows; accepted: a module whose output depends on its input alone",
                KEY,
            )
        if node.isNondeterministic():
            raise HushError(f"{KEY}: {name} draws random numbers ({kind}); accepted: evaluation mode", KEY)
        if not kind.startswith(("aten::", "prim::")):
            raise HushError(f"{KEY}: {name} runs {kind}; accepted: operations of PyTorch's own", KEY)
    return _Rows(script)


def _check_memory(graph: Any, name: str) -> None:
    """Refuse what reads memory that other rows may have written; before constants are folded, which would hide it."""
    for node in _nodes(graph):
        if node.kind().removeprefix("aten::").startswith(_MEMORY):
            raise HushError(
                f"{KEY}: {name} reads memory beyond its tensors' own values ({node.kind()}), so that a row's features "
                "could depend on other rows; accepted: operations on the values of tensors",
                KEY,
            )


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)


@torch.no_grad()
def _probed(module: nn.Module, probes: Tensor, name: str) -> Tensor:
    """Return the features of rows of zeros, computed on a copy: what a first call leaves behind is not kept."""
    try:
        out = (module if isinstance(module, _Rows) else copied(module, name))(probes)
    except HushError:
        raise
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HushError(f"{KEY}: {name} fails on rows of shape {tuple(probes.shape)}: {line:.200}", KEY) from None
    found = out if isinstance(out, Tensor) else logits_of(out)
    if found is None:
        raise HushError(f"{KEY}: {name} returns {describe_output(out)}; accepted: {ACCEPTED}", KEY)
    found = found.flatten(1).float() if found.ndim > 1 else found
    if found.ndim != 2 or len(found) != len(probes) or not found.shape[1] or not bool(found.isfinite().all()):
        raise HushError(
            f"{KEY}: {name} returns shape {tuple(found.shape)} for {len(probes)} rows, or numbers that are not finite; "
            "accepted: finite features for each row",
            KEY,
        )
    return found


def _tensor(output: object) -> Tensor:
    found = output if isinstance(output, Tensor) else logits_of(output)
    if found is None:
        raise HushError(f"{KEY}: returns {describe_output(output)}; accepted: {ACCEPTED}", KEY)
    return found


def _own_code() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
