"""Triton, and the types of its kernels' arguments as both it and a type checker read them.

Edge cases:
    - This module can be imported only where Triton is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

if TYPE_CHECKING:
    at: TypeAlias = Any
    constexpr: TypeAlias = Any
else:  # Triton reads annotations, and takes only its own for them.
    at = tl.tensor
    constexpr = tl.constexpr
