"""The config of a run, completed from its clients' data: the number of clients, and how rows are divided."""

from __future__ import annotations

from collections.abc import Sequence

from hush.config import Config
from hush.data import ClientData
from hush.types import HushError

_SHOWN = 8


def with_clients(config: Config, data: ClientData) -> Config:
    """Return the config with the number of clients, the partition and the sizes that follow from the data.

    Raises:
        HushError: One of these is given and differs from the data, or the data do not fit its inputs.
    """
    _check_rows(config, data)
    if not data.names:
        return config
    number, given = len(data.names), config.data.model_fields_set
    if "clients" in given and config.data.clients != number:
        raise HushError(
            f"data.clients: found {config.data.clients}, the data has {number} ({_listed(data.names)}); accepted: that "
            "number, or none, since it follows from the data",
            "data.clients",
        )
    changed: dict[str, object] = {"clients": number}
    if data.partition is not None:
        if "partition" in given and config.data.partition not in ("auto", data.partition):
            raise _differs("partition", config.data.partition, data.partition)
        changed["partition"] = data.partition if isinstance(data.partition, str) else dict(data.partition)
    else:
        sizes = data.counts
        if "partition" in given and config.data.partition not in ("auto", "owner"):
            raise _differs("partition", config.data.partition, "owner")
        wanted = [config.data.sizes] * number if isinstance(config.data.sizes, int) else config.data.sizes
        if "sizes" in given and wanted != sizes:
            raise _differs("sizes", config.data.sizes, sizes)
        changed |= {"partition": "owner", "sizes": sizes}
    return config.model_copy(update={"data": config.data.model_copy(update=changed)})


def member_names(data: ClientData, number: int) -> tuple[str, ...]:
    """Return the name of each client; empty names if clients have numbers only."""
    numbered = tuple(str(client) for client in range(number))
    return data.names if data.names and data.names != numbered else ("",) * number


def _check_rows(config: Config, data: ClientData) -> None:
    if config.data.rows == "unit-norm" and data.dataset.inputs is not None:
        raise HushError(
            "data.rows: unit-norm is for one array of real numbers, and the inputs are "
            f"{', '.join(part.dtype for part in data.dataset.inputs.parts)}; accepted: as-given",
            "data.rows",
        )


def _differs(key: str, found: object, actual: object) -> HushError:
    return HushError(
        f"data.{key}: found {found!r:.200}, the data has {actual!r:.200}; accepted: none, it follows from the data",
        f"data.{key}",
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
