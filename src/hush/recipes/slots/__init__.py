"""The six slots of a recipe, and the options of each."""
