"""What a run was begun with, kept in its directory so that it can be taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hush import recipes
from hush.config import Config, config_hash
from hush.deploy.facts import Fact
from hush.server.rundir import MANIFEST, read_json, to_json, write_atomically
from hush.types import HushError

AGREEMENT = "federation.json"


@dataclass(frozen=True)
class Agreement:
    """A run's name, its members with what they declared, and its config."""

    run: str
    facts: tuple[Fact, ...]
    config: Config

    @property
    def names(self) -> list[str]:
        """The members, by number."""
        return [fact.name for fact in self.facts]

    def write(self, out: Path) -> None:
        """Keep it."""
        made = {"run": self.run, "facts": [asdict(fact) for fact in self.facts]}
        write_atomically(out / AGREEMENT, to_json({**made, "config": self.config.model_dump()}))


def check(config: Config) -> None:
    """Refuse what members cannot be asked for."""
    _, recipe = recipes.parse(config.recipe, config.mode)
    if config.local.lr == "auto":
        raise HushError('local.lr: "auto" is for simulations; give a number for a federation', "local.lr")
    if getattr(recipe.protect, "centre", 0.0) > 0:
        raise HushError(
            "recipe.protect.centre: members do not tell a mean of their inputs; "
            'set recipe.protect = { rule = "dp-sgd", steps = 10 }, without a centre',
            "recipe.protect.centre",
        )


def agreed(run: str, facts: Sequence[Fact], config: Config) -> Agreement:
    """An agreement of these members: the config has as many clients as there are."""
    data = config.data.model_copy(update={"clients": len(facts)})
    return Agreement(run, tuple(facts), config.model_copy(update={"data": data}))


def kept(out: Path, config: Config) -> Agreement:
    """The agreement of the run in a directory, if it is one of this config."""
    raw = read_json(out / AGREEMENT)
    found = agreed(str(raw["run"]), [Fact(**fact) for fact in raw["facts"]], config)
    if read_json(out / MANIFEST).get("config_hash") != config_hash(found.config):
        raise HushError(f"{out}: holds a run of another config; resume with the file it was started with")
    return found
