"""Recurrent layers as what they are: linear layers called once a step, which the other rules know.

PyTorch's own keep their weights outside the tree of modules and run in one piece, where no rule can see a parameter.

Guarantees:
    - Outputs are those of `nn.RNN`, `nn.LSTM` and `nn.GRU` with the same weights, but for rounding.

Edge cases:
    - Packed sequences, projections and dropout between layers are refused (`UnsupportedError`).
    - Inputs must have an axis of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.local.held import UnsupportedError

KINDS = (nn.RNN, nn.LSTM, nn.GRU)
State = tuple[Tensor, ...]


class Unrolled(nn.Module):
    """A recurrent layer with other parameters."""

    mode: str
    batch_first: bool
    bidirectional: bool
    num_layers: int
    hidden_size: int
    bias: bool

    def __init__(self, layer: nn.RNNBase, parameters: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        if layer.proj_size or layer.dropout:
            raise UnsupportedError(f"a {layer.mode} layer has projections or dropout")
        # Model code may ask the layer what it is, so that it must look like it.
        self.__dict__ |= {**layer.__dict__, "_parameters": dict(parameters)}
        self._states = 2 if layer.mode == "LSTM" else 1
        self._cell = _CELLS[layer.mode]

    def forward(self, x: Tensor, state: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        """The outputs of all steps and the last state, as the layer itself returns them."""
        if not isinstance(x, Tensor) or x.ndim != 3:
            raise UnsupportedError(f"a {self.mode} layer takes a packed sequence or a single example")
        x = x if self.batch_first else x.transpose(0, 1)
        ways = 2 if self.bidirectional else 1
        given = self._given(x, state, self.num_layers * ways)
        last: list[State] = []
        for depth in range(self.num_layers):
            outputs = []
            for way in range(ways):
                out, end = self._run(x, given[depth * ways + way], f"_l{depth}{'_reverse' if way else ''}", way == 1)
                outputs.append(out)
                last.append(end)
            x = torch.cat(outputs, -1)
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return (x if self.batch_first else x.transpose(0, 1)), (ends if self._states == 2 else ends[0])

    def flatten_parameters(self) -> None:
        """Nothing: there is no one piece of memory to flatten them into."""

    def _given(self, x: Tensor, state: Tensor | State | None, runs: int) -> list[State]:
        if state is None:
            zeros = x.new_zeros(len(x), self.hidden_size)
            return [(zeros,) * self._states] * runs
        parts = (state,) if isinstance(state, Tensor) else state
        return [tuple(part[i] for part in parts) for i in range(runs)]

    def _run(self, x: Tensor, state: State, suffix: str, backwards: bool) -> tuple[Tensor, State]:
        seen = self._linear(x, "ih" + suffix)
        steps = range(x.shape[1])
        outputs: dict[int, Tensor] = {}
        for step in reversed(steps) if backwards else steps:
            state = self._cell(seen[:, step], self._linear(state[0], "hh" + suffix), state)
            outputs[step] = state[0]
        return torch.stack([outputs[step] for step in steps], 1), state

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = getattr(self, f"bias_{name}") if self.bias else None
        return functional.linear(x, getattr(self, f"weight_{name}"), bias)


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


_CELLS: Mapping[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": _tanh,
    "RNN_RELU": _relu,
}
