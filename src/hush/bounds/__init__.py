"""Convergence bounds of the papers, as calculators: numbers in, the bound and its conditions out.

Each file has the theorem of one paper with its constants, where the paper has them. Nothing here knows data or models:
`hush.engines.convergence` measures the constants of a run.
"""

from hush.bounds.bound import Bound, Condition

__all__ = ["Bound", "Condition"]
