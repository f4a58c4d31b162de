"""Hush inside Flower: a strategy, a mod for client apps, and the reply of a private trainer.

The user's own Flower app runs these; `hush.deploy` is the other way round, a federation that Flower carries.
"""

from __future__ import annotations

import importlib.util

from hush.types import HushError

if importlib.util.find_spec("flwr") is None:
    raise HushError('hush.flower: needs Flower, which is not installed; accepted: pip install "hush[deploy]"')

from hush.flower.ledger_mod import ledger_mod
from hush.flower.reply import train_reply
from hush.flower.strategy import HushStrategy

__all__ = ["HushStrategy", "ledger_mod", "train_reply"]
