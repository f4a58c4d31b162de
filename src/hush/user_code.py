"""User code named as `module:name` in a config: models, datasets, options of recipes, and members' loaders."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def user_code(name: str) -> Any:
    """Import the object that `module:name` refers to; modules are also looked up in the working directory.

    Raises what the import raises, and an `AttributeError` if the module has no such name.
    """
    path, _, attribute = name.partition(":")
    # The empty entry stands for the current working directory.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(importlib.import_module(path), attribute)
