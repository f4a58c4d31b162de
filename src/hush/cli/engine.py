"""The options of the engine that several commands share: `--engine` and `--address`."""

from __future__ import annotations

from typing import Annotated

import typer

from hush.types import HushError

Engine = Annotated[
    str | None, typer.Option(help="Where to compute: process (default), or ray: the workers of a Ray cluster.")
]
Address = Annotated[
    str | None, typer.Option(help="Address of the Ray cluster, or auto on one of its nodes; default: start Ray here.")
]


def engine_arguments(engine: str | None, address: str | None) -> dict[str, str]:
    """Return the arguments of a simulation for these options; an address alone means Ray."""
    if address is not None and engine not in (None, "ray"):
        raise HushError(f"--address: is that of a Ray cluster, and --engine is {engine}; accepted: --engine ray")
    if address is not None:
        return {"engine": "ray", "address": address}
    return {} if engine is None else {"engine": engine}
