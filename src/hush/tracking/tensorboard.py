"""The TensorBoard tracker: event files in the run directory, or below `tensorboard/` where there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hush.tracking.tracker import Tracker

if TYPE_CHECKING:
    from hush.callbacks import RunStart

FOLDER = "tensorboard"


class TensorBoardTracker(Tracker):
    """Logs a run for TensorBoard, which has no artifacts: it gets their paths."""

    name = "tensorboard"

    def begin(self, start: RunStart, config: Mapping[str, str], kept: str) -> str:
        """Open event files; those of a resumed run are in the same folder."""
        from torch.utils.tensorboard import SummaryWriter

        if self.permanent is not None:
            folder = self.permanent / FOLDER
        else:
            label = self.label or f"{start.recipe} seed {start.seed} {time.strftime('%Y-%m-%d %H.%M.%S')}"
            folder = Path(FOLDER) / self.group / label.replace("/", "_")
        self._writer = SummaryWriter(str(folder))
        rows = "\n".join(f"| {key} | {value} |" for key, value in config.items())
        self._writer.add_text("config", f"| setting | value |\n|---|---|\n{rows}", 0)
        return str(folder)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def tell(self, facts: Mapping[str, str]) -> None:
        """Write texts."""
        for name, text in facts.items():
            self._writer.add_text(name, text, 0)

    def keep(self, files: Sequence[Path]) -> None:
        """Write where the files are."""
        if self.permanent is not None:
            self._writer.add_text("files", "\n\n".join(map(str, files)), 0)

    def end(self, state: str) -> None:
        """Close the event files."""
        self._writer.add_text("state", state, 0)
        self._writer.close()
