"""Dataflow: what is known of the values of a graph, the batch axis of each tensor, and the questions that rules ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from hush.models.isolation.axis import BatchAxis, BatchSize, MixesExamplesError, Tag, is_fixed


@dataclass
class Dataflow:
    """The tags of all values of one graph."""

    batch: BatchSize
    tags: dict[fx.Node, Any] = field(default_factory=dict)

    def value(self, argument: Any) -> Any:
        """Return the fake tensor or size that a node stands for; other arguments as they are."""
        return argument.meta.get("val") if isinstance(argument, fx.Node) else argument

    def is_tensor(self, argument: Any) -> bool:
        """Return whether the argument is a tensor of the graph."""
        return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), Tensor)

    def ndim(self, argument: Any) -> int:
        """Return the number of axes of a tensor."""
        return int(self.value(argument).ndim)

    def size(self, argument: Any, dim: int) -> tuple[int, bool]:
        """Return `BatchSize.factor` of one axis."""
        return self.batch.factor(self.value(argument).shape[dim])

    def tag(self, argument: Any) -> Tag:
        """Return the batch axis of a tensor, or none if it depends on no example."""
        found: Tag = self.tags.get(argument) if isinstance(argument, fx.Node) else None
        return found

    def axis(self, argument: Any) -> BatchAxis:
        """Return the batch axis of a tensor that must have one, and whose values may be used."""
        found = self.tag(argument)
        if found is None:
            raise MixesExamplesError("a tensor without a batch axis is combined with one that has it")
        if found.numbers:
            raise MixesExamplesError("the index of an example in its batch is used as a value")
        return found

    def constant(self, *arguments: Any) -> None:
        """Refuse unless none of these tensors depends on an example."""
        for each in flat(arguments):
            if self.is_tensor(each) and self.tag(each) is not None:
                raise MixesExamplesError("examples are used in place of a parameter")

    def fixed(self, *arguments: Any) -> None:
        """Refuse if a number is computed from the batch size."""
        for each in flat(arguments):
            if not self.is_tensor(each) and not is_fixed(self.value(each)):
                raise MixesExamplesError("a value is computed from the batch size")

    def broadcast(self, tensors: Sequence[Any], ndim: int) -> BatchAxis:
        """Return the batch axis of tensors that are broadcast against each other: the same for all that have one."""
        found = {self.axis(t).at(self.axis(t).dim + ndim - self.ndim(t)) for t in tensors if self.tag(t) is not None}
        if len(found) != 1:
            raise MixesExamplesError("the batch axes of its inputs differ")
        (axis,) = found
        for each in tensors:
            self.broadcasts_along(each, axis.dim - ndim)
        return axis

    def broadcasts_along(self, argument: Any, from_right: int) -> None:
        """Refuse a tensor without a batch axis that has different values along the batch axis of another."""
        if self.is_tensor(argument) and self.tag(argument) is None:
            dim = self.ndim(argument) + from_right
            if dim >= 0 and self.size(argument, dim) != (1, False):
                raise MixesExamplesError("an axis of fixed size is combined with the batch axis")

    def made(self, out: Tensor) -> Tag:
        """Return the tag of a tensor that is the same for every example: expanded or newly created."""
        grown = [(dim, factor) for dim, (factor, grows) in enumerate(self.batch.shape(out)) if grows]
        if not grown:
            return None
        if len(grown) > 1 or grown[0][1] != 1:
            raise MixesExamplesError("a tensor is created for several examples at once")
        return BatchAxis(grown[0][0])


def flat(value: Any) -> Iterator[Any]:
    """Return all arguments in nested lists, tuples, mappings and slices."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    elif isinstance(value, Mapping):
        yield from flat(list(value.values()))
    elif isinstance(value, slice):
        yield from flat([value.start, value.stop, value.step])
    else:
        yield value
