"""Wrong values of all kinds, for every key of a config and every argument of Python: one line, and nothing is written.

The cases are made, not listed: each key and each argument is given each value, and some of them on the command line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from torch import nn

import hush
from hush.config import Config
from hush.seeds import rng

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 7, 10**30, -0.5, 1.5, 1e400, float("nan"), "", "nonsense", "nowhere.csv", "no_module:no_name",
    "a\nb", [], [-1], ["a", None], [[1, 2], [3]], {}, {"a": 1}, {"name": "nonsense"}, {"rule": 5}, {1: 2},
)  # fmt: skip
# What only Python can give.
ODD: tuple[Any, ...] = (
    object(), print, dict, np.ones((2, 0)), np.array(["a"]), b"bytes", 1j, {1, 2}, ValueError("no"), nn.Linear(3, 2),
    Path("nowhere"), Path("\0"), (1, 2, 3), iter([]), lambda: 1,
)  # fmt: skip
RAW: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "synthetic", "samples": 60, "clients": 2},
    "privacy": {"budgets": 5.0},
    "local": {"batch_size": 8, "lr": 0.1},
    "recipe": {"name": "dp-fedavg"},
}
SLOTS = ("protect", "local", "assign", "project", "weight", "step")
X = rng(0, "mistakes").normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 2
ON_THE_COMMAND_LINE = 24
COMMANDS = (("run", "--out", "run"), ("sweep", "--grid", "privacy.clip=1,2", "--out", "all"))


def keys(model: type[BaseModel] = Config, above: str = "") -> Iterator[str]:
    """All keys of the config, and the tables."""
    for name, field in model.model_fields.items():
        key, kind = f"{above}{field.alias or name}", field.annotation
        yield key
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{key}.")


KEYS = (*keys(), *(f"recipe.{slot}" for slot in SLOTS))


def with_value(key: str, value: Any) -> dict[str, Any]:
    table, _, name = key.rpartition(".")
    return {**RAW, **({table: {**RAW.get(table, {}), name: value}} if table else {name: value})}


def refusals(
    acts: dict[str, Callable[[], object]], folder: Path, kinds: tuple[type[Exception], ...] = (hush.HushError,)
) -> dict[str, str]:
    """The errors of those that are refused, each one line with nothing written. Any other error fails the test."""
    found = {}
    for name, act in acts.items():
        try:
            act()
        except kinds as error:
            found[name] = str(error)
            assert found[name].strip() and "\n" not in found[name] and len(found[name]) < 1000, (name, found[name])
            assert list(folder.iterdir()) == [], name
        except BaseException as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    return found


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_key_is_given_every_value(empty: Path) -> None:
    assert {"rounds", "data.schema", "objective.target_bounds", "engine.strict", "recipe.step"} <= set(KEYS)

    def preview(key: str, value: Any) -> Callable[[], object]:
        return lambda: hush.preview(with_value(key, value))

    found = refusals({f"{key} = {value!r}": preview(key, value) for key in KEYS for value in VALUES}, empty)
    assert len(found) > 1300
    # Errors name the key, or the table that it is in.
    strange = [name for name, said in found.items() if name.partition(".")[0].partition(" ")[0] not in said]
    assert [each for each in strange if "7" not in each and f"{10**30}" not in each] == []


def arguments_of(function: Callable[..., Any], beside: tuple[str, ...] = ()) -> list[str]:
    names = list(inspect.signature(function).parameters.values())
    return [each.name for each in names if each.name not in ("self", *beside) and each.kind != each.VAR_KEYWORD]


def test_every_argument_of_a_simulation_is_given_every_value(empty: Path) -> None:
    base: dict[str, Any] = {
        "data": (X, Y),
        "clients": 2,
        "recipe": "dp-fedavg",
        "rounds": 1,
        "lr": 0.1,
        "batch_size": 8,
    }

    def preview(name: str, value: Any) -> Callable[[], object]:
        return lambda: hush.Simulation(**{**base, name: value}).preview()

    def fit(name: str, value: Any) -> Callable[[], object]:
        return lambda: hush.Simulation(**base).fit(**{"progress": False, name: value})

    names = arguments_of(hush.Simulation)
    assert len(names) > 30
    acts = {f"{name} = {value!r}": preview(name, value) for name in names for value in (*VALUES, *ODD)}
    # The names of `fit` that are paths accept most texts.
    no_paths: tuple[Any, ...] = (7, True, b"", [], {}, "a\0b", 1j)
    no_functions: tuple[Any, ...] = (7, "text", [7], object(), {"a": 1})
    acts |= {f"fit {n} = {v!r}": fit(n, v) for n in ("out", "ledgers") for v in no_paths}
    acts |= {f"fit callbacks = {value!r}": fit("callbacks", value) for value in no_functions}
    assert len(refusals(acts, empty)) > 1000


def test_every_argument_of_an_estimator_is_given_every_value(empty: Path) -> None:
    base: dict[str, Any] = {
        "rounds": 1,
        "n_clients": 2,
        "recipe": "dp-fedavg",
        "bounds": (-4.0, 4.0),
        "random_state": 0,
    }
    kinds: tuple[Any, ...] = (hush.FederatedClassifier, hush.FederatedRegressor)
    values: tuple[Any, ...] = (-1, "nonsense", [], {"a": 1}, object(), 1e400)

    def fit(kind: Any, name: str, value: Any) -> Callable[[], object]:
        return lambda: kind(**{**base, name: value}).fit(X, Y)

    acts = {
        f"{kind.__name__} {name} = {value!r}": fit(kind, name, value)
        for kind in kinds
        for name in arguments_of(kind)
        for value in values
    }
    # scikit-learn wants ValueError and TypeError for its own conventions.
    assert len(refusals(acts, empty, (hush.HushError, ValueError, TypeError))) > 120


def test_wrong_data_is_one_line(empty: Path) -> None:
    clients = hush.data.clients

    def read(*given: Any, **more: Any) -> Callable[[], object]:
        return lambda: clients(*given, **more)

    acts = {f"data = {value!r}": read(value) for value in (*VALUES, *ODD)}
    acts |= {f"y = {value!r}": read(X, value) for value in (*VALUES, *ODD)}
    pair = ("clients", "partition", "label", "client", "schema", "classes", "targets")
    assert set(pair) <= set(arguments_of(clients))
    acts |= {f"{name} = {value!r}": read(X, Y, **{name: value}) for name in pair for value in (*VALUES, *ODD)}
    acts |= {
        "lengths": read(X, Y[1:]), "no rows": read(X[:0], Y[:0]), "text": read(np.full((60, 4), "a"), Y),
        "NaN": read(np.full((60, 4), np.nan), Y), "objects": read(np.full((60, 4), object()), Y),
        "widths": read({"a": (X, Y), "b": (X[:, 1:], Y)}), "an empty client": read({"a": (X, Y), "b": (X[:0], Y[:0])}),
        "owners": read(X, Y, clients=["a"] * 59), "three": read([(X, Y, Y)]),
    }  # fmt: skip
    assert len(refusals(acts, empty)) > 200


FILES = {
    "empty.csv": b"",
    "head.csv": b"a,label\n",
    "blank.csv": b"a,label\n1,0\n,1\n",
    "text.csv": b"a,label\nx,0\ny,1\n",
    "ragged.csv": b"a,label\n1,0\n1,2,3\n",
    "twice.csv": b"a,a,label\n1,2,0\n1,2,1\n",
    "none.csv": b"a,b\n1,0\n2,1\n",
    "bytes.csv": bytes(range(256)),
    "bytes.npz": b"PK\x03\x04",
    "bytes.parquet": b"PAR1",
    "rows.txt": b"a,label\n1,0\n",
}


@pytest.mark.parametrize(("name", "content"), FILES.items(), ids=FILES)
def test_wrong_files_are_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    file = tmp_path / "in" / name
    both = {
        "clients": lambda: hush.data.clients(file, label="label"),
        "schema": lambda: hush.data.infer_schema(file, label="label"),
        "run": lambda: hush.simulate(
            {**RAW, "data": {"files": str(file), "label": "label"}}, out=tmp_path / "out" / "run"
        ),
    }
    found = refusals(both, tmp_path / "out")
    assert {"clients", "run"} <= found.keys()


def test_wrong_rows_and_directories_of_a_trained_model_are_one_line(tmp_path: Path) -> None:
    result = hush.Simulation((X, Y), clients=2, recipe="dp-fedavg", rounds=1, batch_size=8).fit(progress=False)
    result.save(tmp_path / "model")
    empty = tmp_path / "empty"
    empty.mkdir()

    def predict(x: Any, **more: Any) -> Callable[[], object]:
        return lambda: result.predict(x, **more)

    def load(directory: Any) -> Callable[[], object]:
        return lambda: hush.load(directory)

    rows = {
        "narrow": X[:, 1:],
        "flat": X[0, :3],
        "text": np.full((3, 4), "a"),
        "wide": np.ones((3, 5)),
        "cube": X[None],
    }
    acts = {f"predict {name}": predict(x) for name, x in rows.items()}
    acts |= {f"predict {value!r}": predict(value) for value in (*VALUES, *ODD)}
    nobody: tuple[Any, ...] = ("nobody", 7, -1, [], 1.5, object())
    nowhere: tuple[Any, ...] = (None, 7, "", "nowhere", [], b"", "a\0b", empty, X)
    acts |= {f"client = {value!r}": predict(X, client=value) for value in nobody}
    acts |= {f"load {value!r}": load(value) for value in nowhere}
    assert set(acts) - set(refusals(acts, empty)) == set()
    for file in sorted((tmp_path / "model").iterdir()):
        kept = file.read_bytes()
        for changed in (b"", kept[: len(kept) // 2], b"{}", kept[:-3] + b"abc"):
            file.write_bytes(changed)
            assert refusals({file.name: load(tmp_path / "model")}, empty)
        file.write_bytes(kept)
    hush.load(tmp_path / "model")


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")
def test_a_sample_on_the_command_line_ends_with_status_2(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hush.cli.main import main

    Path("run.toml").write_text(
        "rounds = 1\n[data]\nname = 'synthetic'\nsamples = 60\nclients = 2\n[local]\nbatch_size = 8\n"
    )
    wrong = [
        (key, text) for key in KEYS for text in ("-1", "nan", "nonsense", "[]", "{a = 1}", '"a\\nb"')
        if not accepted(key, text)
    ]  # fmt: skip
    step = len(wrong) // ON_THE_COMMAND_LINE
    for number, (key, text) in enumerate(wrong[::step]):
        command, *more = COMMANDS[number % len(COMMANDS)]
        monkeypatch.setattr(sys, "argv", ["hush", command, "run.toml", *more, "--set", f"{key}={text}"])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert (caught.value.code, printed.out, printed.err.count("\n")) == (2, "", 1), (key, text, printed)
        assert printed.err.startswith("hush: error: ") and "--set" in printed.err
        assert [path.name for path in empty.iterdir()] == ["run.toml"]


def accepted(key: str, text: str) -> bool:
    """Whether a config may have this."""
    try:
        hush.preview("run.toml", overrides=[f"{key}={text}"])
    except hush.HushError:
        return False
    return True
