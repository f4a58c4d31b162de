"""User code that a config names as `module:name`: models, datasets, options of recipes, and members' loaders."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def user_code(name: str) -> Any:
    """The object that `module:name` stands for; modules are looked up in the working directory too.

    Raises what the import raises, and an `AttributeError` where the module has no such name.
    """
    path, _, attribute = name.partition(":")
    # The empty entry stands for the working directory, whichever it is by then.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(importlib.import_module(path), attribute)
