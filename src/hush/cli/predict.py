"""The command `hush predict`: the predictions of a saved model for the rows of a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer


def predict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a finished run or of a saved model.")],
    file: Annotated[Path, typer.Argument(metavar="ROWS", help="CSV, Parquet or NPZ file; labels are ignored.")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; default: standard output.")] = None,
    client: Annotated[str | None, typer.Option(help="Whose model, where a run trained several.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="The architecture, where it is not a built-in one.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="The frozen encoder, where it is code or somewhere else now.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The encoder's weights, if they are somewhere else now.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add a column for each class.")] = False,
) -> None:
    """Predict the label of each row of a file with a trained model. Rows are preprocessed as in training."""
    from hush.server.run_directory import write_atomically
    from hush.text import printable
    from hush.trained_model import load
    from hush.types import HushError

    if out is not None and out.suffix.lower() != ".csv":
        raise HushError(f"--out: found {out.name!r:.80}; accepted: a file that ends in .csv")
    trained = load(directory, model, encoder=encoder, weights=weights)
    number = int(client) if client is not None and client.isdecimal() and client not in trained.clients else client
    raw = trained.raw_outputs(file, client=number)
    table = trained.prediction_table(raw, probabilities)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    if out is None:
        print(text.getvalue(), end="")
        return
    try:
        write_atomically(out, text.getvalue().encode())
    except OSError as error:
        raise HushError(f"{out}: cannot be written: {error.strerror or error}") from None
    print(f"{len(raw)} predictions in {printable(out)}")
