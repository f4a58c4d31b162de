"""The algorithms: six slots, a file each, and every paper as a few lines over them."""

from hush.recipes.context import RoundView
from hush.recipes.from_config import SLOTS, as_table, configured, parse
from hush.recipes.presets import RECIPES, SUMMARIES
from hush.recipes.recipe import Recipe

__all__ = ["RECIPES", "SLOTS", "SUMMARIES", "Recipe", "RoundView", "as_table", "configured", "parse"]
