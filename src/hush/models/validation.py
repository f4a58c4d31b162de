"""Validation of a module before training: what was given, what it returns, and whether it fits in memory."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from hush.models.outputs import ACCEPTED, describe_output, logits_of
from hush.types import HushError

Shape = tuple[int, ...]
# Bytes for each parameter of a model, whatever trains it: the module, its starting point and the draw of it (float64),
# the server's model and the released one.
_MODEL_BYTES = 24
_UPDATE_BYTES = 4
# PyTorch calls these for every module of the process: what they do is not in a module's graph and sees whole batches.
# Hooks on registration see no batch, and PyTorch's own tracer registers some.
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_CGROUP = Path("/sys/fs/cgroup/memory.max")
KEY = "model.name"


def validate(module: object, shape: Shape, classes: int, name: str, key: str | None = KEY) -> nn.Module:
    """The module, once it is known to map rows of that shape to at least `classes` logits each.

    Raises a `HushError` for anything else: a class, uninitialised or non-finite parameters, or another kind of output.
    """
    if isinstance(module, type):
        raise HushError(f"model: found the class {module.__name__}; accepted: an instance, {module.__name__}(...)", key)
    if not isinstance(module, nn.Module):
        raise HushError(f"model: found {type(module).__name__}; accepted: an instance of torch.nn.Module", key)
    check_initialised(module, key)
    _check_parameters(module, name, key)
    _check_output(_output(module, shape, name, key), classes, name, key)
    return module


def check_initialised(module: nn.Module, key: str | None = KEY) -> None:
    """Raise a `HushError` if the `__init__` of `nn.Module` was never called."""
    if "_parameters" not in vars(module):
        raise HushError(
            f"model: {type(module).__name__} is not initialised; accepted: a class whose __init__ calls "
            "super().__init__() first",
            key,
        )


def copied(module: nn.Module, name: str) -> nn.Module:
    """A copy of a module on the CPU that shares nothing with it; a `HushError` where it cannot be copied.

    A module with a `__deepcopy__` of its own may return itself, or parts of itself: what its user changes later, such
    as a hook, would then change the model, and training would freeze the user's weights.
    """
    # Deepcopy refuses tensors that autograd computed, such as the weights that torch.nn.utils.weight_norm keeps.
    computed = (v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf)
    try:
        twin = copy.deepcopy(module, {id(value): value.detach().clone() for value in computed})
        shared = not _identities(twin).isdisjoint(_identities(module))
    except Exception as error:
        raise HushError(
            f"model {name}: cannot be copied ({_first_line(error)}); keep tensors as parameters, and nothing that "
            "copy.deepcopy refuses, in its attributes",
            KEY,
        ) from None
    if shared:
        raise HushError(
            f"model {name}: a copy shares layers or weights with it; accepted: modules that copy.deepcopy copies "
            "completely, without a __deepcopy__ that returns itself",
            KEY,
        )
    return twin.to("cpu")


def _identities(module: nn.Module) -> set[int]:
    """All modules, parameters and buffers of a module, by identity."""
    return {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}


def check_global_hooks(name: str) -> None:
    """Raise a `HushError` if hooks for all modules are registered with PyTorch: they could mix the rows of a batch."""
    found = [hooks for hooks in _GLOBAL_HOOKS if vars(torch_module)[hooks]]
    if found:
        kinds = ", ".join(hooks.removeprefix("_global_").replace("_", " ") for hooks in found)
        raise HushError(
            f"model {name}: PyTorch has {kinds} for all modules of this process, which see whole batches; remove what "
            "torch.nn.modules.module.register_module_... registered",
            KEY,
        )


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks see what goes into the module or comes out of it."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(own)


def check_memory(parameters: int, clients: int = 0, key: str = "model") -> None:
    """Raise a `HushError` where a model, or the updates of that many clients, cannot fit in this machine's memory."""
    model, updates = _MODEL_BYTES * parameters, _UPDATE_BYTES * parameters * clients
    room = memory()
    if model + updates > room:
        of = f", {gibibytes(updates)} for the updates of {clients:,} clients" if updates else ""
        raise HushError(
            f"{key}: {parameters:,} parameters take at least {gibibytes(model)}{of}; this machine has "
            f"{gibibytes(room)}; accepted: a smaller model{' or fewer clients' if updates else ''}",
            key,
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws from PyTorch's global generator follow the seed inside, and are undone outside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def memory() -> int:
    """Bytes of memory that this process may use at most."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CGROUP.read_text()))
    except (OSError, ValueError):
        # No control group, or one without a limit.
        return physical


def gibibytes(size: int) -> str:
    """A size in words."""
    return f"{size / 2**30:,.1f} GiB"


def _check_parameters(module: nn.Module, name: str, key: str | None) -> None:
    for path, value in (*module.named_parameters(), *module.named_buffers()):
        where = f"model {name}: {path}"
        if is_lazy(value):
            raise HushError(f"{where} is lazy and has no shape yet; call the module once on a batch first", key)
        if value.is_meta:
            raise HushError(f"{where} is on the meta device and has no values; use to_empty and initialise it", key)
        if value.is_complex():
            raise HushError(f"{where} is {value.dtype}; accepted: real numbers", key)
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise HushError(f"{where} contains NaN or infinity; accepted: finite weights", key)


def _output(module: nn.Module, shape: Shape, name: str, key: str | None) -> Tensor:
    """The logits that a copy returns for two rows of zeros, which are valid as numbers and as token indices."""
    twin = copied(module, name)
    dtypes = {value.dtype for value in twin.parameters() if value.is_floating_point()}
    rows = torch.zeros(2, *shape, dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32)
    try:
        with torch.no_grad(), seeded(0):
            output = twin(rows)
    except Exception as error:
        text = f"model {name}: fails on inputs of shape {(2, *shape)}: {_first_line(error)}"
        raise HushError(text, key) from None
    found = logits_of(output)
    if found is None:
        raise HushError(f"model {name}: returns {describe_output(output)}; accepted: {ACCEPTED}", key)
    return found


def _check_output(found: Tensor, classes: int, name: str, key: str | None) -> None:
    wanted = f"a tensor of shape (rows, {classes}), a logit for each class"
    if found.layout != torch.strided:
        raise HushError(f"model {name}: returns a tensor of layout {found.layout}; accepted: {wanted}", key)
    if found.ndim != 2 or len(found) != 2:
        raise HushError(f"model {name}: returns shape {tuple(found.shape)} for 2 rows; accepted: {wanted}", key)
    if not found.is_floating_point():
        raise HushError(f"model {name}: returns {found.dtype}; accepted: logits, which are real numbers", key)
    if found.shape[1] < classes:
        raise HushError(
            f"model {name}: returns {found.shape[1]} logits per row, the labels have {classes} classes (0 to "
            f"{classes - 1}); accepted: at least {classes}",
            key,
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
