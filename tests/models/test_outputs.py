"""Logits are found in what people's modules return, or the output is refused in one line."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hush.models import from_user
from hush.models.outputs import logits_of
from hush.types import HushError

Pair = namedtuple("Pair", ["loss", "logits"])


class Output(OrderedDict[str, Any]):
    """As a ModelOutput: a dict with attributes."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


WAYS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, out.sum()),
    "list": lambda out: [out],
    "named tuple": lambda out: Pair(out.sum(), out),
    "dict": lambda out: {"loss": out.sum(), "logits": out, "hidden": out * 2},
    "dict of one": lambda out: {"scores": out, "name": "x"},
    "attribute": lambda out: SimpleNamespace(logits=out, loss=None),
    "model output": lambda out: Output(logits=out, hidden=out * 2),
}
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "two tensors": (lambda out: {"a": out, "b": out}, "returns a dict with the keys a, b; accepted: a tensor, a tuple"),
    "empty dict": (lambda out: {}, "returns an empty dict"),
    "logits of two": (lambda out: {"logits": (out, out)}, "returns a dict with the keys logits"),
    "tuple of tuples": (lambda out: ((out, out), out), "returns a tuple of 2"),
    "text": (lambda out: "logits", "returns a str"),
    "nothing": (lambda out: None, "returns a NoneType"),
    "hidden states first": (lambda out: (out[:, None].expand(-1, 5, -1), out), r"returns shape \(2, 5, 2\) for 2 rows"),
}


class Net(nn.Module):
    def __init__(self, way: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.way = nn.Linear(4, 2), way

    def forward(self, x: Tensor) -> Any:
        return self.way(torch.tanh(self.layer(x)))


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_found(way: str) -> None:
    module, x = Net(WAYS[way]), torch.randn(5, 4)
    model = from_user(module, (4,), 2, "own")
    torch.testing.assert_close(model.logits(model.start, x), torch.tanh(module.layer(x)))
    assert torch.equal(logits_of(module(x)), torch.tanh(module.layer(x)))
    assert model.layout.names == ("layer.weight", "layer.bias")
    assert model.module.order == "first"


@pytest.mark.parametrize("case", REFUSED)
def test_other_outputs_are_refused_in_one_line(case: str) -> None:
    way, words = REFUSED[case]
    with pytest.raises(HushError, match=words) as caught:
        from_user(Net(way), (4,), 2, "own")
    assert "\n" not in str(caught.value)


def test_an_output_that_mixes_behind_the_wrapper_is_refused() -> None:
    with pytest.raises(HushError, match="reduces over the examples"):
        from_user(Net(lambda out: {"logits": out - out.mean(0)}), (4,), 2, "own")
