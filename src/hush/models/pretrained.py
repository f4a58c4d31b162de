"""Pretrained weights from this machine: files of safetensors, and models of Hugging Face from a local directory.

Nothing is downloaded, and no pickle is read: safetensors hold numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hush.types import HushError, unknown

KEY = "model.weights"
PREFIX = "hf:"
FILE = "model.safetensors"
# Tasks of Hugging Face for which there is a class of models with a head that gives one row of numbers per example.
TASKS: Mapping[str, str] = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
}


def weight_tensors(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file of safetensors, or of the one in a directory, by name."""
    # Imported here, because models are built where PyTorch and NumPy alone are installed.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(path)
    file = place / FILE if place.is_dir() else place
    if not file.is_file():
        raise HushError(f"{KEY}: {file} is not there; accepted: a file of safetensors, or a directory with {FILE}", KEY)
    try:
        found: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise HushError(f"{KEY}: {file} is not a file of safetensors ({error}); pickles are not read", KEY) from None
    return found


@torch.no_grad()
def load_weights(module: nn.Module, path: str, head: Sequence[str] = ()) -> None:
    """Give a module the weights of a file; those of its head, in either, may be missing or have other shapes.

    Raises:
        HushError: The file has other tensors than the module.
    """
    found = weight_tensors(path)
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def of_head(name: str) -> bool:
        return any(name.startswith(f"{part}.") for part in head)

    apart = [
        *(f"{name} is not in the model" for name in found if name not in places and not of_head(name)),
        *(f"{name} is not in the file" for name in dict(module.named_parameters()) if name not in found
          and not of_head(name)),
        *(f"{name} has shape {tuple(found[name].shape)} in the file and {tuple(places[name].shape)} in the model"
          for name in found if name in places and found[name].shape != places[name].shape and not of_head(name)),
    ]  # fmt: skip
    if apart:
        raise HushError(f"{KEY}: {path} does not fit the model: {'; '.join(apart)[:300]}", KEY)
    for name, value in found.items():
        if name in places and places[name].shape == value.shape:
            places[name].copy_(value)


def hugging_face(name: str, path: str | None, outputs: int) -> nn.Module:
    """Return a model of Hugging Face with the weights of a local directory and a head of so many outputs.

    Layers that the directory has no weights for, such as the head, are initialised by PyTorch's generator.
    """
    task = name.removeprefix(PREFIX)
    if task not in TASKS:
        raise unknown("model.name", "task of Hugging Face", task, list(TASKS))
    if path is None:
        raise HushError(f"{KEY}: missing; {name} needs a directory that save_pretrained wrote", KEY)
    try:
        import transformers
    except ImportError:
        raise HushError(
            f"model.name: {name} needs transformers; accepted: pip install hush[hf]", "model.name"
        ) from None
    if not (Path(path) / "config.json").is_file():
        raise HushError(f"{KEY}: {path} has no config.json; accepted: a directory that save_pretrained wrote", KEY)
    log: Any = transformers.utils.logging
    before = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        kind: Any = getattr(transformers, TASKS[task])
        made: nn.Module = kind.from_pretrained(
            path, num_labels=outputs, local_files_only=True, use_safetensors=True, ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )  # fmt: skip
    except Exception as error:  # the library's own, of many kinds
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HushError(f"{KEY}: {path} cannot be read as {name}: {line:.200}", KEY) from None
    finally:
        log.set_verbosity(before)
        log.enable_progress_bar()
    return made
