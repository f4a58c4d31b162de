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
    if not (Path(path) / "config.json").is_file():
        raise HushError(f"{KEY}: {path} has no config.json; accepted: a directory that save_pretrained wrote", KEY)
    made: nn.Module = _read(TASKS[task], path, name, KEY, num_labels=outputs, ignore_mismatched_sizes=True)
    return made


def base_model(name: str, path: str | None) -> nn.Module:
    """Return a model of Hugging Face without a head, from a local directory, or by a name that is in its cache here.

    `name` is the directory or the name, unless a path is given.
    """
    key = "model.encoder"
    made, found = _read("AutoModel", path or name, f"{PREFIX}{name}", key, output_loading_info=True)
    # A pooler is none of the hidden states that features are computed from.
    if missing := sorted(each for each in found["missing_keys"] if "pooler" not in each):
        raise HushError(f"{key}: {path or name} has no weights for {', '.join(missing)[:200]}; accepted: all", key)
    module: nn.Module = made
    return module


def _read(kind: str, path: str, name: str, key: str, **settings: object) -> Any:
    """Return a model of one of the automatic classes, with weights from files of safetensors on this machine."""
    try:
        import transformers
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HushError(f"{key}: {name} needs transformers; accepted: pip install hush[hf]", key) from None
    log: Any = transformers.utils.logging
    before = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        # A name is looked up in the local cache: with a directory, the library has nothing to ask a server for.
        path = path if Path(path).is_dir() else snapshot_download(path, local_files_only=True)
        return getattr(transformers, kind).from_pretrained(
            path, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, **settings
        )
    except Exception as error:  # the library's own, of many kinds
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HushError(
            f"{key}: {path} cannot be read as {name}: {line:.200}; nothing is downloaded, and code and pickles are not "
            "read; accepted: a directory that save_pretrained wrote",
            key,
        ) from None
    finally:
        log.set_verbosity(before)
        log.enable_progress_bar()
