"""The Weights & Biases tracker: offline files below `wandb/`, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hush.tracking.tracker import Tracker

if TYPE_CHECKING:
    from hush.callbacks import RunStart

PROJECT = "hush"


class WandbTracker(Tracker):
    """Logs a run with Weights & Biases. `wandb sync` uploads what was logged offline."""

    name = "wandb"

    def begin(self, start: RunStart, config: Mapping[str, str], kept: str) -> str:
        """Begin a run of the project `hush`, or the one that WANDB_PROJECT names; a resumed one has the same id."""
        import wandb

        # Neither code, nor facts on the machine, nor the terminal's text belong to the run.
        settings = wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode="offline" if "WANDB_MODE" not in os.environ else None,
            name=self.label or f"{start.recipe}, seed {start.seed}",
            group=self.group or None,
            config=dict(config),
            id=kept or None,
            resume="allow" if kept else None,
            reinit="create_new",
            settings=settings,
        )
        return str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log one row of the history; what the end adds to the last round goes to the summary."""
        if any(name.startswith("final ") for name in values):
            self._run.summary.update(dict(values))
        else:
            self._run.log(dict(values), step=step)

    def tell(self, facts: Mapping[str, str]) -> None:
        """Add to the summary."""
        self._run.summary.update(dict(facts))

    def keep(self, files: Sequence[Path]) -> None:
        """Keep the files as one artifact."""
        import wandb

        if files:
            artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
            for path in files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)

    def end(self, state: str) -> None:
        """Finish the run; one that failed has exit code 1."""
        self._run.finish(exit_code=1 if state == "failed" else 0)
