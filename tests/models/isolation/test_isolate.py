"""Isolation by construction: a user's module keeps the examples of a batch apart, or is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hush.config import Config, ModelConfig
from hush.models import Model, build_model, from_module
from hush.models.isolation import TracedModule
from hush.models.model import wrap
from hush.privacy import noise
from hush.privacy.plan import PrivacyPlan
from hush.training.queries import bounded_losses
from hush.training.select import clipped_sums
from hush.training.train import Job, train
from hush.types import HushError
from tests.support.mixing_modules import ISOLATED, MIXING, ROW, Between, Scaled, Shape, examples, extreme, late

ROWS = 64
SLACK = 1e-7
_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=_CUDA)]


def adopted(module: nn.Module, shape: Shape) -> Model:
    """The module in float64, so that rounding does not hide what mixes."""
    model = from_module(module, shape, examples=examples(shape, 8))
    return replace(model, start=model.start.double())


def move(model: Model, shape: Shape, shift: float, device: str = "cpu") -> float:
    """How far one added row moves the clipped sum, in clips; parameters as if trained."""
    model.module.to(device)
    vector = model.start + shift * torch.randn(model.start.shape, generator=torch.Generator().manual_seed(1)).double()
    rows, labels = examples(shape, ROWS, seed=3), torch.zeros(ROWS + 1, dtype=torch.long)
    x = torch.cat([extreme(shape), rows])

    def total(first: int) -> Tensor:
        batch = x[first:][None], labels[first:][None], torch.ones(1, ROWS + 1 - first, dtype=torch.bool)
        given = [t.to(device) for t in (vector[None], *batch, torch.ones(1, dtype=torch.float64))]
        return clipped_sums(model, *given)[0]  # type: ignore[arg-type]

    return float((total(0) - total(1)).norm())


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MIXING)
def test_a_module_that_mixes_examples_is_refused_or_isolated(name: str, device: str) -> None:
    build, shape = MIXING[name]
    torch.manual_seed(0)
    try:
        model = adopted(build(), shape)
    except HushError as error:
        assert "\n" not in str(error)
        return
    assert max(move(model, shape, shift, device) for shift in (0.0, 0.5)) <= 1.0 + SLACK


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ISOLATED)
def test_a_module_that_keeps_examples_apart_runs(name: str, device: str) -> None:
    build, shape = ISOLATED[name]
    torch.manual_seed(0)
    module = build()
    model = adopted(module, shape)
    x = examples(shape, 5, seed=4)
    torch.testing.assert_close(model.logits(model.start, x), module.double()(x), rtol=1e-9, atol=1e-9)
    assert max(move(model, shape, shift, device) for shift in (0.0, 0.5)) <= 1.0 + SLACK


def test_a_network_that_amplifies_rounding_runs() -> None:
    """Recurrent networks with large weights are chaotic: batches of other sizes are rounded differently."""

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.layer(x)[0][:, -1])

    torch.manual_seed(0)
    model = from_module(Long(), (40, 8))
    plan = PrivacyPlan(
        samples=8, batch=8, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation="add-remove", accountant="pld"
    )
    job = Job(vector=30 * model.start, first_row=0, plan=plan, lr=0.1, source=noise.Seeded(0, 0, 1))
    (update,) = train(model, examples((40, 8), 8).float(), torch.zeros(8, dtype=torch.long), [job])
    assert bool(update.isfinite().all())


def test_vmap_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    model = from_module(nn.Sequential(Squared(), nn.Linear(3, 3)), ROW)
    assert isinstance(model.module, TracedModule)
    model.logits(model.start, examples(ROW, 4).float())
    assert capfd.readouterr() == ("", "")


class Squared(nn.Module):
    """A layer for which vmap has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(12, 12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, torch.tanh(x))


@pytest.mark.parametrize("method", ["forward", "_call_impl"])
def test_layers_with_methods_of_their_own_are_not_plain(method: str) -> None:
    assert isinstance(from_module(late(method), ROW).module, TracedModule)


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
@pytest.mark.parametrize(("name", "number"), [("time before batch", 5), ("PReLU", 2), ("one hot", 2), ("words", 5)])
def test_two_clients_keep_their_own_parameters(name: str, number: int) -> None:
    """With as many steps or clients as examples, a batch axis in the wrong place would go unnoticed."""
    build, shape = ISOLATED[name]
    torch.manual_seed(0)
    model = adopted(build(), shape)
    clips = torch.ones(2, dtype=torch.float64)
    vectors = torch.stack([model.start, model.start + 0.3])
    x, y = examples(shape, 2 * number).unflatten(0, (2, number)), torch.zeros(2, number, dtype=torch.long)
    if name == "words":
        x[:, 1:, 0] = -1.0  # counted from the end
    mask = torch.ones(2, number, dtype=torch.bool)
    found = clipped_sums(model, vectors, x, y, mask, clips)
    for client in range(2):
        each = [
            clipped_sums(model, vectors[client, None], x[client, i][None, None], y[:1, :1], mask[:1, :1], clips[:1])[0]
            for i in range(number)
        ]
        torch.testing.assert_close(found[client], torch.stack(each).sum(0), rtol=1e-9, atol=1e-9)


def test_own_python_code_never_runs_after_adoption() -> None:
    calls: list[int] = []

    def counted(h: Tensor) -> Tensor:
        calls.append(len(h))
        return h

    model = from_module(Between(counted), ROW)
    before = len(calls)
    model.logits(model.start, examples(ROW, 9).float())
    assert isinstance(model.module, TracedModule)
    assert len(calls) == before


def test_plain_layers_stay_as_they_are_and_the_users_module_is_not_changed() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = from_module(module, (4,))
    assert isinstance(model.module, nn.Sequential)
    assert model.module is not module
    assert all(value.requires_grad for value in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_whole_numbers_among_the_parameters_are_taken_along() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.offset = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x) + self.offset

    module = Offset()
    x = examples((4,), 6).float()
    model = from_module(module, (4,))
    torch.testing.assert_close(model.logits(model.start, x), module(x))


def test_constant_buffers_and_frozen_weights_are_taken_along() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.arange(4.0))
            self.frozen, self.out = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.frozen(x + self.shift)))  # type: ignore[operator]

    module = Fixed()
    model = from_module(module, (4,))
    x = examples((4,), 6).float()
    assert model.layout.names == ("out.weight", "out.bias")
    torch.testing.assert_close(model.logits(model.start, x), module(x))
    other = from_module(Fixed(), (4,))
    assert str(model.module) != str(other.module)


def test_a_cluster_choice_is_isolated_too() -> None:
    """Losses of one batch may not depend on each other, or a noised choice would not be private."""
    bound = 4.0
    try:
        model = from_module(MIXING["any NaN in the batch"][0](), ROW)
    except HushError:
        return
    x, y = examples(ROW, 200).float() * 0.1, torch.zeros(200, dtype=torch.long)
    other = x.clone()
    other[0] = float("nan")
    vectors = torch.stack([3 * model.start, -3 * model.start])
    moved = bounded_losses(model, vectors, x, y, bound) - bounded_losses(model, vectors, other, y, bound)
    assert float(moved.norm()) <= bound * math.sqrt(2) * (1 + 1e-9)


def test_training_checks_again_whatever_was_proved() -> None:
    """A model that claims to be isolated and is not: no update comes out."""
    wrong = wrap("wrong", Between(lambda h: h - h.mean(0)), None, isolated=True)
    model = replace(wrong, probes=examples(ROW, 8))
    plan = PrivacyPlan(
        samples=8, batch=8, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation="add-remove", accountant="pld"
    )
    job = Job(vector=model.start, first_row=0, plan=plan, lr=0.1, source=noise.Seeded(0, 0, 1))
    with pytest.raises(HushError, match="depends on the other examples of its batch"):
        train(model, examples(ROW, 8).float(), torch.zeros(8, dtype=torch.long), [job])


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        ("forward_hook", lambda part, given, out: out - out.mean(0)),
        ("forward_pre_hook", lambda part, given: (given[0] - given[0].mean(0),)),
        ("full_backward_hook", lambda part, found, given: tuple(None if g is None else g + g.sum(0) for g in found)),
        ("full_backward_pre_hook", lambda part, given: tuple(None if g is None else g + g.sum(0) for g in given)),
    ],
)
def test_hooks_for_all_modules_are_refused_before_and_after_a_model_is_made(
    register: str, hook: Callable[..., object]
) -> None:
    """Built-in models and plain layers of a user's, whose code PyTorch itself runs with such hooks."""
    layers = nn.Sequential(nn.Linear(ROW[0], 4), nn.ReLU(), nn.Linear(4, 3))
    model = from_module(layers, ROW)
    plan = PrivacyPlan(
        samples=8, batch=8, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation="add-remove", accountant="pld"
    )
    x, y = examples(ROW, 8).float(), torch.zeros(8, dtype=torch.long)

    def update(trained: Model, discrete: bool = False) -> Tensor:
        job = Job(
            vector=trained.start,
            first_row=0,
            plan=replace(plan, discrete=discrete),
            lr=0.1,
            source=noise.Seeded(0, 0, 1),
        )
        return train(trained, x, y, [job])[0]

    linear = build_model(ModelConfig(name="logreg"), ROW, 3, 0)
    assert linear.probes is None
    expected = update(linear)
    handle = getattr(torch.nn.modules.module, f"register_module_{register}")(hook)
    try:
        for use in (
            lambda: from_module(layers, ROW),
            lambda: build_model(Config().model, ROW, 3, 0),
            lambda: update(model),
            lambda: update(linear, discrete=True),
            lambda: bounded_losses(model, model.start[None], x, y, 2.0),
        ):
            with pytest.raises(HushError, match="for all modules of this process"):
                use()
        assert torch.equal(update(linear), expected), "the closed form runs no module, so no hook can mix rows"
    finally:
        handle.remove()
    assert from_module(layers, ROW).module is not None


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Scaled(), "control flow or a shape depends on the values"),
        (MIXING["running mean, attribute"][0](), "keeps state between calls, in mean"),
        (MIXING["wrong batch_first, attention"][0](), "attends to other examples|batch axis"),
        (MIXING["divided by the batch size"][0](), "computed from the batch size"),
        (MIXING["one noise for the batch"][0](), "uses random numbers"),
        (MIXING["numbers of the examples as columns"][0](), "index of an example in its batch"),
        (MIXING["memory that was not written"][0](), "memory that was not written|different outputs"),
        (MIXING["an operation of its own"][0](), "not an operation of PyTorch's own"),
        (MIXING["an operation with a vmap of its own"][0](), "not an operation of PyTorch's own"),
        (MIXING["centred by the first batch"][0](), "keeps state between calls, in mean"),
        (MIXING["a backward pass of its own"][0](), "gradients differ from those"),
    ],
)
def test_a_refusal_says_why(module: nn.Module, words: str) -> None:
    shape = (5, 8) if hasattr(module, "layer") else ROW
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HushError, match=words):
            from_module(module, shape)


class Assigned(nn.Module):
    """Writes a parameter into its rows, for which vmap over clients has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.part = nn.Linear(12, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x.clone()
        h[:, 2:5] = self.part
        return self.inner(h)


@pytest.mark.filterwarnings("ignore:model custom.*slow path")
def test_gradients_that_cannot_be_computed_example_by_example_are_refused_in_one_line() -> None:
    model = from_module(Assigned(), ROW)
    plan = PrivacyPlan(
        samples=8, batch=8, epochs=1, rounds=1, clip=1.0, noise_multiplier=1.0, relation="add-remove", accountant="pld"
    )
    jobs = [
        Job(vector=model.start, first_row=0, plan=plan, lr=0.1, source=noise.Seeded(0, client, 1))
        for client in range(2)
    ]
    x, y = examples(ROW, 8).float(), torch.zeros(8, dtype=torch.long)
    try:
        updates = train(model, x, y, jobs)
    except HushError as error:
        assert "\n" not in str(error)
    else:
        assert all(update.isfinite().all() for update in updates)
