"""A module that runs a traced graph.

What was traced is what runs: the user's own Python code is not called again, so that nothing it keeps, counts or reads
from elsewhere can change what is computed later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from hush.models.isolation.uses import BatchOrder


class TracedModule(nn.Module):
    """Runs a graph with parameters under the names that the original module has for them.

    Attributes:
        order: Where the examples lie in the inputs of layers; "one row" if the graph is of a single example, so that a
            batch is mapped over its rows.
        keyed: Whether rows come with keys, from which the graph computes its random numbers.
        reason: Why the graph is of a single example, where it is.
        graph_module: The graph.
        paths: For each of its inputs the name of a parameter or buffer, none for the batch.
    """

    graph_module: fx.GraphModule
    paths: tuple[str | None, ...]

    def __init__(
        self,
        module: nn.Module,
        graph: fx.GraphModule,
        arguments: Sequence[str | Tensor | None],
        order: BatchOrder,
        keyed: bool = False,
    ) -> None:
        """Take over the parameters and buffers of `module`.

        Args:
            module: The module that was traced.
            graph: Its graph, in which parameters, buffers and constants are inputs.
            arguments: For each input of the graph: the name of a parameter or buffer, a constant, or none (the batch).
            order: As the attribute.
            keyed: As the attribute.
        """
        super().__init__()
        for name, parameter in module.named_parameters(remove_duplicate=False):
            _place(self, name).register_parameter(name.rpartition(".")[2], parameter)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            _place(self, name).register_buffer(name.rpartition(".")[2], buffer)
        paths: list[str | None] = []
        for number, argument in enumerate(arguments):
            if isinstance(argument, Tensor):
                _place(self, "_constants.0").register_buffer(str(number), argument.detach().clone())
                argument = f"_constants.{number}"
            paths.append(argument)
        # Not as a submodule: the graph has no parameters of its own.
        self.__dict__["graph_module"] = graph
        self.__dict__["_run"] = graph.forward
        self.paths = tuple(paths)
        self.order, self.keyed, self.reason = order, keyed, ""
        self._digest = _digest(graph, [*self.buffers(), *(p for p in self.parameters() if not p.requires_grad)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output for a batch."""
        given, graph = [None if path is None else _find(self, path) for path in self.paths], self.__dict__["_run"]

        def run(rows: Tensor) -> Tensor:
            out: Tensor = graph(*(rows if value is None else value for value in given))[0]
            return out

        if self.order != "one row" or len(x) == 1:
            return run(x)
        quiet_vmap()
        return torch.func.vmap(lambda row: run(row[None])[0])(x)

    def calls(self, operation: str) -> bool:
        """Return whether the graph calls an operation with this in its name."""
        nodes = self.__dict__["graph_module"].graph.nodes
        return any(f"aten.{operation}" in str((node.target, *node.args)) for node in nodes if node.op != "placeholder")

    @property
    def unread(self) -> set[str]:
        """The names of the parameters that no operation of the graph reads."""
        places = [node for node in self.__dict__["graph_module"].graph.nodes if node.op == "placeholder"]
        pairs = zip(places, self.paths, strict=True)
        read = {id(_find(self, path)) for place, path in pairs if path is not None and place.users}
        return {name for name, own in self.named_parameters(remove_duplicate=False) if id(own) not in read}

    def extra_repr(self) -> str:
        """Return a digest of the graph and its constants: modules that compute different things have different ones."""
        return f"graph={self._digest}, order={self.order}"


def quiet_vmap() -> None:
    """From now on no line on standard error for each call of an operation that vmap runs example by example."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


def _place(root: nn.Module, name: str) -> nn.Module:
    """Return the module that holds what has this name, made where there is none."""
    for part in name.split(".")[:-1]:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]  # type: ignore[assignment]
    return root


def _find(root: nn.Module, path: str) -> Any:
    found: Any = root
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _digest(graph: fx.GraphModule, fixed: Sequence[Tensor]) -> str:
    digest = hashlib.sha256(graph.code.encode())
    for tensor in fixed:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
