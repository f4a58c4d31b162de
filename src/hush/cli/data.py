"""Data commands: infer the schema of a public file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Describe tables for preprocessing.")


@data_app.callback()
def _top() -> None:
    """Keep `schema` a command of its own."""


@data_app.command()
def schema(
    file: Annotated[Path, typer.Argument(metavar="PUBLIC.csv", help="A CSV or Parquet file whose rows are public.")],
    label: Annotated[str, typer.Option(help="The column with the labels.")] = "label",
    client: Annotated[str | None, typer.Option(help="The column with the clients' names, if any.")] = None,
) -> None:
    """Print the schema of a public file as TOML: bounds, categories and blanks as they are in it. Never use private
    rows: what is printed is taken from them."""
    from hush.data.preprocessing import infer_schema
    from hush.data.schema import toml

    print(toml(infer_schema(file, label=label, client=client)), end="")
