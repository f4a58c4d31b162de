"""Export of a trained module as a program without Python: ONNX, or PyTorch's own exported programs.

Hush writes exported programs and never reads them: `torch.export.load` unpickles, so that a file could run any code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hush.data.input_format import InputFormat
from hush.models.inputs import example_rows, takes_separately, unpack
from hush.server.run_directory import write_atomically
from hush.types import HushError, unknown

_ROWS = 3  # of the example that is traced: neither 1, which would be taken as a constant, nor a usual width
_NEEDED = ("onnx", "onnxscript")


def export(module: nn.Module, reading: InputFormat, kind: str, path: Path) -> Path:
    """Write a module to a file, for any number of rows, and return the path.

    Raises:
        HushError: The kind is unknown, packages are missing, or PyTorch cannot export the module.
    """
    if kind not in _WRITERS:
        raise unknown("kind", "kind of export", kind, _WRITERS)
    lacking = [name for name in _NEEDED if kind == "onnx" and find_spec(name) is None]
    if lacking:
        raise HushError(f"export: onnx needs the packages {', '.join(lacking)}; pip install hush[onnx]")
    try:
        with _quiet():
            content = _WRITERS[kind](_program(module, reading))
    except Exception as error:  # PyTorch's exporters raise their own kinds, many of them private
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()
        if "Constraints violated" in reason:
            reason = "its graph depends on the number of rows"
        raise HushError(f"export: PyTorch cannot export the module as {kind}: {reason:.300}") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise HushError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def _program(module: nn.Module, reading: InputFormat) -> ExportedProgram:
    """Return the graph of the module on its own inputs, for any number of rows."""
    arguments, named = _examples(module, reading)
    free: Any = torch.utils._pytree.tree_map(lambda value: {0: Dim.DYNAMIC}, named or arguments)
    return torch.export.export(module, arguments, named, dynamic_shapes=free)


def _examples(module: nn.Module, reading: InputFormat) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """Return example arguments of a module: positional, and by name."""
    spec = reading.inputs
    if spec is None:
        return (torch.zeros(_ROWS, *reading.shape),), {}
    parts = unpack(example_rows(spec, _ROWS), spec)
    if spec.kind == "array":
        return (parts[0],), {}
    separate = takes_separately(module, spec)
    if spec.kind == "tuple":
        return (tuple(parts) if separate else (tuple(parts),)), {}
    named = {part.name: value for part, value in zip(spec.parts, parts, strict=True)}
    return ((), named) if separate else ((named,), {})


def _onnx(program: ExportedProgram) -> bytes:
    made = torch.onnx.export(program, dynamo=True, verbose=False, external_data=False)
    if made is None:
        raise HushError("the exporter returned nothing")
    content: bytes = made.model_proto.SerializeToString()
    return content


def _exported_program(program: ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def _quiet() -> Any:
    """Exporters talk on standard output, in logs and in warnings; what matters they raise."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


_WRITERS: dict[str, Callable[[ExportedProgram], bytes]] = {"onnx": _onnx, "torch.export": _exported_program}
