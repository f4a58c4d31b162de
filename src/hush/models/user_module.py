"""A user's own module: taken as it is, weights included, or refused with the reason."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hush.models.adapters import Adapters, adapted
from hush.models.inputs import UnpackedInputs, example_rows
from hush.models.isolation.check import rows_differ
from hush.models.model import Model, wrap
from hush.models.outputs import ACCEPTED, describe_output, logits_of
from hush.models.validation import KEY, check_global_hooks, check_initialised, copied, seeded, validate
from hush.seeds import rng
from hush.types import HushError, InputSpec
from hush.user_code import user_code

Shape = tuple[int, ...]
_EXAMPLES = 8
_log = logging.getLogger("hush")


def from_module(module: nn.Module, shape: Shape, name: str = "custom", examples: Tensor | None = None) -> Model:
    """The module as a model in which every row depends on its own example alone. The module itself is not changed.

    Args:
        module: The module.
        shape: Of one example.
        name: What to call it in messages.
        examples: A few examples that are public; by default random numbers.

    Raises:
        HushError: The module has nothing to train, fails on such inputs, or cannot be isolated
            (`hush.models.isolation`).
    """
    from hush.models.isolation.isolate import NotIsolatedError, isolate

    check_global_hooks(name)
    own = copied(module, name)
    x = _examples(own, shape) if examples is None else examples[:_EXAMPLES]
    own, types = _in_type(own, x.dtype if x.is_floating_point() else torch.float32, name)
    _refuse_kinds(own, name)
    # On copies: what a first call leaves behind, such as weights set from its batch, must be seen and not kept.
    out, is_tensor = _output(copied(own, name), x.clone(), name)
    own = own if is_tensor else UnpackedInputs(own, None, name)
    if out.ndim != 2 or len(out) != len(x):
        raise HushError(
            f"model {name}: returns shape {tuple(out.shape)} for {len(x)} examples, expected one row of logits each",
            "model.name",
        )
    try:
        isolated = isolate(own, x)
    except NotIsolatedError as reason:
        raise HushError(
            f"model {name}: {reason}. No per-example clip can bound one example's influence unless its output depends "
            "on that example and the parameters alone",
            "model.name",
        ) from None
    model = wrap(name, isolated.evaluation, None, isolated=True)
    model = replace(model, source=own, probes=x, training=isolated.training, types=types)
    if isolated.training is not None:
        isolated.training.requires_grad_(False)
        _share(own, isolated.training)
    _share(own, isolated.evaluation)
    if isolated.training is not None:
        _check_rows(model.in_training)
    _check_rows(model)
    return model


def frozen(module: nn.Module, shape: Shape, name: str, examples: Tensor | None = None) -> nn.Module:
    """Return a module in evaluation mode in which every row depends on its own example alone, and nothing is trained.

    Arguments as for `from_module`. The module itself is not changed.

    Raises:
        HushError: The module fails on such inputs, returns anything but one row of numbers each, or cannot be isolated.
    """
    from hush.models.isolation.isolate import NotIsolatedError, isolate

    check_global_hooks(name)
    own = copied(module, name).eval().requires_grad_(False)
    x = _examples(own, shape) if examples is None else examples[:_EXAMPLES]
    _refuse_kinds(own, name, trained=False)
    out, is_tensor = _output(copied(own, name), x.clone(), name)
    if not is_tensor or out.ndim != 2 or len(out) != len(x):
        raise HushError(f"model {name}: returns shape {tuple(out.shape)} for {len(x)} examples, expected one row each")
    try:
        found = isolate(own, x, gradients=False).evaluation.eval().requires_grad_(False)
    except NotIsolatedError as reason:
        raise HushError(
            f"model {name}: {reason}. A row's features must depend on that row alone: what is noised for one row would "
            "else have moved with others"
        ) from None
    _share(own, found)
    if (why := rows_differ(lambda _, rows: _numbers(found, rows), torch.zeros(1), x)) is not None:
        raise HushError(f"model {name}: {why}")
    return found


@torch.no_grad()
def _numbers(module: nn.Module, rows: Tensor) -> Tensor:
    out: Tensor = module(rows)
    return out


def _share(own: nn.Module, other: nn.Module) -> None:
    """Let a copy of a module hold the very parameters and buffers of the module: large ones are in memory once."""
    tensors = {**dict(own.named_parameters(remove_duplicate=False)), **dict(own.named_buffers(remove_duplicate=False))}
    for path, part in other.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            for name in table:
                full = f"{path}.{name}" if path else name
                if full in tensors and table[name] is not None and torch.equal(table[name], tensors[full]):
                    table[name] = tensors[full]


def _check_rows(model: Model) -> None:
    assert model.probes is not None
    if (found := rows_differ(model.logits, model.start, model.probes)) is not None:
        raise HushError(f"model {model.name}: {found}", "model.name")


def from_user(
    module: object, shape: Shape, classes: int, name: str, inputs: InputSpec | None = None, key: str | None = KEY,
    adapters: Adapters | None = None,
) -> Model:  # fmt: skip
    """A user's module, checked (`validate`) and isolated (`from_module`); `inputs` is what rows unpack into, if any.

    Integers stay integers, and several inputs arrive as a tuple, as a dict or by keyword (`hush.models.inputs`). With
    `adapters`, they and the head are all that is trained.
    """
    if isinstance(module, nn.Module):
        check_initialised(module, key)
        module = module if adapters is None else adapted(copied(module, name), adapters)
        module = module if inputs is None else UnpackedInputs(module, inputs, name)
        module = _materialised(module, shape, name, key)
    checked = validate(module, shape, classes, name, key=key)
    model = from_module(checked, shape, name, None if inputs is None else example_rows(inputs, _EXAMPLES))
    return replace(model, adapters=adapters)


@torch.no_grad()
def _materialised(module: nn.Module, shape: Shape, name: str, key: str | None) -> nn.Module:
    """A module whose lazy layers have the sizes that rows of zeros gave them, initialised from a fixed seed.

    A module without lazy layers is returned as it is; of one with them, a copy.
    """
    if not any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        return module
    own = copied(module, name)
    try:
        with seeded(0):
            own(torch.zeros(2, *shape))
    except Exception as error:
        raise HushError(
            f"model {name}: its lazy layers get no sizes, since it fails on inputs of shape {(2, *shape)}: "
            f"{_line(error)}; accepted: layers with sizes",
            key,
        ) from None
    return own


def _in_type(module: nn.Module, dtype: torch.dtype, name: str) -> tuple[nn.Module, dict[str, torch.dtype]]:
    """The module in the type that it is trained in, and the types that its tensors had where that is another."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    types = {key: value.dtype for key, value in named if value.is_floating_point() and value.dtype != torch.float32}
    if types and dtype == torch.float32:
        found = ", ".join(sorted({str(kind).removeprefix("torch.") for kind in types.values()}))
        _log.warning("model %s: its %s weights are converted; it is trained in float32", name, found)
    return module.to(dtype), types


def given_module(given: object, shape: object, outputs: int) -> nn.Module:
    """The module that a user gives: an instance, a function or class that makes one, or `module:function`.

    A function is called without arguments, or with the shape of a row (`hush.models.inputs.shapes_of`) and the number
    of classes, labels or targets.
    """
    wanted = "accepted: a function of nothing, or of (input shape, number of classes)"
    if isinstance(given, str):
        try:
            given = user_code(given)
        except Exception as error:  # the user's own code
            raise HushError(f"model: {given!r:.80} cannot be used: {error!r:.200}; {wanted}") from None
    if isinstance(given, nn.Module):
        return given
    if not callable(given):
        raise HushError(f"model: found {type(given).__name__}; accepted: an nn.Module, or a function that makes one")
    name = str(getattr(given, "__qualname__", type(given).__name__))
    try:
        needed = [
            each for each in inspect.signature(given).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
    except (TypeError, ValueError):
        needed = []
    if len(needed) not in (0, 2):
        raise HushError(f"model: {name} needs {', '.join(each.name for each in needed)}; {wanted}")
    try:
        made = given(shape, outputs) if needed else given()
    except Exception as error:  # the user's own code
        raise HushError(f"model: {name} fails: {error!r:.200}; {wanted}") from None
    if not isinstance(made, nn.Module):
        raise HushError(f"model: {name} returns {type(made).__name__}; accepted: an nn.Module")
    return made


def imported(name: str, shape: object, classes: int) -> nn.Module:
    """What `module:factory` makes for these inputs; modules are looked for in the working directory too."""
    try:
        made = user_code(name)(shape, classes)
    except Exception as error:
        raise HushError(
            f"model.name: {name!r} cannot be used: {error}; expected module:factory, "
            "where factory(shape, classes) returns an nn.Module",
            "model.name",
        ) from None
    if not isinstance(made, nn.Module):
        raise HushError(f"model.name: {name!r} returned {type(made).__name__}, expected an nn.Module", "model.name")
    return made


def _refuse_kinds(module: nn.Module, name: str, *, trained: bool = True) -> None:
    """Refuse what can be named before anything runs; where it is `trained`, what has nothing to train as well."""
    for path, part in module.named_modules():
        where = f"model {name}: layer {path or '(top)'} ({type(part).__name__})"
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None):
            raise HushError(
                f"{where} mixes the examples of a batch, so no per-example clip can bound one example's influence; "
                "use GroupNorm, LayerNorm or InstanceNorm",
                "model.name",
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise HushError(f"{where} is compiled by TorchScript and cannot be traced; use the nn.Module", "model.name")
    for key, value in (*module.named_parameters(), *module.named_buffers()):
        if type(value) not in (nn.Parameter, Tensor):
            raise HushError(f"model {name}: {key} is a {type(value).__name__}, expected a plain tensor", "model.name")
    if trained and not any(p.requires_grad for p in module.parameters()):
        raise HushError(f"model {name}: has no trainable parameters", "model.name")


@torch.no_grad()
def _examples(module: nn.Module, shape: Shape) -> Tensor:
    """Random numbers; where the module takes no such numbers, as one that looks up tokens does not, zeros and ones.

    Rows of the data are not used: whatever a module keeps of a first call would be kept without noise.
    """
    drawn = torch.from_numpy(rng(0, "probe").normal(size=(_EXAMPLES, *shape))).to(torch.float32)
    for tried in (drawn, (drawn > 0).to(torch.float32)):
        try:
            copied(module, "probe")(tried)
        except Exception:
            continue
        return tried
    return torch.zeros_like(drawn)


@torch.no_grad()
def _output(module: nn.Module, x: Tensor, name: str) -> tuple[Tensor, bool]:
    """The logits that a module returns, and whether they are all that it returns."""
    try:
        out = module(x)
    except Exception as error:
        raise HushError(
            f"model {name}: fails on inputs of shape {tuple(x.shape)}: {_line(error)}", "model.name"
        ) from None
    found = logits_of(out)
    if found is None:
        raise HushError(f"model {name}: returns {describe_output(out)}; accepted: {ACCEPTED}", "model.name")
    return found, isinstance(out, Tensor)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
