"""Isolation by construction: a user's module is proved to keep examples apart, or computed row by row, or refused.

1. The module is called, and refused if the call leaves anything changed or if equal inputs give different outputs.
   A module whose output in evaluation mode is another, as with dropout, is traced in both modes.
2. Its graph is exported for any batch size, and proved to keep the examples apart (`hush.models.isolation.proof`).
3. Without a proof its graph for one example is mapped over the rows, where mixing is impossible; that must compute what
   the module computes.
4. The gradients of the graph must be those of the module: hooks and custom backward passes are not in the graph.
5. Random numbers of the graph come from the keys of the examples (`hush.models.isolation.dropout`). For the comparisons
   above, graph and module compute with the means of their random numbers.
6. A randomised check (`hush.models.isolation.check`) follows.

From then on the graph runs, never the module's own code, except for modules made of PyTorch's own layers alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hush.models.isolation import trace
from hush.models.isolation.axis import MixesExamplesError
from hush.models.isolation.mean_numbers import MeanNumbers
from hush.models.isolation.state import backward_hook, changed, random_state, restore_random_state, snapshot
from hush.models.isolation.traced_module import TracedModule
from hush.models.validation import copied

_aten = torch.ops.aten
_PROBES = 7  # examples of a probe
# Layers whose forward pass is PyTorch's own code and keeps nothing; `nn.Sequential` calls them one after the other.
_PLAIN = (
    nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.Embedding, nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.MaxPool1d,
    nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm,
    nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
)  # fmt: skip


_ALWAYS = (
    "uses random numbers in evaluation mode, so that one row has many predictions; use nn.Dropout, or pass "
    "training=self.training"
)


class NotIsolatedError(Exception):
    """The module cannot be used: the message says why."""


@dataclass(frozen=True)
class Isolated:
    """A module made safe.

    Attributes:
        evaluation: Computes what the module computes in evaluation mode.
        training: Computes what it computes in the mode in which it was given, if that is different. Its rows come with
            keys (`hush.models.isolation.dropout.with_keys`) if it is `keyed`.
    """

    evaluation: nn.Module
    training: TracedModule | None = None


_Trace = Callable[[nn.Module, Tensor], TracedModule]
_WAYS: tuple[_Trace, ...] = (trace.batched, trace.row_by_row)


def isolate(module: nn.Module, x: Tensor, *, gradients: bool = True) -> Isolated:
    """Return equivalent modules in which each row of an output is computed from its own example alone.

    Args:
        module: The module; its parameters are taken over, and it is not to be used any more.
        x: A few examples.
        gradients: Whether those of the graph must be those of the module; not where nothing is trained.

    Raises:
        NotIsolatedError: The module keeps state, draws random numbers other than dropout, mixes examples, or cannot be
            traced.
    """
    if (hook := backward_hook(module)) is not None:
        raise NotIsolatedError(f"{hook} has a backward hook, which sees whole batches; remove it")
    with trace.quiet(), _without_fast_path():
        rows = x[torch.arange(_PROBES) % len(x)].clone()
        expected, draws = _called(module, rows)
        if not any(part.training for part in module.modules()):
            if draws:
                raise NotIsolatedError(_ALWAYS)
            return Isolated(_isolated(module, rows, expected, gradients))
        evaluation = copied(module, "custom").eval()
        evaluated, always = _called(evaluation, rows)
        if always:
            raise NotIsolatedError(_ALWAYS)
        if not draws and torch.equal(expected.nan_to_num(), evaluated.nan_to_num()):
            return Isolated(_isolated(module, rows, expected))
        training = _graph(module, rows, _with_means(module, rows) if draws else expected, draws)
        training = trace.keyed(training, tuple(rows.shape[1:])) if draws else training
        return Isolated(_isolated(evaluation, rows, evaluated), training)


def isolate_rows(module: nn.Module, x: Tensor) -> nn.Module:
    """Return the same of a module that is defined for one example at a time, in evaluation mode: no proof is tried.

    Raises:
        NotIsolatedError: As `isolate`.
    """
    with trace.quiet(), _without_fast_path():
        rows = x[torch.arange(_PROBES) % len(x)].clone()
        expected, draws = _called(module.eval(), rows)
        if draws:
            raise NotIsolatedError("uses random numbers, so runs are not reproducible")
        return _graph(module, rows, expected, False, (trace.row_by_row,))


def _isolated(module: nn.Module, rows: Tensor, expected: Tensor, gradients: bool = True) -> nn.Module:
    """Return the graph of a module, or the module itself if it is made of PyTorch's own layers."""
    traced = _graph(module, rows, expected, False, gradients=gradients)
    return module if traced.order == "first" and _is_plain(module) else traced


def _graph(
    module: nn.Module, rows: Tensor, expected: Tensor, draws: bool, ways: Sequence[_Trace] = _WAYS,
    gradients: bool = True,
) -> TracedModule:  # fmt: skip
    """Return the graph of a module, once it is known to compute the same; with means if the module draws."""
    reasons = []
    for make in ways:
        try:
            traced = make(module, rows)
            found = _output(traced, rows)
        except Exception as error:
            reasons.append(_reason(error))
            continue
        if not _close(found, expected):
            reasons.append("its outputs for single examples differ from those for a batch")
        elif gradients and not _same_gradients(module, traced, rows, draws):
            reasons.append(
                "its gradients differ from those of its operations: it has a custom backward pass, a hook, or state"
            )
        else:
            traced.reason = reasons[0] if reasons else ""
            return traced
    if _aten._pack_padded_sequence in _operations(module, rows):
        reasons = ["packs sequences by the lengths of a batch; accepted: padded sequences, with a mask"]
    raise NotIsolatedError("; ".join(dict.fromkeys(reasons)))


def _operations(module: nn.Module, rows: Tensor) -> set[Any]:
    """Return the operations that a call of the module runs."""
    seen: set[Any] = set()

    class Listening(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    generators = random_state()
    try:
        # What fails under a listener is explained by other reasons.
        with Listening(), suppress(Exception):
            _output(module, rows)
    finally:
        restore_random_state(generators)
    return seen


def _called(module: nn.Module, rows: Tensor) -> tuple[Tensor, bool]:
    """Return the module's output, if a call leaves nothing behind and equal inputs give equal outputs.

    The second value says whether the module drew from PyTorch's generator.
    """
    before, generators = snapshot(module), random_state()
    first = _checked_output(module, rows)
    drew = random_state()
    restore_random_state(generators)
    if (path := changed(before, snapshot(module))) is not None:
        raise NotIsolatedError(f"keeps state between calls, in {path}; an output must depend on its own example only")
    _checked_output(module, rows.flip(0)[:2])
    restore_random_state(generators)
    again = _checked_output(module, rows)
    restore_random_state(generators)
    if drew[:2] != generators[:2]:
        raise NotIsolatedError("draws from Python's or NumPy's generator; accepted: PyTorch's dropout")
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise NotIsolatedError("returns different outputs for equal inputs: it keeps state between calls")
    return first, drew != generators


def _with_means(module: nn.Module, rows: Tensor) -> Tensor:
    """Return the module's output with every random number at its mean."""
    generators = random_state()
    try:
        with MeanNumbers():
            return _output(module, rows)
    finally:
        restore_random_state(generators)


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Attention by its own operations, as in training: fused ones for inference have no rules and no gradients."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _checked_output(module: nn.Module, rows: Tensor) -> Tensor:
    """Return the output; a module that takes other batches and fails on these depends on the batch."""
    try:
        return _output(module, rows)
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotIsolatedError(f"fails on a batch of {len(rows)} examples: {text}") from None


@torch.no_grad()
def _output(module: nn.Module, rows: Tensor) -> Tensor:
    found: Tensor = module(rows.clone())
    return found


def _same_gradients(module: nn.Module, traced: nn.Module, rows: Tensor, draws: bool) -> bool:
    """Return whether module and graph have the same gradients for a loss that treats every output differently."""
    named = {
        name: value.detach().clone().requires_grad_(value.is_floating_point())
        for name, value in module.named_parameters()
    }
    real = [value for value in named.values() if value.requires_grad]

    def gradients(of: nn.Module) -> list[Tensor]:
        with torch.enable_grad(), _parameters_kept(of):
            out: Tensor = torch.func.functional_call(of, named, (rows,))
            weights = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).view_as(out).sin()
            found = torch.autograd.grad((out * weights).sum(), real, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(found, real, strict=True)]

    generators = random_state()
    try:
        with MeanNumbers() if draws else nullcontext():
            expected = gradients(module)
        return all(_close(a, b) for a, b in zip(expected, gradients(traced), strict=True))
    except RuntimeError:
        return False
    finally:
        restore_random_state(generators)


@contextmanager
def _parameters_kept(module: nn.Module) -> Iterator[None]:
    """Put the parameters back afterwards: `functional_call` leaves others where one module is in two places."""
    original = [(part, dict(part._parameters)) for part in module.modules()]
    try:
        yield
    finally:
        for part, parameters in original:
            part._parameters.update(parameters)


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two results agree relative to their largest entries: small ones may come from cancellation."""
    if a.shape != b.shape:
        return False
    largest = float(b.nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * (1.0 + largest), equal_nan=True)


def _is_plain(module: nn.Module) -> bool:
    """Return whether the module consists of PyTorch's own layers, unchanged, so that no code of the user's runs."""
    return all(
        type(part) in _PLAIN
        and type(part._modules) in (dict, OrderedDict)
        and not any(callable(getattr(type(part), name, None)) for name in vars(part))  # a method of its own
        and not (part._forward_hooks or part._forward_pre_hooks)
        and part._compiled_call_impl is None
        for part in module.modules()
    )


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MixesExamplesError):
        return text
    if "data-dependent" in text:
        return "its control flow or a shape depends on the values of a batch"
    if "Constraints violated" in text:
        return "its computation depends on the size of the batch"
    return f"cannot be traced: {text}"
