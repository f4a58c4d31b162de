"""A network with trained weights as a plain PyTorch module, without the traced graph that it was trained as."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hush.models import Model, unflatten
from hush.models.inputs import UnpackedInputs, example_rows
from hush.models.validation import copied
from hush.seeds import rng
from hush.types import HushError, InputSpec

_PROBES = 2


class WithFeatures(nn.Module):
    """Fixed features, and the module that was trained behind them."""

    def __init__(self, features: Callable[[Tensor], Tensor], module: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output for the features of a batch."""
        out: Tensor = self.module(self.features(x))
        return out


def network_of(model: Model, vector: Tensor) -> nn.Module:
    """Return a model's own module with these weights, for rows as they are stored, in evaluation mode."""
    return filled(model, unflatten(vector.detach().cpu().to(torch.float32), model.layout))


def filled(model: Model, trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a network with these parameters; `fixed` are tensors that were not trained, by default the module's own.

    Raises:
        HushError: The module has other parameters than these.
    """
    network = copied(model.module if model.source is None else model.source, model.name)
    _assign(network, {**trained, **(fixed or {})}, model.name, complete=fixed is not None)
    for name, value in network.named_parameters():
        value.requires_grad_(name in trained)
    own_module(network).eval()
    network = network if model.features is None else WithFeatures(model.features, network)
    return network.eval()


def own_module(network: nn.Module) -> nn.Module:
    """Return the module as its user wrote it, with inputs of their own shapes and types; it shares the weights."""
    return network.own if isinstance(network, UnpackedInputs) else network


def fixed_of(network: nn.Module, trained: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the parameters and buffers of a network that were not trained, and are stored with it."""
    inner = network.module if isinstance(network, WithFeatures) else network
    parameters = dict(inner.named_parameters())
    # Tied weights have several names in a state.
    addresses = {parameters[name].data_ptr() for name in trained}
    state = inner.state_dict()
    return {
        name: value.detach().cpu().clone().contiguous()
        for name, value in state.items()
        if isinstance(value, Tensor) and name not in trained and value.data_ptr() not in addresses
    }


@torch.no_grad()
def probe_outputs(network: nn.Module, shape: tuple[int, ...], inputs: InputSpec | None) -> list[list[float]]:
    """Return the outputs of a network for fixed synthetic rows; an empty list if it fails on all of them."""
    if inputs is not None:
        tried = [example_rows(inputs, _PROBES)]
    else:
        drawn = torch.from_numpy(rng(0, "probe").normal(size=(_PROBES, *shape))).to(torch.float32)
        tried = [drawn, (drawn > 0).to(torch.float32), torch.zeros_like(drawn)]
    for rows in tried:
        try:
            found: list[list[float]] = network(rows).to(torch.float64).reshape(_PROBES, -1).tolist()
        except Exception:  # a module that looks up tokens fails on random numbers
            continue
        return found
    return []


@torch.no_grad()
def _assign(network: nn.Module, tensors: Mapping[str, Tensor], name: str, *, complete: bool) -> None:
    parameters = dict(network.named_parameters())
    places = {**parameters, **dict(network.named_buffers())}
    apart = [
        *(key for key in tensors if key not in places),
        *(key for key in parameters if complete and key not in tensors),
    ]
    if apart:
        raise HushError(
            f"model {name}: its parameters are not those of the trained one, which differs in "
            f"{', '.join(apart)[:200]}; accepted: the module that was trained"
        )
    for key, value in tensors.items():
        if places[key].shape != value.shape:
            raise HushError(
                f"model {name}: {key} has shape {tuple(places[key].shape)}, the trained one {tuple(value.shape)}; "
                "accepted: the module that was trained"
            )
        places[key].copy_(value)
