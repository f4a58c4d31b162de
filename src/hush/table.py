"""Table: columns and rows, readable as text and in a notebook, convertible to pandas."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hush.text import printable
from hush.types import HushError, unknown

_LONGEST = 48  # characters of a cell
_NOTE = 2000
_ENDS = 20  # rows shown at the beginning and at the end of a long table


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table:
    """Rows of plain values. Iterate over rows, which are mappings; index by the name of a column.

    Attributes:
        title: What it shows.
        columns: Their names.
        rows: As many values each as there are columns.
        shown: The columns that text and HTML show; all where it is empty.
        notes: Sentences below it.
        facts: What it was made from, as the functions of `hush` return it; for a program.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    shown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> tuple[Any, ...]:
        """Return the values of a column, in order."""
        if column not in self.columns:
            raise unknown("table", "column", column, self.columns)
        at = self.columns.index(column)
        return tuple(row[at] for row in self.rows)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with all columns; a `HushError` where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise HushError(
                "to_pandas: pandas is not installed; install it with: pip install pandas (or 'hush[data]')"
            ) from None
        return pandas.DataFrame(list(self.rows), columns=list(self.columns))

    def __repr__(self) -> str:
        columns, rows = self._visible()
        right = self._numeric()
        widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
        lines = [
            "  ".join(
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in (columns, ["-" * width for width in widths], *rows)
        ]
        return "\n".join([printable(self.title, _NOTE), *lines, *(printable(note, _NOTE) for note in self.notes)])

    def _repr_html_(self) -> str:
        columns, rows = self._visible()
        align = ["right" if numeric else "left" for numeric in self._numeric()]

        def line(cells: Sequence[str], tag: str) -> str:
            inner = (
                f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
                for cell, side in zip(cells, align, strict=True)
            )
            return f"<tr>{''.join(inner)}</tr>"

        head, body = line(columns, "th"), "".join(line(row, "td") for row in rows)
        notes = "".join(f"<p>{html.escape(printable(note, _NOTE))}</p>" for note in self.notes)
        title = html.escape(printable(self.title, _NOTE))
        return (
            f'<div><table><caption style="caption-side:top;text-align:left">{title}</caption>'
            f"<thead>{head}</thead><tbody>{body}</tbody></table>{notes}</div>"
        )

    def _numeric(self) -> list[bool]:
        """Return whether each visible column holds numbers alone."""
        return [_is_numeric(self[name]) for name in self.shown or self.columns]

    def _visible(self) -> tuple[list[str], list[list[str]]]:
        """Return the columns and cells to show, as text; a long table without its middle."""
        names = self.shown or self.columns
        values = list(zip(*(self[name] for name in names), strict=True)) if self.rows else []
        rows = [[_text(value) for value in row] for row in values]
        if len(rows) > 2 * _ENDS + 1:
            rows = [*rows[:_ENDS], ["..."] * len(names), *rows[-_ENDS:]]
        return [printable(name, _LONGEST) for name in names], rows


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        value = "; ".join(map(str, value))
    return printable(value, _LONGEST)
