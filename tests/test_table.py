"""Tables as text, as HTML, by column and as DataFrames."""

from __future__ import annotations

import builtins
import math
import re
from typing import Any

import pytest

from hush.table import Table
from hush.types import HushError

TABLE = Table(
    title="Clients",
    columns=("client", "epsilon", "note"),
    rows=(("north", 0.5, None), ("south", 12.345678, ("a", "b")), ("east", math.nan, True)),
    notes=("Not covered: the count",),
)


def test_text_aligns_numbers_to_the_right_and_words_to_the_left() -> None:
    assert repr(TABLE).splitlines() == [
        "Clients",
        "client  epsilon  note",
        "------  -------  ----",
        "north       0.5  –",
        "south     12.35  a; b",
        "east          –  yes",
        "Not covered: the count",
    ]


def test_columns_and_rows() -> None:
    assert TABLE["client"] == ("north", "south", "east")
    assert len(TABLE) == 3
    assert next(iter(TABLE)) == {"client": "north", "epsilon": 0.5, "note": None}
    with pytest.raises(HushError, match="table: unknown column 'epsilom'; did you mean epsilon"):
        _ = TABLE["epsilom"]


def test_pandas_has_every_column() -> None:
    shown = Table(title="t", columns=("a", "b"), rows=((1, 2.0), (3, 4.0)), shown=("a",))
    assert "b" not in repr(shown)
    frame = shown.to_pandas()
    assert list(frame.columns) == ["a", "b"]
    assert frame["b"].tolist() == [2.0, 4.0]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HushError, match="pip install pandas"):
        TABLE.to_pandas()


def test_names_cannot_bring_markup_or_controls() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    table = Table(title=evil, columns=(evil, "n"), rows=((evil, 1),), notes=(evil,))
    page, text = table._repr_html_(), repr(table)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 4
    assert "\x1b" not in page + text
    allowed = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert set(re.findall(r"</?(\w+)", page)) == allowed


def test_a_long_table_is_shown_without_its_middle() -> None:
    table = Table(title="t", columns=("n",), rows=tuple((number,) for number in range(1000)))
    lines = repr(table).splitlines()
    assert len(lines) == 3 + 41
    assert lines[-1].strip() == "999"
    assert "..." in repr(table)
    assert len(table["n"]) == 1000


def test_an_empty_table() -> None:
    table = Table(title="t", columns=("a", "b"), rows=())
    assert repr(table).splitlines() == ["t", "a  b", "-  -"]
    assert "<tbody></tbody>" in table._repr_html_()
