"""The agreement on a run: what it was begun with, kept in its directory so that it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from hush.config import Config, config_hash
from hush.deploy.shared.roster import RosterEntry
from hush.deploy.transport import messages
from hush.engines.setup import with_rate
from hush.server.run_directory import MANIFEST, read_json, to_json, write_atomically
from hush.types import HushError

AGREEMENT = "federation.json"


@dataclass(frozen=True)
class Agreement:
    """A run's name, its members with what they declared, and its config.

    Attributes:
        run: Its name.
        facts: What members declared, by number.
        config: With a number for every setting that the file left open.
        centre: What rows are counted from, where the recipe has a centre.
        auto_rate: Whether the file left the learning rate open.
    """

    run: str
    facts: tuple[RosterEntry, ...]
    config: Config
    centre: Tensor | None = None
    auto_rate: bool = False

    @property
    def names(self) -> list[str]:
        """The members, by number."""
        return [fact.name for fact in self.facts]

    def write(self, out: Path) -> None:
        """Keep it."""
        made = {"run": self.run, "facts": [asdict(fact) for fact in self.facts], "auto_rate": self.auto_rate}
        made["centre"] = None if self.centre is None else self.centre.tolist()
        write_atomically(out / AGREEMENT, to_json({**made, "config": self.config.model_dump()}))

    @property
    def told(self) -> dict[str, Tensor]:
        """What enrolment brought for the server to tell every member."""
        return {} if self.centre is None else {"input_mean": self.centre}

    @property
    def centre_name(self) -> str:
        """What members agree to of the centre, or the empty text."""
        return "" if self.centre is None else messages.name_of(self.centre)


def agreed(
    run: str, facts: Sequence[RosterEntry], config: Config, centre: Tensor | None = None, auto_rate: bool = False
) -> Agreement:
    """An agreement of these members: the config has as many clients as there are."""
    data = config.data.model_copy(update={"clients": len(facts)})
    return Agreement(run, tuple(facts), config.model_copy(update={"data": data}), centre, auto_rate)


def kept(out: Path, config: Config) -> Agreement:
    """The agreement of the run in a directory, if it is one of this config."""
    raw = read_json(out / AGREEMENT)
    auto_rate, kept_centre = bool(raw.get("auto_rate")), raw.get("centre")
    if auto_rate and config.local.lr == "auto":
        config = with_rate(config, float(raw["config"]["local"]["lr"]))
    centre = None if kept_centre is None else torch.tensor(kept_centre, dtype=torch.float32)
    found = agreed(str(raw["run"]), [RosterEntry(**fact) for fact in raw["facts"]], config, centre, auto_rate)
    if read_json(out / MANIFEST).get("config_hash") != config_hash(found.config):
        raise HushError(f"{out}: contains a run with a different config; resume it with its original config file")
    return found
