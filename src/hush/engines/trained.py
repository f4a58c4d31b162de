"""The trained model of a run, from the federation and the models that its last round released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from hush.data.input_format import format_of
from hush.engines.setup import Federation
from hush.objective import CLASSIFICATION
from hush.trained_model import TrainedModel
from hush.trained_model.network import network_of, own_module
from hush.types import RunResult


def trained_model(federation: Federation, models: Tensor, placed: Sequence[int], result: RunResult) -> TrainedModel:
    """Return the trained model of a run.

    Args:
        federation: As it was planned.
        models: The released models, models x p, for inputs as they are (`hush.engines.driver.uncentred`).
        placed: Which of them each client uses.
        result: The result of the run.
    """
    data, config = federation.data.dataset, federation.config
    layout = federation.model.layout
    classes = data.class_values or tuple(range(data.classes))
    return TrainedModel(
        networks=tuple(network_of(federation.model, vector) for vector in models),
        name=federation.model.name,
        settings={**config.model.model_dump(), **_encoder(federation)},
        own=architecture(federation) is not None,
        parameters=dict(zip(layout.names, layout.shapes, strict=True)),
        input_format=format_of(data, config.data.rows),
        objective=replace(federation.model.objective, loss=CLASSIFICATION.loss, metrics=()),
        class_values=classes if data.targets == "classes" else (),
        clients=result.clients or tuple(str(member.client) for member in federation.members),
        placed=tuple(placed),
        recipe=result.recipe,
        rounds=result.rounds,
        trained=result.trained,
        guarantees=result.guarantees,
        not_covered=result.not_covered,
        warnings=result.warnings,
        config_hash=result.config_hash,
        versions=result.versions,
    )


def _encoder(federation: Federation) -> dict[str, str]:
    """Return the fingerprint of the frozen encoder, by which a saved model knows it; its weights are not saved."""
    fingerprint = federation.model.encoder
    return {"fingerprint": fingerprint} if fingerprint else {}


def architecture(federation: Federation) -> nn.Module | None:
    """Return the module that the user brought; none where the model is a built-in one."""
    source = federation.model.source
    return None if source is None else own_module(source)
