"""Frozen encoders: every kind, what is refused and how it is said, rows by themselves, fingerprints, and scales."""

from __future__ import annotations

import importlib
import shutil
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hush.config import ModelConfig
from hush.models import build_model, encoders
from hush.models.encoders import encoder_of, is_code, is_factory, scaled
from hush.seeds import rng
from hush.types import HushError, InputPart, InputSpec

SHAPE = (1, 8, 8)
HERE = __name__


def rows(number: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.from_numpy(rng(0, "rows").normal(size=(number, *shape))).float()


def convolutions() -> nn.Module:
    """With BatchNorm, whose statistics are fixed in evaluation mode, and dropout, which drops nothing there."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2))


class Ungraded(nn.Module):
    """A module whose author takes no gradients through it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 5)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out


class Centred(nn.Module):
    """One whose features of a row depend on the other rows."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat - flat.mean(0)


class Counting(nn.Module):
    """One that keeps state between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.flatten(1) + self.calls


class Words(nn.Module):
    """One that looks tokens up, and takes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        states = self.table(tokens) * mask[..., None]
        return {"features": states.sum(1)}


def sized(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 4))


def nothing() -> int:
    return 3


def encoder(name: str, **settings: Any) -> encoders.Encoder:
    found = encoder_of(ModelConfig(encoder=name, **settings), SHAPE)
    assert found is not None
    return found


def script(module: nn.Module, path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module.eval()), path)
    return str(path)


def test_a_factory_is_frozen_and_evaluated_row_by_row() -> None:
    found = encoder(f"{HERE}:convolutions", features="as-given")
    assert found.shape == (12,) and len(found.fingerprint) == 64
    x = rows()
    together = found.features(x)
    assert together.shape == (6, 12) and not together.requires_grad
    assert torch.allclose(together, torch.cat([found.features(row[None]) for row in x]), atol=1e-6)
    # Dropout drops nothing, and statistics of BatchNorm stay: a second call is the same.
    assert torch.equal(together, found.features(x))
    assert found.features(x[:0]).shape == (0, 12)


def test_factories_get_the_shape_if_they_ask_for_it_and_begin_alike() -> None:
    one, other = encoder(f"{HERE}:sized"), encoder(f"{HERE}:sized")
    assert one.key == other.key and one.fingerprint == other.fingerprint
    assert torch.equal(one.features(rows()), other.features(rows()))


def test_a_module_without_gradients_is_accepted() -> None:
    assert encoder(f"{HERE}:Ungraded").features(rows()).shape == (6, 5)


@pytest.mark.parametrize("name", ["Centred", "Counting"])
def test_rows_that_depend_on_others_are_refused(name: str) -> None:
    found = encoder(f"{HERE}:{name}")
    with pytest.raises(HushError, match=r"^model.encoder: model .*(examples|state)") as caught:
        found.features(rows())
    assert "\n" not in str(caught.value)


def test_several_inputs_reach_the_encoder_by_name() -> None:
    parts = (InputPart("tokens", (4,), "int64"), InputPart("mask", (4,), "bool"))
    found = encoder_of(ModelConfig(encoder=f"{HERE}:Words", features="as-given"), (8,), InputSpec("dict", parts))
    assert found is not None and found.shape == (3,)
    x = torch.tensor([[1.0, 2, 0, 0, 1, 1, 0, 0], [3, 3, 3, 0, 1, 1, 1, 0]])
    assert torch.allclose(found.features(x)[:1], found.features(x[:1]))


def test_weights_come_from_a_file_and_decide_the_fingerprint(tmp_path: Path) -> None:
    module = sized(SHAPE)
    with torch.no_grad():
        module[1].weight.fill_(0.5)  # type: ignore[index]
    path = tmp_path / "encoder.safetensors"
    save_file(module.state_dict(), path)
    plain, found = encoder(f"{HERE}:sized"), encoder(f"{HERE}:sized", weights=str(path), features="as-given")
    expected = module(rows())
    assert torch.allclose(found.features(rows()), expected)
    assert found.fingerprint != plain.fingerprint and found.key != plain.key
    again = encoder(f"{HERE}:sized", weights=str(path), fingerprint=found.fingerprint)
    # How features are scaled changes them, and not the weights.
    assert again.fingerprint == found.fingerprint and again.key != found.key
    with pytest.raises(HushError, match=r"^model.fingerprint: the weights of .* and .* is needed"):
        encoder(f"{HERE}:sized", fingerprint=found.fingerprint)


def test_the_key_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = encoder(f"{HERE}:Ungraded")

    def forward(self: Ungraded, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1)).abs()
        return out

    monkeypatch.setattr(Ungraded, "forward", forward)
    after = encoder(f"{HERE}:Ungraded")
    assert after.key != before.key and after.fingerprint == before.fingerprint


def test_the_key_follows_what_other_files_of_the_user_define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else features that another version computed would be found on disk. The encoder has no parameters."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_encoder.py").write_text(
        "import own_helpers\nfrom own_helpers import Shift\nfrom torch import nn\n\n"
        "class Scaled(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return Shift().by(own_helpers.scaled(x.flatten(1)))\n"
    )
    versions = [
        ("1.0", "0.0", "1.0"),
        ("3.0", "0.0", "1.0"),
        ("1.0", "0.5", "1.0"),
        ("1.0", "0.0", "2.0"),
        ("1.0", "0.0", "1.0"),
    ]
    keys = []
    for scale, shift, factor in versions:
        (tmp_path / "own_helpers.py").write_text(
            f"FACTOR = {factor}\n\ndef scaled(x):\n    return {scale} * x * FACTOR\n\n"
            f"class Shift:\n    def by(self, x):\n        return x + {shift} * x\n"
        )
        for name in ("own_helpers", "own_encoder"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        found = encoder("own_encoder:Scaled", features="as-given")
        expected = float(scale) * float(factor) * (1.0 + float(shift)) * rows().flatten(1)
        torch.testing.assert_close(found.features(rows()), expected)
        keys.append(found.key)
    assert keys[0] == keys[-1] and len(set(keys)) == 4


def test_torchscript_files_compute_one_row_at_a_time(tmp_path: Path) -> None:
    module = convolutions().eval()
    found = encoder(script(module, tmp_path / "encoder.pt"), features="as-given")
    assert found.shape == (12,)
    assert torch.allclose(found.features(rows()), module(rows()).flatten(1), atol=1e-6)
    # Even if the rows of a batch are mixed, one row at a time has nothing to mix with.
    mixing = encoder(script(Centred(), tmp_path / "mixing.pt"), features="as-given")
    assert torch.equal(mixing.features(rows()), torch.zeros(6, 64))


def test_torchscript_with_state_or_random_numbers_is_refused(tmp_path: Path) -> None:
    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) + torch.rand_like(x.flatten(1))

    for module, words in ((Counting(), "keeps state between calls"), (Drawing(), "draws random numbers")):
        with pytest.raises(HushError, match=words):
            encoder(script(module, tmp_path / "encoder.pt"))


class Remembering(nn.Module):
    """What a traced file holds as constants can be written to: a tensor from outside, or statistics of a batch."""

    def __init__(self, *, statistics: bool = False) -> None:
        super().__init__()
        self.kept, self.statistics = torch.zeros(64), statistics

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self.statistics:
            flat = torch.cat([flat, flat + 1.0])
            return nn.functional.batch_norm(flat, self.kept, torch.ones(64), training=True)[:1] + self.kept
        self.kept.mul_(0.5).add_(flat[0])
        return flat + self.kept


class Neighbouring(nn.Module):
    """Reads where the first row of a batch would lie."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_strided(x, (1, 64), (64, 1), 0)


class Unwritten(nn.Module):
    """Reads memory that was given back before."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.empty(64)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Remembering(), r"keeps state between calls \(writes to a constant\)"),
        (Remembering(statistics=True), r"keeps state between calls \(writes to a constant\)"),
        (Neighbouring(), r"reads memory beyond its tensors' own values \(aten::as_strided\)"),
        (Unwritten(), r"reads memory beyond its tensors' own values \(aten::empty\)"),
    ],
)
def test_traced_files_that_reach_other_rows_are_refused(module: nn.Module, words: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module, rows(1), check_trace=False), path)
    with pytest.raises(HushError, match=words):
        encoder(str(path))


def test_torchscript_may_write_to_its_own_row(tmp_path: Path) -> None:
    class Rectified(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.relu(x.flatten(1), inplace=True)

    found, x = encoder(script(Rectified(), tmp_path / "encoder.pt"), features="as-given"), rows()
    before = x.clone()
    assert torch.equal(found.features(x), before.flatten(1).relu()) and torch.equal(x, before)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pickled.pt"
    path.write_bytes(b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.")
    with pytest.raises(HushError, match=r"is no TorchScript file; accepted: what torch.jit.save wrote"):
        encoder(str(path))


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    script(convolutions(), tmp_path / "encoder.pt")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"encoder": "resnet50"}, r"^model.encoder: found 'resnet50'; accepted: timm:NAME"),
        ({"encoder": str(tmp_path / "none.pt")}, "is not there; accepted: a file that torch.jit.save wrote"),
        ({"encoder": "timm:resnet50_gn"}, "needs the package timm; accepted: pip install timm"),
        ({"encoder": "no_such_module:make"}, "expected module:factory"),
        ({"encoder": f"{HERE}:nothing"}, "returned int"),
        ({"encoder": f"{HERE}:sized", "weights": str(tmp_path / "w.safetensors")}, r"^model.weights: .* is not there"),
        ({"encoder": str(tmp_path / "encoder.pt"), "weights": "w"}, "a TorchScript file has its own"),
    ]
    for settings, words in cases:
        with pytest.raises(HushError, match=words) as caught:
            encoder_of(ModelConfig(**settings), SHAPE)
        assert "\n" not in str(caught.value)


def test_settings_that_do_not_go_together_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"head": "linear"}, r"^model.head"),
        ({"features": "unit-norm"}, r"^model.features: given without an encoder"),
        ({"encoder": f"{HERE}:sized", "head": ["fc"]}, r"^model.head"),
        ({"encoder": f"{HERE}:sized", "name": "mlp", "head": "linear"}, r"^model.name"),
        ({"encoder": f"{HERE}:sized", "name": "cnn"}, r"^model.name"),
        ({"encoder": f"{HERE}:sized", "adapters": "lora"}, r"^model.adapters"),
    ]
    for settings, words in cases:
        with pytest.raises(HushError, match=words):
            build_model(ModelConfig(**settings), SHAPE, 3, 0)


def test_a_head_is_built_behind_the_features() -> None:
    linear = build_model(ModelConfig(encoder=f"{HERE}:convolutions", head="linear"), SHAPE, 3, 0)
    assert linear.layout.size == 3 * 13 and linear.behind(SHAPE) == (12,) and linear.encoder
    assert linear.name == f"logreg behind {HERE}:convolutions"
    hidden = build_model(ModelConfig(encoder=f"{HERE}:convolutions", name="mlp", hidden=5), SHAPE, 3, 0)
    assert hidden.layout.size == 5 * 13 + 3 * 6


def test_scattering_is_an_encoder_of_the_same_kind() -> None:
    one = build_model(ModelConfig(encoder="scattering"), SHAPE, 3, 0)
    other = build_model(ModelConfig(name="scattering-linear"), SHAPE, 3, 0)
    assert one.features is other.features and one.features_key == other.features_key
    assert torch.equal(one.start, other.start) and one.behind(SHAPE) == other.behind(SHAPE) == (324,)


def test_scales_treat_each_row_by_itself() -> None:
    x = 3 + rows(4, (10,))
    normal, unit = scaled(x, "group-norm"), scaled(x, "unit-norm")
    assert torch.allclose(normal.mean(1), torch.zeros(4), atol=1e-6)
    assert torch.allclose(normal.norm(dim=1), torch.full((4,), 10.0**0.5), atol=1e-3)
    assert torch.allclose(unit.norm(dim=1), torch.full((4,), 10.0**0.5), atol=1e-4)
    assert scaled(x, "as-given") is x
    for scale in ("group-norm", "unit-norm"):
        assert torch.allclose(scaled(x, scale)[2:3], scaled(x[2:3], scale))
        assert bool(scaled(torch.zeros(2, 10), scale).isfinite().all())


def test_what_runs_code_and_what_names_files() -> None:
    assert is_factory("a:b") and not is_factory("hf:dir") and not is_factory("timm:a") and not is_factory("c:/x.pt")
    assert is_code("a:b") and is_code("x.pt") and not is_code("hf:dir") and not is_code("scattering")


def test_models_of_timm_take_weights_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not needed here: a stand-in makes models as it does."""

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert not pretrained and num_classes == 0
        if name != "small":
            raise RuntimeError("Unknown model")
        made: Any = nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
        made.default_cfg = {"classifier": "head"}
        return nn.Module.eval(made)

    stand_in = types.ModuleType("timm")
    stand_in.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    draw = rng(0, "timm")
    tensors = {name: torch.from_numpy(draw.normal(size=size)).float() for name, size in
               (("1.weight", (7, 64)), ("1.bias", (7,)), ("head.weight", (3, 7)))}  # fmt: skip
    path = tmp_path / "small.safetensors"
    save_file(tensors, path)
    found = encoder("timm:small", weights=str(path), features="as-given")
    expected = rows().flatten(1) @ tensors["1.weight"].T + tensors["1.bias"]
    assert torch.allclose(found.features(rows()), expected, atol=1e-5)
    with pytest.raises(HushError, match=r"^model.weights: missing; timm:small needs a file of safetensors"):
        encoder("timm:small")
    with pytest.raises(HushError, match="timm:other cannot be made: Unknown model"):
        encoder("timm:other", weights=str(path))


@pytest.mark.slow
def test_models_of_hugging_face_are_read_from_a_directory(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = transformers.DistilBertModel(
        transformers.DistilBertConfig(vocab_size=20, dim=8, hidden_dim=16, n_layers=1, n_heads=2)
    ).eval()
    text.save_pretrained(tmp_path / "text")
    parts = (InputPart("input_ids", (5,), "int64"), InputPart("attention_mask", (5,), "int64"))
    config = ModelConfig(encoder=f"hf:{tmp_path / 'text'}", features="as-given")
    found = encoder_of(config, (10,), InputSpec("dict", parts))
    assert found is not None and found.shape == (8,)
    tokens, mask = torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 1]]), torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
    x = torch.cat([tokens, mask], 1).float()
    with torch.no_grad():
        states = text(input_ids=tokens, attention_mask=mask).last_hidden_state
    expected = torch.stack([states[0, :3].mean(0), states[1].mean(0)])
    assert torch.allclose(found.features(x), expected, atol=1e-5)

    image = transformers.ViTModel(
        transformers.ViTConfig(
            image_size=8, patch_size=4, num_channels=1, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2,
        )
    ).eval()  # fmt: skip
    image.save_pretrained(tmp_path / "image")
    seen = encoder(f"hf:{tmp_path / 'image'}", features="as-given")
    with torch.no_grad():
        assert torch.allclose(seen.features(rows()), image(rows()).last_hidden_state.mean(1), atol=1e-5)

    for name, words in ((tmp_path / "none", r"cannot be read as hf:.*nothing is downloaded"), ("bert-x", "cannot be")):
        with pytest.raises(HushError, match=rf"^model.encoder: .*{words}"):
            encoder(f"hf:{name}")
    (tmp_path / "image" / "model.safetensors").unlink()
    with pytest.raises(HushError, match="cannot be read"):
        encoder(f"hf:{tmp_path / 'image'}")
