"""Fine-tuning: what a run trains and sends, what it says of the frozen model, and the saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import hush
from hush.config import parse
from hush.engines.fine_tuning import fine_tuning_warnings, frozen_score
from hush.engines.setup import prepare
from hush.seeds import rng

WIDTH = 16


class Pretrained(nn.Module):
    """Two layers that know which features matter, but not what they mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(functional.relu(self.second(functional.relu(self.first(x)))))
        return out


def pretrained(*_: object) -> nn.Module:
    """Weights from a seed."""
    module = Pretrained()
    for name, value in module.named_parameters():
        bound = value.shape[-1] ** -0.5
        value.data.copy_(torch.from_numpy(rng(0, name).uniform(-bound, bound, size=tuple(value.shape))))
    return module


def rows(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    x = rng(0, "x").normal(size=(count, 12)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(int)


def simulation(**settings: Any) -> hush.Simulation:
    given: dict[str, Any] = {"model.rank": 2, **settings}
    return hush.Simulation(
        hush.data.clients(*rows(), clients=2, classes=2), pretrained(), adapters="lora", epsilon=8.0, rounds=4,
        recipe="dp-fedavg", settings=given,
    )  # fmt: skip


def test_only_adapters_and_head_are_trained_and_what_was_before_is_said(tmp_path: Path) -> None:
    result = simulation().fit(tmp_path / "run")
    found = result.metrics["frozen"]
    size = 2 * (12 + WIDTH) + 2 * (WIDTH + WIDTH) + 2 * WIDTH + 2
    assert found["parameters"] == size
    assert found["frozen"] == 12 * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH
    assert found["trained"] == result.accuracy["mean"] > found["value"]
    assert found["moved"] > 0.1 * found["start"] > 0
    assert not any("fine-tuning" in text for text in result.warnings)
    # What a round saves and a member would send holds none of the frozen weights.
    for path in tmp_path.glob("run/**/*.safetensors"):
        with safe_open(path, framework="pt") as file:
            stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
        assert path.name == "fixed.safetensors" or stored < 8 * size, path
    loaded = hush.load(tmp_path / "run", pretrained())
    x, _ = rows(20)
    again = hush.load(tmp_path / "run", f"{__name__}:pretrained")
    own = result.predict(x)
    assert np.array_equal(loaded.predict(x), own) and np.array_equal(again.predict(x), own)
    # The user's module, with the frozen weights as they were.
    assert torch.equal(loaded.module.get_parameter("first.base.weight"), pretrained().get_parameter("first.weight"))


def test_training_that_does_not_help_is_warned_of() -> None:
    still = simulation(**{"local.lr": 1e-12}).fit()
    assert any(text.startswith("fine-tuning: accuracy") and "did not help" in text for text in still.warnings)


def test_weights_that_did_not_move_are_warned_of() -> None:
    sim = simulation()
    federation = prepare(sim.config, dataset=hush.data.clients(*rows(), clients=2, classes=2), module=pretrained())
    found = frozen_score(federation, federation.starts(), [0.5, 0.7], [0.4, 0.6])
    assert found["moved"] == 0.0 and (found["value"], found["trained"]) == pytest.approx((0.5, 0.6))
    assert fine_tuning_warnings(federation, found) == ("fine-tuning: the released weights are those before training",)
    moved = {**found, "moved": 1.0}
    assert fine_tuning_warnings(federation, moved) == ()
    assert "did not help" in fine_tuning_warnings(federation, {**moved, "trained": 0.5})[0]


def test_a_config_file_fine_tunes_weights_of_a_file(tmp_path: Path) -> None:
    save_file(pretrained().state_dict(), tmp_path / "w.safetensors")
    text = f'''
rounds = 2
data = {{name = "{__name__}:data", clients = 2}}
model = {{name = "{__name__}:Fresh", weights = "{tmp_path / "w.safetensors"}", adapters = "ffa-lora", rank = 2}}
privacy = {{budgets = 8.0}}
recipe = {{name = "hush"}}
'''
    (tmp_path / "run.toml").write_text(text)
    sim = hush.Simulation.from_toml(tmp_path / "run.toml")
    result = sim.fit()
    assert result.metrics["frozen"]["parameters"] == 2 * WIDTH + 2 * WIDTH + 2 * WIDTH + 2
    assert result.module.get_parameter("first.base.weight").equal(pretrained().get_parameter("first.weight"))


def test_a_saved_model_needs_no_pretrained_file(tmp_path: Path) -> None:
    def weights(*shape: int) -> Tensor:
        return torch.from_numpy(rng(0, "weights", *shape).normal(size=shape)).float()

    stored = {"1.weight": weights(5, 12), "1.bias": weights(5), "3.weight": weights(2, 5), "3.bias": weights(2)}
    save_file(stored, tmp_path / "w.safetensors")
    done = hush.Simulation(
        hush.data.clients(*rows(), clients=2, classes=2), "mlp", adapters="lora", weights=tmp_path / "w.safetensors",
        epsilon=8.0, rounds=1, recipe="dp-fedavg", settings={"model.hidden": 5, "model.rank": 1},
    ).fit()  # fmt: skip
    done.save(tmp_path / "saved")
    (tmp_path / "w.safetensors").unlink()
    loaded = hush.load(tmp_path / "saved")
    assert torch.equal(loaded.module.get_parameter("1.base.weight"), stored["1.weight"])
    assert np.array_equal(loaded.predict_proba(rows(20)[0]), done.predict_proba(rows(20)[0]))


def Fresh(*_: object) -> nn.Module:  # noqa: N802
    return Pretrained()


def data() -> tuple[np.ndarray, np.ndarray]:
    return rows()


def test_the_automatic_rate_of_adapters_follows_the_planned_noise() -> None:
    def lr(**given: Any) -> float:
        raw: dict[str, Any] = {
            "rounds": 4, "data": {"clients": 2}, "privacy": {"budgets": given.pop("budget", 1.0)},
            "recipe": {"name": "dp-fedavg"}, "model": {"rank": 2, **given},
        }  # fmt: skip
        federation = prepare(parse(raw), dataset=hush.data.clients(*rows(), classes=2), module=pretrained())
        return float(federation.config.local.lr)

    assert lr(adapters="lora") < lr(adapters="lora", budget=8.0)
    # The noise of fewer parameters, and as for any model whose parameters are as many.
    assert lr() < lr(adapters="lora") < lr(adapters="ffa-lora")


def test_a_config_without_fine_tuning_has_the_hash_that_it_had() -> None:
    from hush.config import Config, config_hash

    plain = Config()
    assert config_hash(plain) == config_hash(plain.model_copy(update={"model": replace_model(plain, weights=None)}))
    assert config_hash(plain) != config_hash(parse({"model": {"adapters": "lora"}}))


def replace_model(config: Any, **values: Any) -> Any:
    return config.model.model_copy(update=values)
