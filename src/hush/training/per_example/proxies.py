"""Proxies for parameters that differ from client to client, and the record of every layer that uses one.

A proxy has the shape of one client's parameter and no numbers of its own. PyTorch hands every function that receives
it to `__torch_function__`, which runs the rule for that function (`hush.training.per_example.rules`) or refuses. What
is computed from parameters alone has a proxy too, and gradients for it become gradients for these parameters.

Guarantees:
    - No use of a parameter goes unnoticed: a proxy lies on no device, so whatever gets around the rules fails.

Edge cases:
    - Questions about shape, type and device are answered as for one client's parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hush.training.per_example.batch_layout import BatchLayout
from hush.training.per_example.gradient_terms import Term, merged

_METADATA = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "layout")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.__len__}


class UnsupportedError(Exception):
    """A parameter is used in a way for which there is no rule."""


class Computed(Protocol):
    """What is computed from parameters alone: values of each client that have no example."""

    def terms(self, term: Term, clients: BatchLayout) -> Sequence[tuple[str, Term]]:
        """From the gradients for what was computed, those for what it was computed from, by name."""
        ...


class Layer(Protocol):
    """One use of parameters: a function of a batch, with weights of each client."""

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        ...

    def input_gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """From the gradient for the output, that for the input."""
        ...

    def terms(self, d: Tensor, x: Tensor) -> Sequence[tuple[str, Term]]:
        """The gradients of each parameter, by its name."""
        ...


@dataclass(kw_only=True)
class Tape:
    """What one pass over a batch leaves behind.

    Attributes:
        clients: Whose examples are where.
        values: The parameters of the clients, by name: clients x shape.
        anchor: Makes autograd pass through every layer, though no parameter asks for a gradient.
        used: Parameters seen in the forward pass.
        terms: Gradients collected in the backward pass.
        computed: How what is computed from parameters alone was computed, in order.
    """

    clients: BatchLayout
    values: dict[str, Tensor]
    anchor: Tensor
    used: set[str] = field(default_factory=set)
    terms: dict[str, list[Term]] = field(default_factory=dict)
    computed: dict[str, Computed] = field(default_factory=dict)

    def gradients(self) -> dict[str, Term]:
        """The term of each parameter, once the backward pass is over; the tape is empty then."""
        found, self.terms = self.terms, {}
        # What was computed last comes first: its terms may be for what was computed before.
        for key, origin in reversed(self.computed.items()):
            for name, term in origin.terms(merged(found.pop(key)), self.clients) if key in found else ():
                found.setdefault(name, []).append(term)
        self.computed.clear()
        return {name: merged(uses) for name, uses in found.items()}

    def run(self, layer: Layer, x: Tensor, *names: str) -> Tensor:
        """The layer's output, its part of the backward pass recorded."""
        self.used.update(names)
        apply: Any = _Recorded.apply
        return cast(Tensor, apply(x, self.anchor, layer, self))


Rule = Callable[..., Tensor]


class ParameterProxy(Tensor):
    """A proxy for one parameter. Its tape is that of the current pass."""

    path: str
    tape: Tape
    rules: Mapping[Any, Rule]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the rule for the function."""
        given = kwargs or {}
        first = next(a for a in pytree.tree_leaves((args, given)) if isinstance(a, ParameterProxy))
        if func == Tensor.device.__get__:
            return first.tape.values[first.path].device
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        rule = first.rules.get(func)
        if rule is None:
            raise UnsupportedError(f"{first.path} goes through {getattr(func, '__name__', func)}")
        # Rules say x where PyTorch says input, which is a name of Python's own.
        return rule(first.tape, *args, **{"x" if key == "input" else key: value for key, value in given.items()})


def proxy(name: str, shape: Sequence[int], dtype: torch.dtype, rules: Mapping[Any, Rule]) -> ParameterProxy:
    """A proxy for the parameter of that name."""
    made = torch.empty(shape, dtype=dtype, device="meta").as_subclass(ParameterProxy)
    made.path, made.rules = name, rules
    return made


class _Recorded(torch.autograd.Function):
    """A layer that collects its parameters' terms when the gradient for its output arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Layer, tape: Tape) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.tape = layer, tape
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, None, None, None]:
        d, x = outputs[0], ctx.saved_tensors[0].detach()
        for name, term in ctx.layer.terms(d, x):
            ctx.tape.terms.setdefault(name, []).append(term)
        return (ctx.layer.input_gradient(d, x) if ctx.needs_input_grad[0] else None), None, None, None
