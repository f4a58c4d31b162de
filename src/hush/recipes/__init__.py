"""The algorithms: six slots, a file each, and every paper as a few lines over them."""

from hush.recipes.frame import Recipe
from hush.recipes.papers import RECIPES, SUMMARIES
from hush.recipes.parse import SLOTS, parse
from hush.recipes.view import RoundView

__all__ = ["RECIPES", "SLOTS", "SUMMARIES", "Recipe", "RoundView", "parse"]
