"""assign: which of the models a client works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hush.recipes.interfaces import Assign


@dataclass(frozen=True)
class SingleModel(Assign):
    """One model for all clients."""

    rule: ClassVar[str] = "one"
