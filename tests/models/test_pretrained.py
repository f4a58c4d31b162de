"""Pretrained weights: what a file must hold, that no pickle is read, and directories of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hush.config import ModelConfig
from hush.models.pretrained import hugging_face, load_weights, weight_tensors
from hush.models.zoo import build_model, given_weights
from hush.seeds import rng
from hush.types import HushError


def network(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs))


def saved(path: Path, outputs: int = 3, **others: torch.Tensor) -> Path:
    draw = rng(0, "weights")
    shapes = {"0.weight": (5, 4), "0.bias": (5,), "2.weight": (outputs, 5), "2.bias": (outputs,)}
    tensors = {name: torch.from_numpy(draw.normal(size=shape)).float() for name, shape in shapes.items()}
    save_file({**tensors, **others}, path)
    return path


def test_a_module_gets_the_weights_of_a_file_and_is_not_changed(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.safetensors")
    found = weight_tensors(str(path))
    assert weight_tensors(str(tmp_path)).keys() == found.keys()  # the directory that holds it
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = given_weights(module, ModelConfig(weights=str(path)))
    assert all(torch.equal(value, found[name]) for name, value in made.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert given_weights(module, ModelConfig()) is module


def test_only_the_head_may_differ(tmp_path: Path) -> None:
    path = str(saved(tmp_path / "w.safetensors", outputs=7))
    module = network()
    own = module[2].weight.detach().clone()  # type: ignore[index]
    load_weights(module, path, ["2"])
    assert torch.equal(module[0].weight, weight_tensors(path)["0.weight"])  # type: ignore[index]
    assert torch.equal(module[2].weight, own)  # type: ignore[index]
    for other, message in (
        (network(), r"2.weight has shape \(7, 5\) in the file and \(3, 5\) in the model"),
        (nn.Sequential(nn.Linear(4, 5)), "2.weight is not in the model"),
        (nn.Sequential(*network(7).children(), nn.Linear(7, 2)), "3.weight is not in the file"),
    ):
        with pytest.raises(HushError, match=f"^model.weights: .* does not fit the model: .*{message}") as caught:
            load_weights(other, path)
        assert "\n" not in str(caught.value)


def test_pickles_and_missing_files_are_refused(tmp_path: Path) -> None:
    pickled = tmp_path / "pytorch_model.bin"
    torch.save(network().state_dict(), pickled)
    with pytest.raises(HushError, match=r"is not a file of safetensors .*; pickles are not read"):
        weight_tensors(str(pickled))
    with pytest.raises(HushError, match=r"^model.weights: .*model.safetensors is not there; accepted"):
        weight_tensors(str(tmp_path))


def test_a_built_in_model_takes_weights_and_adapters(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors")
    tensors = {f"{int(name[0]) + 1}{name[1:]}": value for name, value in weight_tensors(str(path)).items()}
    save_file(tensors, path)
    config = ModelConfig(name="mlp", hidden=5, weights=str(path), adapters="lora", rank=2)
    model = build_model(config, (4,), 3, seed=0)
    assert model.layout.names == ("1.adapter.lora_A.weight", "1.adapter.lora_B.weight", "3.weight", "3.bias")
    assert torch.equal(model.module.get_parameter("1.base.weight"), tensors["1.weight"])
    with pytest.raises(HushError, match=r"^model.adapters: Sequential has no linear layer or attention outside its"):
        build_model(ModelConfig(name="logreg", adapters="lora"), (4,), 3, seed=0)


@pytest.mark.slow
def test_models_of_hugging_face_come_from_a_directory(tmp_path: Path) -> None:
    tf = pytest.importorskip("transformers", reason="needs the extra hf")
    settings: dict[str, Any] = {"vocab_size": 11, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12}
    base = tf.DistilBertModel(tf.DistilBertConfig(**settings, max_position_embeddings=8))
    base.save_pretrained(tmp_path / "bert")
    made = hugging_face("hf:sequence-classification", str(tmp_path / "bert"), 3)
    words = "distilbert.embeddings.word_embeddings.weight"
    assert torch.equal(made.get_parameter(words), base.get_parameter(words.removeprefix("distilbert.")))
    assert made.get_parameter("classifier.weight").shape == (3, 8)
    (tmp_path / "bert" / "model.safetensors").unlink()
    torch.save(base.state_dict(), tmp_path / "bert" / "pytorch_model.bin")
    with pytest.raises(HushError, match="cannot be read as hf:sequence-classification"):
        hugging_face("hf:sequence-classification", str(tmp_path / "bert"), 3)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("hf:translation", "x", "model.name: .*translation.*accepted: .*sequence-classification"),
        ("hf:sequence-classification", None, "model.weights: missing; hf:sequence-classification needs a directory"),
        ("hf:sequence-classification", "x", "model.weights: x has no config.json; accepted: a directory"),
    ],
)
def test_what_is_no_model_of_hugging_face_is_refused(name: str, weights: str | None, message: str) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    with pytest.raises(HushError, match=message):
        hugging_face(name, weights, 2)
