"""A gradient of one row gives the row away, and a noised one does not."""

from __future__ import annotations

import math

import pytest

from hush.auditing.inversion import inversion
from hush.config import parse
from hush.types import HushError


@pytest.mark.parametrize("model", [{"name": "logreg"}, {"name": "mlp", "hidden": 16}])
def test_rows_are_read_off_gradients_and_not_off_noised_ones(model: dict[str, object]) -> None:
    config = parse({"rounds": 10, "data": {"clients": 10}, "model": model, "privacy": {"delta": 1e-4}})
    bare, loose, kept = inversion(config, [math.inf, 8.0, 1.0], rows=20)
    assert min(bare.correlations) > 0.999
    assert float(abs(bare.found - bare.originals).max()) < 1e-2
    mean = [sum(map(abs, each.correlations)) / 20 for each in (loose, kept)]
    assert max(mean) < 0.35
    assert bare.noise_multiplier == 0.0 < loose.noise_multiplier < kept.noise_multiplier


def test_models_without_such_a_layer_are_named() -> None:
    config = parse({"data": {"name": "digits", "clients": 4}, "model": {"name": "cnn"}})
    with pytest.raises(HushError, match="begins with a linear layer"):
        inversion(config, [1.0])
