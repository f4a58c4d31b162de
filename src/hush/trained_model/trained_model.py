"""A trained model, to predict with, to save and to export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hush.data.input_format import InputFormat
from hush.data.schema import Schema
from hush.objective import Objective
from hush.text import printable
from hush.trained_model.network import own_module
from hush.types import Guarantee, HushError

Array = npt.NDArray[Any]
_AT_ONCE = 4096  # rows that go through a network at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model as a run released it.

    `print(model)` says what it is; `predict` takes rows as the training data had them, without labels.

    Attributes:
        networks: Each model of the run, for rows as they are stored. `module` and `modules` are what a user wants.
        name: Of the architecture: a built-in one, `module:factory`, or what a user's own is called.
        settings: As `[model]` of the config.
        own: Whether the architecture is the user's.
        parameters: The trained parameters' shapes by name.
        input_format: How rows are read and preprocessed.
        objective: What is predicted, and how outputs become predictions; its loss and metrics play no part here.
        class_values: The classes as the labels of the rows had them, in the order of the outputs; none for real numbers
            and for several labels per row.
        clients: What the clients are called.
        placed: Which model each of them uses, in their order.
        recipe: The recipe that trained it.
        rounds: How many rounds it was trained.
        trained: Whether any client released an update; else the weights are the initial ones.
        guarantees: The guarantee card of each client.
        not_covered: What no epsilon covers.
        warnings: What to know before trusting it.
        config_hash: Of the run's config.
        versions: Of the packages that trained it.
    """

    networks: tuple[nn.Module, ...] = field(repr=False)
    name: str
    settings: Mapping[str, Any]
    own: bool
    parameters: Mapping[str, tuple[int, ...]]
    input_format: InputFormat
    objective: Objective
    class_values: tuple[Any, ...]
    clients: tuple[str, ...]
    placed: tuple[int, ...]
    recipe: str
    rounds: int
    trained: bool
    guarantees: tuple[Guarantee, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    config_hash: str
    versions: Mapping[str, str]

    @property
    def module(self) -> nn.Module:
        """The module with the trained weights: of the user's own class, or the built-in architecture."""
        if len(self.networks) > 1:
            raise HushError(
                f"module: {len(self.networks)} models were trained; accepted: modules[number], or module_of(client)"
            )
        return self.modules[0]

    @cached_property
    def modules(self) -> tuple[nn.Module, ...]:
        """One module for each model that was trained; `placed` says which client uses which."""
        return tuple(map(own_module, self.networks))

    @property
    def schema(self) -> Schema | None:
        """What the columns may hold, where a schema was declared."""
        return self.input_format.schema

    def module_of(self, client: str | int) -> nn.Module:
        """Return the module that a client uses, by its name or number."""
        return self.modules[self._placed(client)]

    def predict(self, x: object, *, client: str | int | None = None) -> Array:
        """Return the prediction for each row.

        A class is as the labels of the training data were (text, integer, ...); several labels per row are zeros and
        ones, and real numbers in the units of the targets.

        Args:
            x: Rows as the training data had them: arrays, a DataFrame, a tuple or dict of arrays, or the path of a CSV,
                Parquet or NPZ file. Columns are matched by name; columns with labels and clients are ignored.
            client: Whose model to use, by name or number, where several were trained. A client column says it for each
                row.
        """
        return self.labels(self.raw_outputs(x, client=client))

    def predict_proba(self, x: object, *, client: str | int | None = None) -> Array:
        """Return the probability of each class or label (n, classes), in the order of `output_names`.

        Arguments as for `predict`.

        Raises:
            HushError: Real numbers are predicted, which have no probabilities.
        """
        return self.probabilities(self.raw_outputs(x, client=client))

    def raw_outputs(self, x: object, *, client: str | int | None = None) -> Array:
        """Return the outputs of the module for each row (n, outputs), such as logits; arguments as for `predict`."""
        rows, named = self.input_format.stored(x)
        if client is not None:
            numbers = np.full(len(rows), self._placed(client))
        elif len(self.networks) == 1:
            numbers = np.zeros(len(rows), np.int64)
        elif named is not None:
            numbers = np.array([self._placed(each) for each in named], np.int64)
        else:
            raise HushError(
                f"client: missing, and {len(self.networks)} models were trained; accepted: {_listed(self.clients)}"
            )
        return self._raw(rows, numbers)

    def labels(self, raw: Array) -> Array:
        """Return the predictions for raw outputs."""
        found: Array = self.objective.predictions(self._outputs(raw)).numpy()
        if not self.class_values:
            return found
        kinds = {type(value) for value in self.class_values}
        values = np.array(self.class_values, dtype=None if len(kinds) == 1 else object)
        labels: Array = values[found]
        return labels

    def probabilities(self, raw: Array) -> Array:
        """Return the probabilities of the classes or labels for raw outputs."""
        found = self.objective.probabilities(self._outputs(raw))
        if found is None:
            raise HushError("predict_proba: real numbers have no probabilities; accepted: predict")
        probabilities: Array = found.numpy()
        return probabilities

    @property
    def output_names(self) -> tuple[str, ...]:
        """What is predicted: the classes, or the columns of labels or targets."""
        if self.class_values:
            return tuple(map(str, self.class_values))
        named, number = self.input_format.label_columns, self.objective.outputs
        return named if len(named) == number else tuple(map(str, range(number)))

    def prediction_table(self, raw: Array, probabilities: bool = False) -> dict[str, list[Any]]:
        """Return predictions, and optionally probabilities, as columns by name: one for each label or target."""
        found, names = self.labels(raw), self.output_names
        if found.ndim == 1:
            table = {"prediction": found.tolist()}
        else:
            table = {f"prediction of {name}": found[:, at].tolist() for at, name in enumerate(names)}
        if probabilities:
            each = self.probabilities(raw)
            table |= {f"probability of {name}": each[:, at].tolist() for at, name in enumerate(names)}
        return table

    def save(self, directory: str | Path) -> Path:
        """Write the model to an empty or new directory, for `hush.load`: weights as safetensors, all else as JSON.

        A module of the user's own is stored by its weights: who loads it brings the class.
        """
        from hush.trained_model.files import save

        return save(self, Path(directory))

    def export(self, kind: str, path: str | Path, *, client: str | int | None = None) -> Path:
        """Write one module as a program without Python: "onnx", or "torch.export".

        The program has the module's own inputs and outputs, for any number of rows; preprocessing is not part of it.

        Args:
            kind: Of file. "onnx" needs the packages onnx and onnxscript (`pip install hush[onnx]`).
            path: The file to write.
            client: Whose module, where several were trained.

        Raises:
            HushError: The module cannot be exported, with the reason.
        """
        from hush.trained_model.export import export

        number = 0 if client is None and len(self.networks) == 1 else self._placed(client)
        return export(self.modules[number], self.input_format, kind, Path(path))

    def __repr__(self) -> str:
        spent = [card.epsilon_spent for card in self.guarantees if card.epsilon_spent is not None]
        size = sum(int(np.prod(shape)) for shape in self.parameters.values())
        several = f"{len(self.networks)} models of " if len(self.networks) > 1 else ""
        what = f"{self.objective.task}, {len(self.class_values) or self.objective.outputs} outputs"
        return printable(
            f"TrainedModel({self.name}: {several}{size:,} parameters, {what}, recipe {self.recipe}, "
            f"{self.rounds} rounds, {len(self.clients)} clients"
            + (f", epsilon spent {min(spent):.3g} to {max(spent):.3g}" if spent else "")
            + ("" if self.trained else ", NOT TRAINED")
            + ")"
        )

    def _placed(self, client: object) -> int:
        """Return the number of the model that a client uses."""
        if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < len(self.clients):
            return self.placed[int(client)]
        if isinstance(client, str) and client in self.clients:
            return self.placed[self.clients.index(client)]
        raise HushError(f"client: found {client!r:.80}; accepted: {_listed(self.clients)}, or its number")

    @torch.no_grad()
    def _raw(self, rows: npt.NDArray[np.float32], numbers: npt.NDArray[Any]) -> Array:
        out: Array = np.zeros((len(rows), self.objective.outputs), np.float32)
        for number in np.unique(numbers):
            mine = np.flatnonzero(numbers == number)
            for start in range(0, len(mine), _AT_ONCE):
                part = mine[start : start + _AT_ONCE]
                out[part] = self.networks[number](torch.from_numpy(rows[part])).float().cpu().numpy()
        return out

    def _outputs(self, raw: Array) -> Tensor:
        """Return raw outputs without surplus ones: a module may have more outputs than there are classes."""
        used = len(self.class_values) or raw.shape[1]
        return torch.from_numpy(np.ascontiguousarray(raw[:, :used]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:20])) + (" ..." if len(names) > 20 else "")
