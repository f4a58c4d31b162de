"""A trained model: the user's module with the trained weights, and what it takes to use, keep and judge it."""

from hush.trained_model.files import contents, load
from hush.trained_model.trained_model import TrainedModel

__all__ = ["TrainedModel", "contents", "load"]
