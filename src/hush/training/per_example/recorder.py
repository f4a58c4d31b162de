"""The recorder: one pass over a batch with parameters per client, and each example's gradient from it.

The model's forward pass (of a user's module, the traced graph: `hush.models.isolation`) runs on a copy of its tree of
modules that shares everything but the parameters; those are proxies (`hush.training.per_example.proxies`). All
examples of all clients form one batch. One backward pass from the logits follows.

Guarantees:
    - The user's module is not touched, so several threads can use it at once.
    - Every parameter of the layout went through a rule; otherwise the pass is refused (`UnsupportedError`).

Edge cases:
    - A graph of one row, or one in which it is not known where the examples lie, is refused.
    - A parameter without influence on the logits has a gradient of zero and no term.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hush.models import Model
from hush.models.isolation import TracedModule
from hush.models.isolation.replacements import attention_in
from hush.training.closed_form import output_gradients
from hush.training.per_example.batch_layout import BatchLayout
from hush.training.per_example.fusion import fused
from hush.training.per_example.gradient_terms import Term
from hush.training.per_example.proxies import Tape, UnsupportedError, proxy
from hush.training.per_example.rules import RULES

_UNKNOWN = {
    "elsewhere": "what its parameters and the examples give has no batch axis",
    "one row": "its batches could not be traced, only single examples",
}


class Recorder:
    """A model made ready for passes. Not for several threads at once: each has its own.

    Attributes:
        convolutional: Whether it has convolutions.
    """

    def __init__(self, model: Model) -> None:
        if isinstance(model.module, TracedModule) and model.module.order in _UNKNOWN:
            reason = f": {model.module.reason}" if model.module.reason else ""
            raise UnsupportedError(f"{_UNKNOWN[model.module.order]}{reason}")
        self.model, self.layout, self._loss = model, model.layout, model.objective.loss
        self._proxies = {
            name: proxy(name, shape, model.start.dtype, RULES)
            for name, shape in zip(model.layout.names, model.layout.shapes, strict=True)
        }
        originals = {id(model.module.get_parameter(name)): own for name, own in self._proxies.items()}
        self._module = _copy(model.module, originals, {})
        self._unused = _unused(model.module)
        self.convolutional = _convolutional(model.module)
        self._anchor = torch.zeros((), requires_grad=True)

    def terms(self, values: Mapping[str, Tensor], clients: BatchLayout, x: Tensor, y: Tensor) -> dict[str, Term]:
        """The gradient of the loss of each example, parameter by parameter.

        Args:
            values: Parameters by name, clients x shape.
            clients: The layout of the batch.
            x: Inputs, examples x shape.
            y: Targets.
        """
        tape = Tape(clients=clients, values=dict(values), anchor=self._anchor)
        for own in self._proxies.values():
            own.tape = tape
        with torch.enable_grad(), attention_in(clients.low):
            logits = self._module(x)
        missed = [name for name in self.layout.names if name not in tape.used | self._unused]
        if missed:
            raise UnsupportedError(f"{missed[0]} is not used by a supported layer")
        if logits.ndim != 2 or len(logits) != len(x):
            raise UnsupportedError(f"the output has shape {tuple(logits.shape)}, not one row per example")
        # Outputs first, which is several times faster where there are few of them.
        d = output_gradients(self._loss, logits.detach().t().contiguous(), y, 0)
        torch.autograd.grad(logits, self._anchor, d.t(), allow_unused=True)
        return tape.gradients()


def _convolutional(module: nn.Module) -> bool:
    if isinstance(module, TracedModule):
        return module.calls("conv")
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def _unused(module: nn.Module) -> set[str]:
    """The parameters that nothing in a traced graph reads; of other code this is not known."""
    return module.unread if isinstance(module, TracedModule) else set()


def _copy(part: nn.Module, parameters: Mapping[int, Tensor], done: dict[int, nn.Module]) -> nn.Module:
    """The tree of modules with other parameters; attributes and buffers are shared."""
    if id(part) in done:
        return done[id(part)]
    own = {key: None if value is None else parameters.get(id(value), value) for key, value in part._parameters.items()}
    new = done[id(part)] = type(part).__new__(type(part))
    inner = fused(part._modules) if type(part) is nn.Sequential else part._modules
    new.__dict__ = part.__dict__ | {"_parameters": own}
    new.__dict__["_modules"] = {
        key: None if child is None else _copy(child, parameters, done) for key, child in inner.items()
    }
    return new
