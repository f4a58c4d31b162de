"""The agreement on a run: the config and declarations it started with, stored in its directory for resuming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from hush.config import Config, config_hash, parse
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.transport import messages
from hush.engines.setup import with_rate
from hush.recipes.context import State
from hush.server.loop import CLUSTERS
from hush.server.run_directory import MANIFEST, read_json, to_json, write_atomically
from hush.types import HushError

AGREEMENT = "federation.json"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The name of a run, its members with their declarations, and its config.

    Attributes:
        run: The name of the run.
        facts: The members' declarations, by number.
        config: The config, with a value for every setting that the file left to be computed.
        centre: The mean that inputs are centred by, if the recipe centres them.
        clusters: The model of each member, by number, as their means suggest it; empty without means.
        auto_rate: Whether the config file left the learning rate to be computed.
    """

    run: str
    facts: tuple[RosterEntry, ...]
    config: Config
    centre: Tensor | None = None
    clusters: tuple[int, ...] = ()
    auto_rate: bool = False

    @property
    def names(self) -> list[str]:
        """The members, by number."""
        return [fact.name for fact in self.facts]

    def write(self, out: Path) -> None:
        """Write the agreement to the run directory."""
        made = {"run": self.run, "facts": [asdict(fact) for fact in self.facts], "auto_rate": self.auto_rate}
        made["centre"] = None if self.centre is None else self.centre.tolist()
        made["clusters"] = list(self.clusters)
        write_atomically(out / AGREEMENT, to_json({**made, "config": self.config.model_dump()}))

    @property
    def enrolment_state(self) -> dict[str, Tensor]:
        """The results of enrolment: the mean that the server sends to every member, and the members' models."""
        clusters = {CLUSTERS: torch.tensor(self.clusters)} if self.clusters else {}
        return {} if self.centre is None else {"input_mean": self.centre, **clusters}

    @property
    def centre_name(self) -> str:
        """The digest of the input mean that members agree to, or an empty text."""
        return "" if self.centre is None else messages.name_of(self.centre)


def new_agreement(
    run: str, facts: Sequence[RosterEntry], config: Config, enrolment: State | None = None, auto_rate: bool = False
) -> Agreement:
    """Return the agreement of these members; the config gets their number as the number of clients.

    `enrolment` is what follows from the members' means (`hush.engines.enrolment.combined`).
    """
    data, found = config.data.model_copy(update={"clients": len(facts)}), enrolment or {}
    return Agreement(
        run=run,
        facts=tuple(facts),
        config=config.model_copy(update={"data": data}),
        centre=found.get("input_mean"),
        clusters=tuple(found[CLUSTERS].tolist()) if CLUSTERS in found else (),
        auto_rate=auto_rate,
    )


def read_agreement(out: Path, config: Config) -> Agreement:
    """Read the agreement in a run directory, or raise a `HushError` if it belongs to a different config."""
    raw = read_json(out / AGREEMENT)
    auto_rate, kept_centre = bool(raw.get("auto_rate")), raw.get("centre")
    if auto_rate and config.local.lr == "auto":
        config = with_rate(config, float(raw["config"]["local"]["lr"]))
    enrolment: dict[str, Tensor] = {}
    if kept_centre is not None:
        enrolment["input_mean"] = torch.tensor(kept_centre, dtype=torch.float32)
    if raw.get("clusters"):
        enrolment[CLUSTERS] = torch.tensor(raw["clusters"])
    found = new_agreement(str(raw["run"]), [RosterEntry(**fact) for fact in raw["facts"]], config, enrolment, auto_rate)
    # Not by the hash of the config alone: it differs between versions if one of them has more keys.
    stored = parse(raw["config"]).model_dump()
    same = read_json(out / MANIFEST).get("config_hash") == config_hash(found.config)
    if not same and to_json(stored) != to_json(found.config.model_dump()):
        raise HushError(f"{out}: contains a run with a different config; resume it with its original config file")
    return found
