"""What a new user gets wrong is one line that says what is accepted; a user's module is never changed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.data import Dataset, from_arrays

RAW: dict[str, Any] = {
    "rounds": 1,
    "data": {"clients": 2},
    "privacy": {"budgets": 5.0},
    "local": {"batch_size": 8},
    "recipe": {"name": "dp-fedavg"},
}
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 2
_DOUBLES = Dataset(name="doubles", x=X.astype(float), y=Y, classes=2)


class Net(nn.Module):
    """One layer, and whatever becomes of its output."""

    def __init__(self, then: Callable[[Tensor], object] = lambda out: out) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(4, 2), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.layer(x))


class CopiesItself(nn.Linear):
    """A copy of it is itself, so that a later hook of the user's would run in training."""

    def __deepcopy__(self, memo: object) -> CopiesItself:
        return self


class Uninitialised(nn.Module):
    """Without the `__init__` of `nn.Module`."""

    def __init__(self) -> None:
        self.width = 4


class EvenBatches(Net):
    """Takes batches of two and of eight, and no odd ones."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.reshape(2, -1, 4)).reshape(-1, 2)


def changed(module: nn.Module, change: Callable[[Any], object]) -> nn.Module:
    change(module)
    return module


def with_tables(**tables: Any) -> dict[str, Any]:
    return {**RAW, **{name: {**RAW.get(name, {}), **values} for name, values in tables.items()}}


def own(model: Any, labels: np.ndarray = Y, **more: Any) -> object:
    return hush.simulate(RAW, dataset=from_arrays(X, labels), model=model, out="run", **more)


BAD_MODULES: dict[str, tuple[Callable[[], Any], str]] = {
    "dict": (lambda: Net(lambda out: {"a": out, "b": out}), 'returns a dict with the keys a, b; accepted: .*"logits"'),
    "tuple": (lambda: Net(lambda out: ("logits", out)), "returns a tuple of 2"),
    "recurrent": (lambda: nn.GRU(4, 2), "the batch is on its time axis|example"),
    "flat output": (lambda: Net(lambda out: out[:, 0]), r"returns shape \(2,\)"),
    "predictions": (lambda: Net(lambda out: (out > 0).long()), "returns torch.int64"),
    "class": (lambda: Net, r"found the class Net; accepted: an instance, Net\(\.\.\.\)"),
    "function": (lambda: lambda x: x, "found function; accepted: an instance of torch.nn.Module"),
    "name": (lambda: "mlp", "found str"),
    "lazy": (lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(2)), "lazy layers get no sizes"),
    "meta": (lambda: nn.Linear(4, 2, device="meta"), "meta device"),
    "complex": (lambda: nn.Linear(4, 2, dtype=torch.complex64), "complex64"),
    "NaN": (lambda: changed(Net(), lambda net: net.layer.bias.data.fill_(torch.nan)), "NaN"),
    "inputs": (lambda: nn.Linear(5, 2), r"fails on inputs of shape \(2, 4\)"),
    "image layer": (lambda: nn.Conv2d(1, 2, 3), "fails on inputs"),
    "no forward": (lambda: nn.Module(), "forward"),
    "empty": (lambda: nn.Sequential(), "no trainable parameters"),
    "frozen": (lambda: changed(Net(), lambda net: net.requires_grad_(False)), "no trainable parameters"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), "BatchNorm1d"),
    "its own copy": (lambda: CopiesItself(4, 2), "a copy shares layers or weights"),
    "a part that is its own copy": (lambda: nn.Sequential(CopiesItself(4, 2), nn.Tanh()), "a copy shares layers"),
    "even batches": (EvenBatches, "fails on a batch of 7 examples"),
    "sparse output": (lambda: Net(lambda out: out.to_sparse()), "returns a tensor of layout torch.sparse_coo"),
    "no copy": (lambda: changed(Net(), lambda net: setattr(net, "log", sys.stdout)), "cannot be copied"),
}


@pytest.mark.parametrize("case", BAD_MODULES)
def test_modules_that_do_not_do_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = BAD_MODULES[case]
    module = make()
    before = state_of(module) if isinstance(module, nn.Module) else None
    with pytest.raises(hush.HushError, match=words) as caught:
        own(module)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert before is None or same(before, state_of(module))


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "labels from 1": (lambda: from_arrays(X, Y + 1), "labels run from 1 to 2; .* y - 1, or classes = 3"),
    "labels from 1, smaller model": (lambda: own(Net(), Y + 1), "labels run from 1 to 2"),
    "too few outputs": (lambda: own(Net(), np.arange(60) % 3), "2 logits per row, the labels have 3 classes"),
    "negative labels": (lambda: from_arrays(X, Y - 1), "label -1"),
    "float labels": (lambda: from_arrays(X, Y.astype(float)), "y is float64; accepted: .* y of integers"),
    "labels as text": (lambda: from_arrays(X, np.array(["a", "b"] * 30)), "y of integers"),
    "one-hot labels": (lambda: from_arrays(X, np.eye(2, dtype=int)[Y]), r"\(n,\) for y"),
    "lengths": (lambda: from_arrays(X, Y[1:]), r"\(60, 4\) of x, \(59,\) of y"),
    "no rows": (lambda: from_arrays(X[:0], Y[:0]), "shapes"),
    "ragged rows": (lambda: from_arrays([[1.0], [1.0, 2.0]], [0, 1]), "not a regular array"),
    "a tensor with a gradient": (lambda: from_arrays(torch.ones(2, 2, requires_grad=True), [0, 1]), "detach"),
    "one array": (lambda: hush.simulate(RAW, dataset=X), "found ndarray; accepted: arrays x and y"),
    "three arrays": (lambda: hush.simulate(RAW, dataset=(X, X, Y)), "found tuple of 3; accepted: arrays x and y"),
    "a Dataset of doubles": (lambda: hush.simulate(RAW, dataset=_DOUBLES), "from_arrays"),
    "more clients than rows": (
        lambda: hush.simulate(with_tables(data={"clients": 100}), dataset=from_arrays(X, Y)), "100 clients for 60 rows"
    ),
    "10^9 clients": (lambda: hush.simulate(with_tables(data={"clients": 10**9})), "data.clients: .*GiB"),
    "10^12 samples": (
        lambda: hush.simulate(with_tables(data={"name": "synthetic", "samples": 10**12})), "data.samples: .*GiB"
    ),
    "10^12 rounds": (lambda: hush.simulate({**RAW, "rounds": 10**12}), "rounds: .*GiB"),
    "hidden": (
        lambda: hush.simulate(with_tables(model={"name": "mlp", "hidden": 2_000_000_000})),
        "model.hidden: 150,000,000,010 parameters take at least 3,352.8 GiB; this machine has",
    ),
    "hidden, beyond 64 bits": (
        lambda: hush.simulate(with_tables(model={"name": "mlp", "hidden": 10**30})), "model.hidden"
    ),
    "clip beyond numbers": (
        lambda: hush.simulate(with_tables(privacy={"clip": 1e300})), "privacy.clip: expected less than or equal to"
    ),
    "clip of nothing": (lambda: hush.simulate(with_tables(privacy={"clip": 1e-300})), "privacy.clip: expected greater"),
    "a module without its __init__": (lambda: own(Uninitialised()), r"accepted: a class whose __init__ calls super"),
    "budget beyond numbers": (lambda: hush.simulate(with_tables(privacy={"budgets": 10**400})), "privacy.budgets"),
    "rate beyond numbers": (lambda: hush.simulate(with_tables(local={"lr": 1e300})), "local.lr: .* at most 1e[+]20"),
    "an override that is a number": (
        lambda: hush.simulate(RAW, overrides=[5]), "overrides: found 5; accepted: a list"  # type: ignore[list-item]
    ),
    "overrides that are a number": (
        lambda: hush.simulate(RAW, overrides=5), "overrides: found 5; accepted: a list"  # type: ignore[arg-type]
    ),
    "out is a number": (lambda: hush.simulate(RAW, out=5), "out: found 5; accepted: a path"),  # type: ignore[arg-type]
    "no such name of a directory": (lambda: hush.simulate(RAW, out="a\0b"), "out: found .*; accepted: a path"),
    "no such name of ledgers": (lambda: hush.simulate(RAW, ledgers="a\0b"), "ledgers: found .*; accepted: a path"),
    "no such name of a config": (lambda: hush.simulate("a\0b"), "config: found .*; accepted: a path"),
    "progress that is no function": (
        lambda: hush.simulate(RAW, progress=True), "progress: found bool; accepted: a function"  # type: ignore[arg-type]
    ),
    "measure of a number": (lambda: hush.measure(5), "directory: found 5; accepted: a path"),  # type: ignore[arg-type]
    "no config": (lambda: hush.simulate(None), "found NoneType; accepted: a Config, a mapping or the path"),
    "one override": (lambda: hush.simulate(RAW, overrides="rounds=2"), "overrides: .*accepted: a list"),
    "no recipe": (lambda: hush.compare(RAW, []), "recipes: none given"),
    "no axis": (lambda: hush.sweep(RAW, []), "--grid: expected KEY=VALUE"),
    "half a seed": (lambda: hush.compare(RAW, ["weiavg"], seeds=1.5), "integer"),  # type: ignore[arg-type]
    "resume of nothing": (lambda: hush.simulate(RAW, resume=True), "resume: requires out"),
    "compare, resume of nothing": (lambda: hush.compare(RAW, ["weiavg"], resume=True), "resume: requires out"),
    "ledgers in a file": (lambda: hush.simulate(RAW, out="run", ledgers=__file__), "cannot hold ledgers"),
    "measure of nothing": (lambda: hush.measure("nowhere"), "is nowhere a run directory"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_python_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    act, words = MISTAKES[case]
    with pytest.raises(hush.HushError, match=words) as caught:
        act()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "nothing may be half-written"


COMMANDS: dict[str, tuple[list[str], str]] = {
    "hidden": (["run", "run.toml", "--set", "model.name=mlp", "--set", "model.hidden=2000000000"], "model.hidden"),
    "clients": (["run", "run.toml", "--set", "data.clients=1000000000"], "GiB"),
    "dict": (["run", "run.toml", "--set", "model.name=own_models:as_dict"], "returns a dict with the keys a, b"),
    "class": (["run", "run.toml", "--set", "model.name=own_models:Plain"], "cannot be used"),
    "lazy": (["run", "run.toml", "--set", "model.name=own_models:lazy"], "lazy layers get no sizes"),
    "measure": (["measure", "."], "is . a run directory"),
    "directory for a config": (["run", "."], "cannot be read"),
}
OWN_MODELS = """
from torch import nn
class Plain(nn.Module):
    pass
class Dict(nn.Linear):
    def forward(self, x):
        out = super().forward(x.flatten(1))
        return {"a": out, "b": out}
def as_dict(shape, classes):
    return Dict(64, classes)
def lazy(shape, classes):
    return nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(classes))
"""


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")
@pytest.mark.parametrize("case", COMMANDS)
def test_mistakes_on_the_command_line_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    from hush.cli.main import main

    (tmp_path / "run.toml").write_text("rounds = 1\n[data]\nclients = 2\n")
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    arguments, words = COMMANDS[case]
    monkeypatch.setattr(sys, "argv", ["hush", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith("hush: error: ") and words in printed.err
    assert {path.name for path in tmp_path.iterdir()} <= {"run.toml", "own_models.py", "__pycache__"}


def test_setting_up_many_clients_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(hush.HushError, match="100000 clients for 60 rows"):
        hush.simulate(with_tables(data={"clients": 100_000}), dataset=from_arrays(X, Y))
    assert "setting up 100,000 clients: about 30 s and 1.5 GiB" in caplog.text


def test_the_documented_way_to_own_arrays_works() -> None:
    hush.__dict__.pop("data", None)
    assert hush.data.from_arrays is from_arrays
    with pytest.raises(AttributeError, match="no attribute 'dta'"):
        _ = hush.dta


class Tied(nn.Module):
    """Two uses of one weight, and a part that is frozen and in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return out


def hooked() -> nn.Module:
    net = Net()
    net.layer.register_forward_hook(lambda module, inputs, out: out)
    net.layer.weight.grad = torch.ones(2, 4)
    net.computed = 2 * net.layer.weight
    return net


GOOD_MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 2),
    "sequence": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.LayerNorm(3), nn.Linear(3, 2)),
    "tied and frozen": Tied,
    "double": lambda: nn.Linear(4, 2).double(),
    "half": lambda: nn.Linear(4, 2).to(torch.bfloat16),
    "evaluation mode": lambda: Net().eval(),
    "dropout of nothing": lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0)),
}


def state_of(module: nn.Module) -> dict[str, Any]:
    """All of a module that a run could change."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lazy = {name for name, value in tensors.items() if torch.nn.parameter.is_lazy(value)}
    return {
        "values": {n: v.detach().clone() for n, v in tensors.items() if n not in lazy and not v.is_meta},
        "identities": {name: id(value) for name, value in tensors.items()},
        "kinds": {n: (v.dtype, v.device, v.requires_grad) for n, v in tensors.items()},
        "gradients": {
            n: None if v.grad is None else v.grad.clone() for n, v in module.named_parameters() if n not in lazy
        },
        "modes": {name: part.training for name, part in module.named_modules()},
        "hooks": {n: [list(getattr(p, kind)) for kind in HOOKS] for n, p in module.named_modules()},
        "attributes": {name: sorted(vars(part)) for name, part in module.named_modules()},
    }


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
        return bool(a == b)

    return equal(one, other)


@pytest.mark.parametrize("case", GOOD_MODULES)
def test_a_run_leaves_the_users_module_as_it_was(case: str) -> None:
    module = GOOD_MODULES[case]()
    before, drawn = state_of(module), torch.random.get_rng_state()
    first = hush.simulate(RAW, dataset=from_arrays(X, Y), model=module)
    assert same(before, state_of(module))
    again = hush.simulate(RAW, dataset=from_arrays(X, Y), model=module)
    assert again.accuracy_per_client == first.accuracy_per_client and again.loss == first.loss
    assert same(before, state_of(module))
    assert torch.equal(drawn, torch.random.get_rng_state())


def test_a_run_that_fails_leaves_the_users_module_as_it_was() -> None:
    def fails(record: Any) -> None:
        raise ZeroDivisionError

    hooks = hooked()
    before = state_of(hooks)
    with contextlib.suppress(hush.HushError):
        hush.simulate(RAW, dataset=from_arrays(X, Y), model=hooks)
    assert same(before, state_of(hooks))
    module = Tied()
    before = state_of(module)
    with pytest.raises(ZeroDivisionError):
        hush.simulate(RAW, dataset=from_arrays(X, Y), model=module, progress=fails)
    assert same(before, state_of(module))
    with pytest.raises(hush.HushError, match="batch_size"):
        hush.simulate(with_tables(local={"batch_size": 999}), dataset=from_arrays(X, Y), model=module)
    with pytest.raises(hush.HushError, match="different initial weights"):
        hush.simulate(with_tables(recipe={"name": "f-cdpfl"}), dataset=from_arrays(X, Y), model=module)
    assert same(before, state_of(module))
