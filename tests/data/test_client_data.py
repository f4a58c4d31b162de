"""All that `hush.data.clients` accepts gives the same rows, and every mistake is one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import hush
from hush.data import ClientData, clients
from hush.data.targets import CLASSES_FROM_ROWS
from hush.seeds import rng
from hush.types import HushError, InputPart, InputSpec

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pytest.importorskip("pyarrow")

DRAW = rng(0, "client data")
X = DRAW.normal(size=(60, 3)).astype(np.float32)
Y = DRAW.integers(0, 2, 60)
WHO = np.repeat(["north", "south", "west"], 20)
FRAME = pandas.DataFrame({**{f"f{at}": X[:, at] for at in range(3)}, "out": Y, "site": WHO})


class ByNumber(TorchDataset[Any]):
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> Any:
        return self.x[at], int(self.y[at])


class Columns:
    """The interface of a Hugging Face dataset."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))


def parts() -> dict[str, tuple[Any, Any]]:
    return {who: (X[who == WHO], Y[who == WHO]) for who in ("north", "south", "west")}


def files(folder: Path, kind: str) -> str:
    for who, (x, y) in parts().items():
        table = pandas.DataFrame({**{f"f{at}": x[:, at] for at in range(3)}, "out": y})
        if kind == "csv":
            table.to_csv(folder / f"{who}.csv", index=False)
        elif kind == "parquet":
            table.sample(frac=1, axis=1, random_state=len(who)).to_parquet(folder / f"{who}.parquet")
        else:
            np.savez(folder / f"{who}.npz", x=x, out=y)
    return str(folder / f"*.{kind}")


def one_file(folder: Path, kind: str) -> ClientData:
    path = folder / f"all.{kind}"
    FRAME.to_csv(path, index=False) if kind == "csv" else FRAME.to_parquet(path)
    return clients(path, label="out", client="site")


WAYS: dict[str, Callable[[Path], ClientData]] = {
    "dict": lambda _: clients(parts()),
    "client column": lambda _: clients(X, Y, clients=WHO),
    "torch tensors": lambda _: clients(torch.from_numpy(X), torch.from_numpy(Y), clients=list(WHO)),
    "pandas": lambda _: clients(FRAME, label="out", client="site"),
    "polars": lambda _: clients(polars.from_pandas(FRAME), label="out", client="site"),
    "Hugging Face": lambda _: clients(
        Columns({name: FRAME[name].tolist() for name in FRAME}), label="out", client="site"
    ),
    "dict of frames": lambda _: clients(
        {who: group.drop(columns="site") for who, group in FRAME.groupby("site")}, label="out"
    ),
    "TensorDataset": lambda _: clients(
        {who: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for who, (x, y) in parts().items()}
    ),
    "torch Dataset": lambda _: clients({who: ByNumber(x, y) for who, (x, y) in parts().items()}),
    "csv files": lambda folder: clients(files(folder, "csv"), label="out"),
    "parquet files": lambda folder: clients(files(folder, "parquet"), label="out"),
    "npz files": lambda folder: clients(files(folder, "npz"), label="out"),
    "a csv file": lambda folder: one_file(folder, "csv"),
    "a parquet file": lambda folder: one_file(folder, "parquet"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_rows(tmp_path: Path, way: str) -> None:
    data = WAYS[way](tmp_path)
    assert data.names == ("north", "south", "west")
    assert data.sizes == {"north": 20, "south": 20, "west": 20}
    assert data.dataset.owner is not None
    for at, (x, y) in enumerate(parts().values()):
        own = data.dataset.owner == at
        assert np.array_equal(np.sort(data.dataset.x[own], axis=1), np.sort(x, axis=1))
        assert np.array_equal(data.dataset.y[own], y)
    assert data.dataset.not_covered == (CLASSES_FROM_ROWS,)
    assert data.dataset.x.dtype == np.float32 and data.dataset.inputs is None


def test_a_list_has_numbers_for_names_and_a_partition_shares_out() -> None:
    listed = clients(list(parts().values()), classes=2)
    assert listed.names == ("0", "1", "2") and listed.dataset.not_covered == ()
    shared = clients(X, Y, clients=4, partition={"name": "dirichlet", "alpha": 0.5})
    assert len(shared.names) == 4 and shared.dataset.owner is None
    result = hush.simulate({"rounds": 1, "local": {"batch_size": 4}}, dataset=shared)
    assert result.config["data"]["clients"] == 4 and result.clients == ()
    assert result.config["data"]["partition"] == {"name": "dirichlet", "alpha": 0.5}


def test_tokens_of_a_column_are_an_input_by_name() -> None:
    table = Columns({"ids": [[1, 2], [3, 4], [5, 6]], "mask": [[1, 0], [1, 1], [1, 0]], "label": [0, 1, 1]})
    data = clients(table)
    assert data.dataset.inputs == InputSpec("dict", (InputPart("ids", (2,), "int64"), InputPart("mask", (2,), "int64")))
    assert data.dataset.x.tolist() == [[1, 2, 1, 0], [3, 4, 1, 1], [5, 6, 1, 0]]


def test_labels_keep_what_they_stand_for() -> None:
    texts = clients(X, np.where(Y > 0, "ill", "well"), clients=3)
    assert texts.dataset.class_names == ("ill", "well")
    assert np.array_equal(texts.dataset.y, (Y == 0).astype(int))
    far = clients(X, np.where(Y > 0, -7, 40), clients=3, classes=[-7, 40])
    assert far.dataset.class_names == ("-7", "40") and far.dataset.not_covered == ()
    assert clients(X, Y.astype(float), clients=3, classes=2).dataset.targets == "classes"
    assert clients(X, X[:, 0], clients=3).dataset.targets == "continuous"
    several = clients(X, (X > 0).astype(int), clients=3).dataset
    assert several.targets == "multilabel" and several.y.shape == (60, 3)
    columns = clients(FRAME.assign(also=1 - Y), label=["out", "also"], client="site").dataset
    assert columns.targets == "multilabel" and columns.x.shape == (60, 3)


def broken(folder: Path) -> str:
    (folder / "north.csv").write_text("a,label\n1,0\n2,1\n")
    (folder / "south.csv").write_text("b,label\n1,0\n2,1\n")
    return str(folder / "*.csv")


def written(folder: Path, text: str) -> Path:
    (folder / "rows.csv").write_text(text)
    return folder / "rows.csv"


MISTAKES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda _: clients(None), "found NoneType; accepted: arrays x and y"),
    "an array alone": (lambda _: clients(X), "found ndarray"),
    "no clients": (lambda _: clients({}), "no clients"),
    "ragged": (lambda _: clients([[1.0], [1.0, 2.0]], [0, 1]), "not a regular array"),
    "ragged torch rows": (lambda _: clients([ByNumber([np.ones(2), np.ones(3)], [0, 1])]), "one shape"),
    "lengths": (lambda _: clients(X, Y[1:]), "60 rows of x, 59 of y"),
    "NaN": (lambda _: clients(np.where(X > 2, np.nan, X) * np.nan, Y), "row 0 contains NaN"),
    "texts": (lambda _: clients(np.array([["a"]] * 60), Y), "for texts, a table with a schema"),
    "large tokens": (lambda _: clients(np.full((60, 2), 1 << 24), Y), "2\\^24"),
    "an empty client": (lambda _: clients({"a": (X, Y), "b": (X[:0], Y[:0])}), "client 'b': 0 rows"),
    "a client of one row": (lambda _: clients(X, Y, clients=["a"] * 59 + ["b"]), "client 'b': 1 row"),
    "one name twice": (lambda _: clients({1: (X, Y), "1": (X, Y)}), "1 named twice"),
    "an unprintable name": (lambda _: clients({"a\n": (X, Y)}), "printable"),
    "shapes": (lambda _: clients({"a": (X, Y), "b": (X[:, :2], Y)}), "accepted: the same shapes and types"),
    "types": (lambda _: clients({"a": (X, Y), "b": (X.astype(int), Y)}), "int64"),
    "column of clients": (lambda _: clients(X, Y, clients=WHO[1:]), r"accepted: \(60,\)"),
    "partition alone": (lambda _: clients(X, Y, partition="iid"), "needs the number"),
    "unknown partition": (lambda _: clients(X, Y, clients=2, partition="idd"), "did you mean iid"),
    "both": (lambda _: clients(parts(), clients=3), "has its clients already"),
    "unknown label": (lambda _: clients(X, Y, classes=["a", "b"]), "not one of the classes; accepted: a, b"),
    "no label column": (lambda _: clients(FRAME, client="site"), "one column 'label'"),
    "no client column": (lambda _: clients(FRAME, label="out", client="bank"), "'bank'"),
    "a text column": (lambda _: clients(FRAME, label="out"), r"columns site hold texts.*\[data.schema\]"),
    "a blank label": (lambda d: clients(written(d, "a,label\n1,\n2,1\n")), "rows.csv:2: the label is blank"),
    "no file": (lambda d: clients(d / "none.csv"), "no such file"),
    "no match": (lambda d: clients(str(d / "*.csv")), "no file matches"),
    "a directory": (lambda d: clients(d), "a directory"),
    "unknown kind": (lambda d: clients(__file__), "unknown kind .py"),
    "not a Parquet file": (lambda d: clients(written(d, "x").rename(d / "x.parquet")), "not a Parquet file"),
    "not an archive": (lambda d: clients(written(d, "x").rename(d / "x.npz")), "not a NumPy archive"),
    "mixed columns": (lambda d: clients(broken(d)), "other columns than .*a, b in one alone"),
    "short line": (lambda d: clients(written(d, "a,label\n1\n")), "rows.csv:2: 1 columns"),
    "one column twice": (lambda d: clients(written(d, "a,a,label\n1,2,0\n")), "a stand twice"),
    "a number for a column": (lambda _: clients(FRAME, label=0), "label: .*accepted: a string"),  # type: ignore[arg-type]
    "a kind of targets": (lambda _: clients(X, Y, targets="classs"), "did you mean classes"),  # type: ignore[arg-type]
    "a schema for arrays": (
        lambda _: clients(X, Y, schema={"columns": {"a": {}}}), "names columns, and arrays have none"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, case: str) -> None:
    act, words = MISTAKES[case]
    with pytest.raises(HushError, match=words) as caught:
        act(tmp_path)
    assert "\n" not in str(caught.value)


RUN = {"rounds": 1, "local": {"batch_size": 4}, "recipe": {"name": "dp-fedavg"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"clients": 5}}, "data.clients: found 5, the data has 3 .north, south, west"),
        ({"data": {"sizes": [1, 2, 3]}}, r"data.sizes: .*\[20, 20, 20\]"),
        ({"data": {"partition": "iid"}}, "data.partition: .*owner"),
        ({"privacy": {"budgets": {"north": 1.0, "east": 2.0}}}, "called east; nothing for south, west; accepted:"),
        ({"local": {"batch_size": {"north": 4}}}, "local.batch_size: nothing for south, west"),
        ({"privacy": {"delta": {"north": 1e-5}}}, "privacy.delta: nothing for south, west"),
        ({"data": {"rows": "unit-norm", "files": "a.csv"}}, "data.files: given beside data"),
    ],
)  # fmt: skip
def test_what_follows_from_the_data_may_not_differ(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HushError, match=words):
        hush.simulate({**RUN, **changes}, dataset=parts())


def test_the_same_values_may_be_given() -> None:
    given = {"clients": 3, "sizes": [20, 20, 20], "partition": "owner"}
    assert hush.simulate({**RUN, "data": given}, dataset=parts()).clients == ("north", "south", "west")


def test_names_are_kept_everywhere(tmp_path: Path) -> None:
    config = {
        **RUN,
        "privacy": {"budgets": {"south": 4.0, "north": 0.5, "west": 1.0}, "delta": {"north": 1e-5, "south": 1e-4,
                                                                                  "west": 1e-6}},
        "local": {"batch_size": {"north": 4, "south": 8, "west": 2}},
    }  # fmt: skip
    result = hush.simulate(config, dataset=parts(), out=tmp_path / "run", ledgers=tmp_path / "ledgers")
    assert result.clients == ("north", "south", "west")
    cards = [(card.name, card.epsilon_budget, card.delta, card.batch_size) for card in result.guarantees]
    assert cards == [("north", 0.5, 1e-5, 4), ("south", 4.0, 1e-4, 8), ("west", 1.0, 1e-6, 2)]
    assert sorted(path.name for path in (tmp_path / "ledgers").glob("*.ledger")) == [
        "client-north.ledger", "client-south.ledger", "client-west.ledger",
    ]  # fmt: skip
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("north") >= 4
    with pytest.raises(hush.NothingTrainedError, match="3 clients"):
        # The ledgers know their clients by name, and all budgets are spent.
        hush.simulate(config, dataset=parts(), ledgers=tmp_path / "ledgers")


def test_files_from_a_config(tmp_path: Path) -> None:
    words = f'rounds = 1\n[data]\nfiles = "{files(tmp_path, "parquet")}"\nlabel = "out"\n[local]\nbatch_size = 4\n'
    (tmp_path / "run.toml").write_text(words + "[privacy]\nbudgets = {north = 1.0, south = 2.0, west = 3.0}\n")
    result = hush.simulate(tmp_path / "run.toml", out=tmp_path / "run")
    assert result.clients == ("north", "south", "west") and result.dataset.endswith("*.parquet")
    assert "train_loss" in hush.measure(tmp_path / "run")
    compared = hush.compare(tmp_path / "run.toml", ["dp-fedavg", "weiavg"])
    assert set(compared["recipes"]) == {"dp-fedavg", "weiavg"}


def test_optional_packages_are_not_imported() -> None:
    code = (
        "import sys, hush; assert 'numpy' not in sys.modules; hush.data.clients\n"
        "import numpy as np; hush.data.clients({'a': (np.ones((3, 2)), [0, 1, 1])})\n"
        "assert not {'pandas', 'polars', 'pyarrow', 'datasets', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
