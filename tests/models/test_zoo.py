from __future__ import annotations

import pytest
import torch
from torch import nn

from hush.config import ModelConfig
from hush.models import build_model, from_module, unflatten
from hush.types import HushError

IMAGE = (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("logreg", IMAGE, 7_850),
        ("mlp", IMAGE, 784 * 200 + 200 + 200 * 10 + 10),
        ("cnn", IMAGE, 28_938),
        ("scattering-linear", IMAGE, 81 * 49 * 10 + 10),
        ("resnet18-gn", (3, 32, 32), 11_181_642),
        ("resnet34-gn", (3, 32, 32), 21_289_802),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], parameters: int) -> None:
    model = build_model(ModelConfig(name=name), shape, 10, seed=1)
    assert model.layout.size == parameters == len(model.start)
    x = torch.zeros(2, *shape)
    features = model.features(x) if model.features else x
    assert model.logits(model.start, features).shape == (2, 10)


def test_start_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = build_model(ModelConfig(name="cnn"), IMAGE, 10, seed=1).start
    state = torch.random.get_rng_state()
    same, other = (build_model(ModelConfig(name="cnn"), IMAGE, 10, seed=s).start for s in (1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state()), "building a model must leave global random state alone"


def test_start_has_the_spread_of_pytorch_defaults() -> None:
    model = build_model(ModelConfig(name="mlp"), IMAGE, 10, seed=1)
    weight = unflatten(model.start, model.layout)["1.weight"]
    assert weight.abs().max() <= 784**-0.5
    assert weight.std().item() == pytest.approx(784**-0.5 / 3**0.5, rel=0.02)


def test_unflatten_keeps_leading_axes() -> None:
    model = build_model(ModelConfig(name="logreg"), (4,), 3, seed=1)
    parts = unflatten(model.start.repeat(5, 2, 1), model.layout)
    assert parts["1.weight"].shape == (5, 2, 3, 4)
    assert torch.equal(parts["1.bias"][4, 1], model.start[12:])


class _Centred(nn.Module):
    """Mixes examples without any layer whose name says so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "BatchNorm1d.*mixes the examples.*GroupNorm"),
        (nn.Flatten(), "no trainable parameters"),
        (nn.Linear(5, 3), "fails on inputs of shape"),
        (_Centred(), "aten.mean.dim: reduces over the examples"),
        (nn.Sequential(nn.Linear(4, 3), nn.InstanceNorm1d(3, track_running_stats=True)), "keeps state|fails"),
    ],
)
def test_refused_modules(module: nn.Module, words: str) -> None:
    with pytest.raises(HushError, match=words):
        from_module(module, (4,))


def test_frozen_parameters_stay_where_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    model = from_module(module, (4,))
    assert model.layout.names == ("1.weight", "1.bias")


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(HushError, match=r"model.name: unknown model 'cn'; did you mean cnn\?"):
        build_model(ModelConfig(name="cn"), IMAGE, 10, seed=1)


def test_images_only() -> None:
    for name in ("cnn", "scattering-linear", "resnet18-gn"):
        with pytest.raises(HushError, match="needs images"):
            build_model(ModelConfig(name=name), (40,), 10, seed=1)
