"""Values computed from parameters alone, such as the transpose of a weight or a gate between 0 and 1.

They are computed once for each client. Gradients for them become gradients for the parameters: where the values are the
parameters' own in another order, sums are computed for the values and put in place at the end; elsewhere each example's
gradient is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.utils import _pytree as pytree

from hush.models.isolation.uses import called
from hush.training.per_example.batch_layout import BatchLayout
from hush.training.per_example.gradient_terms import DenseTerm, PlacedTerm, Term
from hush.training.per_example.layers import Parameter, repeated
from hush.training.per_example.proxies import ParameterProxy, Tape, proxy

_aten = torch.ops.aten
Function = Callable[..., Any]
# Their results have some of their input's numbers, each once.
_SELECTING = frozenset({
    _aten.view.default, _aten.reshape.default, _aten.permute.default, _aten.transpose.int, _aten.t.default,
    _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.squeeze.default, _aten.select.int,
    _aten.slice.Tensor, _aten.split.Tensor, _aten.split_with_sizes.default, _aten.chunk.default, _aten.unbind.int,
    _aten.clone.default, _aten.alias.default, _aten.contiguous.default, _aten.flatten.using_ints,
    _aten.unflatten.int, _aten.flip.default, _aten.numpy_T.default, Tensor.t,
})  # fmt: skip
# Their results are linear in their first argument, which is the only one that is computed from parameters.
_LINEAR = frozenset({
    _aten.expand.default, _aten.repeat.default, _aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default,
    _aten.mean.dim, _aten.index_select.default, _aten.tril.default, _aten.triu.default, _aten.cumsum.default,
    _aten.neg.default, _aten.constant_pad_nd.default,
})  # fmt: skip


def computed(tape: Tape, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Return proxies for what the operation computes."""
    if operation is _aten.embedding.default and not isinstance(args[1], ParameterProxy):
        table, index = args[:2]
        chosen = computed(tape, _aten.index_select.default, table, 0, index.flatten())
        return computed(tape, _aten.reshape.default, chosen, [*index.shape, table.shape[1]])
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, ParameterProxy)]
    sources = [Parameter(leaves[i].path, tape.values[leaves[i].path]) for i in places]
    tape.used.update(source.name for source in sources)

    def function(*own: Tensor) -> Any:
        filled = list(leaves)
        for place, value in zip(places, own, strict=True):
            filled[place] = value
        given, named = pytree.tree_unflatten(filled, spec)
        return called(operation)(*given, **named)

    alone = len(places) == 1 and places[0] == 0
    kind = _Selected if alone and operation in _SELECTING else _Linear if alone and operation in _LINEAR else _General
    found = vmap(function)(*(source.values for source in sources))
    several = isinstance(found, list | tuple)
    made = []
    for number, values in enumerate(found if several else (found,)):
        part: Function = (lambda *own, number=number: function(*own)[number]) if several else function
        key = f"{sources[0].name}, {operation}, {len(tape.values)}"
        tape.values[key] = values
        tape.computed[key] = kind(tuple(sources), part, tuple(values.shape[1:]))
        own = proxy(key, values.shape[1:], values.dtype, leaves[places[0]].rules)
        own.tape = tape
        made.append(own)
    return made if several else made[0]


@dataclass(frozen=True)
class _Origin:
    """Where values come from.

    Attributes:
        sources: What they are computed from.
        function: Of the sources of one client.
        shape: Of the values of one client.
    """

    sources: tuple[Parameter, ...]
    function: Function
    shape: tuple[int, ...]

    def back(self, d: Tensor) -> Tensor:
        """From gradients for the values of a linear function, n x shape, those for its only source."""
        (source,) = self.sources
        pull: Any = vjp(self.function, d.new_zeros(source.values.shape[1:]))[1]
        out: Tensor = vmap(lambda one: pull(one)[0])(d)
        return out


@dataclass(frozen=True)
class _Selected(_Origin):
    def terms(self, term: Term, clients: BatchLayout) -> Sequence[tuple[str, Term]]:
        """Gradients put in place: norms stay what they are."""
        return [(self.sources[0].name, PlacedTerm(term, self.back, self.shape))]


@dataclass(frozen=True)
class _Linear(_Origin):
    def terms(self, term: Term, clients: BatchLayout) -> Sequence[tuple[str, Term]]:
        """Gradients of a linear function, which do not depend on its source."""
        return [(self.sources[0].name, DenseTerm(self.back(term.full().each)))]


@dataclass(frozen=True)
class _General(_Origin):
    def terms(self, term: Term, clients: BatchLayout) -> Sequence[tuple[str, Term]]:
        """Gradients at the values of each example's client."""
        real = [number for number, source in enumerate(self.sources) if source.values.is_floating_point()]

        def pulled(d: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
            def of_real(*values: Tensor) -> Any:
                filled = list(own)
                for number, value in zip(real, values, strict=True):
                    filled[number] = value
                return self.function(*filled)

            found: tuple[Tensor, ...] = vjp(of_real, *(own[number] for number in real))[1](d)
            return found

        own = [repeated(clients, source.values) for source in self.sources]
        each = vmap(pulled)(term.full().each, *own)
        return [(self.sources[number].name, DenseTerm(d)) for number, d in zip(real, each, strict=True)]
