"""Export of trained modules: the program computes what the module does, for any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hush
from hush.trained_model import export
from hush.types import HushError
from tests.support.trained_models import TokenNet, fitted, numbers, tokens

pytestmark = pytest.mark.slow


def evaluated(path: Path, given: dict[str, Any]) -> Any:
    """What an ONNX file computes."""
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    model = onnx.load(path)
    names = [each.name for each in model.graph.input]
    feed = given if set(given) == set(names) else dict(zip(names, given.values(), strict=True))
    return reference.ReferenceEvaluator(model).run(None, feed)[0]


@pytest.mark.parametrize("several", [False, True])
def test_programs_compute_what_the_module_does(tmp_path: Path, several: bool) -> None:
    pytest.importorskip("onnxscript")
    x, y = numbers()
    given: Any = tokens() if several else x
    labels = tokens()["tokens"][:, 0] % 3 if several else y
    model = fitted(tmp_path / "run", hush.data.clients(given, labels, clients=3), TokenNet() if several else None)
    program = torch.export.load(model.export("torch.export", tmp_path / "model.pt2")).module()
    path = model.export("onnx", tmp_path / "made" / "model.onnx")
    for rows in (1, 7, 100):
        part = {name: value[:rows] for name, value in given.items()} if several else {"x": given[:rows]}
        wanted = model.raw_outputs(part if several else part["x"])
        tensors = {name: torch.from_numpy(value) for name, value in part.items()}
        found = program(**tensors) if several else program(tensors["x"])
        assert np.allclose(found.detach().numpy(), wanted, atol=1e-6)
        assert np.allclose(evaluated(path, part), wanted, atol=1e-5)


def test_what_cannot_be_exported_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = numbers()
    model = fitted(tmp_path / "run", hush.data.clients(x, y, clients=3))
    with pytest.raises(HushError, match=r"unknown kind of export 'tflite'; .*accepted: onnx, torch.export"):
        model.export("tflite", tmp_path / "m")
    images = fitted(tmp_path / "s", data={"name": "digits", "clients": 3}, model={"name": "scattering-linear"})
    with pytest.raises(HushError, match=r"as torch.export: its graph depends on the number of rows") as error:
        images.export("torch.export", tmp_path / "m")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m").exists()
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(HushError, match=r"onnx needs the packages onnx, onnxscript; pip install hush\[onnx\]"):
        model.export("onnx", tmp_path / "m")
