"""Recurrent layers as linear layers called once per time step.

PyTorch runs an RNN, LSTM or GRU as one operation, for which there are neither per-example gradient rules nor vmap. The
same layer as a loop over time is made of operations that have both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = tuple[Tensor, ...]
_aten = torch.ops.aten


def recurrent(
    operation: Any,
    x: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The outputs of all steps and the last states, as the aten operation itself returns them.

    The loop over time is used where the parameters are stand-ins or vmapped; elsewhere the operation is.
    """
    if not any(_special(tensor) for tensor in (x, *params)):
        out: tuple[Tensor, ...] = operation(
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
        return out
    cell, states = _CELLS[operation], (hx,) if isinstance(hx, Tensor) else tuple(hx)
    x = x if batch_first else x.transpose(0, 1)
    directions, width = 2 if bidirectional else 1, 4 if has_biases else 2
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            run = layer * directions + direction
            weights = params[run * width : (run + 1) * width]
            found, end = _loop(cell, x, tuple(state[run] for state in states), weights, direction == 1)
            outputs.append(found)
            last.append(end)
        x = torch.cat(outputs, -1)
    ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    return (x if batch_first else x.transpose(0, 1)), *ends


def recurrent_cell(
    operation: Any,
    x: Tensor,
    hx: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor | State:
    """One step of a cell, as the aten operation itself returns it."""
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    found = _CELLS[operation](functional.linear(x, w_ih, b_ih), functional.linear(state[0], w_hh, b_hh), state)
    return found[0] if isinstance(hx, Tensor) else found


def parameters_per_direction(has_biases: bool) -> int:
    """How many parameters one direction of one layer has, if it has no projection."""
    return 4 if has_biases else 2


def _special(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return not plain or bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _loop(
    cell: Callable[[Tensor, Tensor, State], State], x: Tensor, state: State, weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, State]:
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:] if len(weights) == 4 else (None, None)
    seen = functional.linear(x, w_ih, b_ih)
    steps = range(x.shape[1])
    outputs: dict[int, Tensor] = {}
    for step in reversed(steps) if backwards else steps:
        state = cell(seen[:, step], functional.linear(state[0], w_hh, b_hh), state)
        outputs[step] = state[0]
    return torch.stack([outputs[step] for step in steps], 1), state


def _lstm(seen: Tensor, before: Tensor, state: State) -> State:
    i, f, g, o = (seen + before).chunk(4, 1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(seen: Tensor, before: Tensor, state: State) -> State:
    (r, z, n), (r_before, z_before, n_before) = seen.chunk(3, 1), before.chunk(3, 1)
    new = (n + (r + r_before).sigmoid() * n_before).tanh()
    update = (z + z_before).sigmoid()
    return ((1 - update) * new + update * state[0],)


def _tanh(seen: Tensor, before: Tensor, state: State) -> State:
    return ((seen + before).tanh(),)


def _relu(seen: Tensor, before: Tensor, state: State) -> State:
    return ((seen + before).relu(),)


_CELLS: Mapping[Any, Callable[[Tensor, Tensor, State], State]] = {
    _aten.lstm.input: _lstm,
    _aten.gru.input: _gru,
    _aten.rnn_tanh.input: _tanh,
    _aten.rnn_relu.input: _relu,
    _aten.lstm_cell.default: _lstm,
    _aten.gru_cell.default: _gru,
    _aten.rnn_tanh_cell.default: _tanh,
    _aten.rnn_relu_cell.default: _relu,
}
