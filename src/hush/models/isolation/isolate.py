"""Isolation by construction: a user's module is proved to keep examples apart, or computed row by row, or refused.

1. The module is called, and refused if the call leaves anything changed or if equal inputs give different outputs.
2. Its graph is exported for any batch size, and proved to keep the examples apart (`hush.models.isolation.proof`).
3. Without a proof its graph for one example is mapped over the rows, where mixing is impossible; that must compute what
   the module computes.
4. The gradients of the graph must be those of the module: hooks and custom backward passes are not in the graph.
5. A randomised check (`hush.models.isolation.check`) follows.

From then on the graph runs, never the module's own code, except for modules made of PyTorch's own layers alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hush.models.isolation import trace
from hush.models.isolation.axis import MixesExamplesError
from hush.models.isolation.state import backward_hook, changed, random_state, restore_random_state, snapshot
from hush.models.isolation.traced_module import TracedModule

_PROBES = 7  # examples of a probe
# Layers whose forward pass is PyTorch's own code and keeps nothing; `nn.Sequential` calls them one after the other.
_PLAIN = (
    nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.Embedding, nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.MaxPool1d,
    nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm,
    nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
)  # fmt: skip


class NotIsolatedError(Exception):
    """The module cannot be used: the message says why."""


def isolate(module: nn.Module, x: Tensor, *, by_rows: bool = False) -> nn.Module:
    """A module with the same parameters that computes the same, each row of its output from its own example alone.

    Args:
        module: The module; its parameters are taken over, and it is not to be used any more.
        x: A few examples.
        by_rows: Whether to compute one example at a time without trying a proof, for what is defined that way.

    Raises:
        NotIsolatedError: The module keeps state, draws random numbers, mixes examples, or cannot be traced.
    """
    if (hook := backward_hook(module)) is not None:
        raise NotIsolatedError(f"{hook} has a backward hook, which sees whole batches; remove it")
    with trace.quiet():
        ways = (trace.row_by_row,) if by_rows else (trace.batched, trace.row_by_row)
        return _isolated(module, x[torch.arange(_PROBES) % len(x)].clone(), ways)


def _isolated(
    module: nn.Module, rows: Tensor, ways: Sequence[Callable[[nn.Module, Tensor], TracedModule]]
) -> nn.Module:
    expected = _called(module, rows)
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
        elif not _same_gradients(module, traced, rows):
            reasons.append(
                "its gradients differ from those of its operations: it has a custom backward pass, a hook, or state"
            )
        else:
            return module if traced.order == "first" and _is_plain(module) else traced
    raise NotIsolatedError("; ".join(dict.fromkeys(reasons)))


def _called(module: nn.Module, rows: Tensor) -> Tensor:
    """The module's output, if a call leaves nothing behind and equal inputs give equal outputs."""
    before, generators = snapshot(module), random_state()
    first = _checked_output(module, rows)
    drew = random_state() != generators
    restore_random_state(generators)
    if (path := changed(before, snapshot(module))) is not None:
        raise NotIsolatedError(f"keeps state between calls, in {path}; an output must depend on its own example only")
    _checked_output(module, rows.flip(0)[:2])
    again = _checked_output(module, rows)
    restore_random_state(generators)
    if drew:
        raise NotIsolatedError("uses random numbers, so runs are not reproducible; remove dropout or set it to 0")
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise NotIsolatedError("returns different outputs for equal inputs: it keeps state between calls")
    return first


def _checked_output(module: nn.Module, rows: Tensor) -> Tensor:
    """The output; a module that takes other batches and fails on these depends on the batch."""
    try:
        return _output(module, rows)
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotIsolatedError(f"fails on a batch of {len(rows)} examples: {text}") from None


@torch.no_grad()
def _output(module: nn.Module, rows: Tensor) -> Tensor:
    found: Tensor = module(rows.clone())
    return found


def _same_gradients(module: nn.Module, traced: nn.Module, rows: Tensor) -> bool:
    """Whether module and graph have the same gradients for a loss that treats every output differently."""
    named = {
        name: value.detach().clone().requires_grad_(value.is_floating_point())
        for name, value in module.named_parameters()
    }
    real = [value for value in named.values() if value.requires_grad]

    def gradients(of: nn.Module) -> list[Tensor]:
        with torch.enable_grad():
            out: Tensor = torch.func.functional_call(of, named, (rows,))
            weights = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).view_as(out).sin()
            found = torch.autograd.grad((out * weights).sum(), real, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(found, real, strict=True)]

    try:
        return all(_close(a, b) for a, b in zip(gradients(module), gradients(traced), strict=True))
    except RuntimeError:
        return False


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two results agree, as measured by their largest entries: small ones may be differences of large ones."""
    if a.shape != b.shape:
        return False
    largest = float(b.nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * (1.0 + largest), equal_nan=True)


def _is_plain(module: nn.Module) -> bool:
    """Whether the module consists of PyTorch's own layers, unchanged, so that no code of the user's runs."""
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
