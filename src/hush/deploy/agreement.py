"""What a run was begun with, kept in its directory so that it can be taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from hush.config import Config, config_hash
from hush.deploy import wire
from hush.deploy.facts import Fact
from hush.engines.federation import with_rate
from hush.server.rundir import MANIFEST, read_json, to_json, write_atomically
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
        paced: Whether the file left the learning rate open.
    """

    run: str
    facts: tuple[Fact, ...]
    config: Config
    centre: Tensor | None = None
    paced: bool = False

    @property
    def names(self) -> list[str]:
        """The members, by number."""
        return [fact.name for fact in self.facts]

    def write(self, out: Path) -> None:
        """Keep it."""
        made = {"run": self.run, "facts": [asdict(fact) for fact in self.facts], "paced": self.paced}
        made["centre"] = None if self.centre is None else self.centre.tolist()
        write_atomically(out / AGREEMENT, to_json({**made, "config": self.config.model_dump()}))

    @property
    def told(self) -> dict[str, Tensor]:
        """What enrolment brought for the server to tell every member."""
        return {} if self.centre is None else {"centre": self.centre}

    @property
    def centre_name(self) -> str:
        """What members agree to of the centre, or the empty text."""
        return "" if self.centre is None else wire.name_of(self.centre)


def agreed(
    run: str, facts: Sequence[Fact], config: Config, centre: Tensor | None = None, paced: bool = False
) -> Agreement:
    """An agreement of these members: the config has as many clients as there are."""
    data = config.data.model_copy(update={"clients": len(facts)})
    return Agreement(run, tuple(facts), config.model_copy(update={"data": data}), centre, paced)


def kept(out: Path, config: Config) -> Agreement:
    """The agreement of the run in a directory, if it is one of this config."""
    raw = read_json(out / AGREEMENT)
    paced, kept_centre = bool(raw.get("paced")), raw.get("centre")
    if paced and config.local.lr == "auto":
        config = with_rate(config, float(raw["config"]["local"]["lr"]))
    centre = None if kept_centre is None else torch.tensor(kept_centre, dtype=torch.float32)
    found = agreed(str(raw["run"]), [Fact(**fact) for fact in raw["facts"]], config, centre, paced)
    if read_json(out / MANIFEST).get("config_hash") != config_hash(found.config):
        raise HushError(f"{out}: holds a run of another config; resume with the file it was started with")
    return found
