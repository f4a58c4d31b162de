"""Types: the frozen records that all packages share, and the one error a user sees."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

Relation = Literal["add-remove", "replace-one"]
Unit = Literal["row", "person", "client"]
Accountant = Literal["pld", "rdp", "rdp-64"]
InputType = Literal["float32", "int64", "bool"]
TargetKind = Literal["classes", "multilabel", "continuous"]


class HushError(Exception):
    """An error that the user can fix. Its message names the key or file, what was found, and what is accepted.

    It is one line: line breaks in what was found are escaped.
    `key` is the dotted config key it concerns, if any; the code that knows the file adds the line number.
    """

    def __init__(self, text: str, key: str | None = None) -> None:
        super().__init__("\\n".join(text.splitlines()))
        self.key = key


def unknown(key: str, what: str, found: object, names: Iterable[str], more: str = "", meant: str = "") -> HushError:
    """Return the error for an unknown name, with what was `meant` or the closest match, and all accepted names."""
    known = list(names)
    near = [meant] if meant else difflib.get_close_matches(str(found), known, 1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return HushError(f"{key}: unknown {what} {found!r}; {hint}accepted: {', '.join(known)}{more}", key)


@dataclass(frozen=True)
class InputPart:
    """One input of a model: its name in a dict (or none), the shape of a row, and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: InputType

    @cached_property
    def size(self) -> int:
        """Numbers in a row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class InputSpec:
    """What a stored row unpacks into: one array, or a tuple or dict of arrays, which are concatenated."""

    kind: Literal["array", "tuple", "dict"]
    parts: tuple[InputPart, ...]


@dataclass(frozen=True)
class Layout:
    """How a flat parameter vector splits into named tensors."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        """The total number of elements."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Policy:
    """The privacy requirements of a client: `unit` is what the relation adds, removes or replaces."""

    epsilon: float
    delta: float
    relation: Relation = "add-remove"
    unit: Unit = "row"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A client as the server knows it: public facts, fixed at enrolment, never taken from messages.

    `group` is its true cluster, for the oracle of a simulation; 0 if unknown. `name` is empty if clients have numbers
    only. `row_groups` are the budgets that its rows have of their own, each with the number of these rows.
    """

    client: int
    policy: Policy
    samples: int
    batch: int
    group: int = 0
    name: str = ""
    row_groups: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskExtras:
    """What a task carries in addition to its models.

    Attributes:
        clip: The clipping norm of the round, if it changes between rounds.
        input_mean: The mean subtracted from inputs.
        drift: What is added to every gradient, a row for each model of the task.
        slots: What an option on the server sends to its own client half, by name.
    """

    clip: float | None = None
    input_mean: Tensor | None = None
    drift: Tensor | None = None
    slots: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The message of one round to one client.

    Attributes:
        client: The client number.
        round: The round number.
        models: The model to train, or all models if the client is asked to choose: models x p.
        layout: How a model splits into tensors.
        answer: The layout of the vector to return.
        extras: What the options of the recipe send in addition.
    """

    client: int
    round: int
    models: Tensor
    layout: Layout
    answer: Layout
    extras: TaskExtras = field(default_factory=lambda: TaskExtras())


@dataclass(frozen=True)
class Receipt:
    """Proof that a ledger charged the cost of one round. Only `hush.privacy.ledger` creates one.

    `serial` counts the client's charges. `head` identifies the ledger row of this one. The server stores the newest
    head and sends it back, so that a client can detect that its ledger is an old copy.
    """

    client: int | str
    round: int
    serial: int
    run: str = ""
    head: str = ""


@dataclass(frozen=True, kw_only=True)
class SideAnswers:
    """What accompanies an update.

    Attributes:
        choice: The model of the task that fits the client best, if it was asked to choose.
        releases: The noisy sums of the side releases of the round, in float64, by name.
    """

    choice: int | None = None
    releases: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorFacts:
    """What is checked of a vector that is stored elsewhere. The norm is not finite where the vector is not."""

    size: int
    dtype: str
    norm: float


@dataclass(frozen=True, kw_only=True)
class Update:
    """One round's sealed answer: a flat float32 vector released by a ledger receipt, and what accompanies it.

    In large simulations the vector may be stored elsewhere: then `vector` is empty; `vector_facts` describes it.
    """

    client: int
    round: int
    vector: Tensor
    layout: Layout
    receipt: Receipt
    side: SideAnswers = field(default_factory=SideAnswers)
    vector_facts: VectorFacts | None = None


@dataclass(frozen=True)
class Decline:
    """A refusal by a client: nothing was trained, released or charged. `final`: the client leaves the run.

    `fault`: the client sent neither an update nor a refusal.
    """

    client: int
    round: int
    reason: str
    final: bool = False
    fault: bool = False


@dataclass(frozen=True)
class Release:
    """A quantity that an option of the recipe releases, and whether the accountant covers it.

    `event` is the kind of cost that the ledger is charged with for it: `sampled-gaussian` (a batch of the plan's
    sampler) or `gaussian` (all rows). It is empty for what is not covered.
    """

    what: str
    covered: bool
    why: str
    event: Literal["", "sampled-gaussian", "gaussian"] = ""


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """The record of one round. Keys of the mappings are client numbers; `charged` clients released an update.

    `stage` is the stage of the round (see `Guarantee.stages`), `placed` the model of each client if there are several,
    `bytes_up` and `bytes_down` the traffic, and `warnings` lists clients whose weight or update was limited, and why.
    `evaluation` has the figures of noised counts on held-out rows, with standard errors (`hush.server.evaluation`), in
    rounds that evaluate. `primary` names the score of the clients: an accuracy is in `accuracy_per_client`, any other
    score in `score_per_client`.
    """

    round: int
    weights: Mapping[int, float]
    noise_estimated: Mapping[int, float]
    noise_planned: Mapping[int, float]
    refused: Mapping[int, str]
    charged: tuple[int, ...] = ()
    accuracy_per_client: tuple[float, ...] = ()
    loss: float = math.nan
    seconds: float = 0.0
    stage: int = 0
    placed: Mapping[int, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    warnings: Mapping[int, str] = field(default_factory=dict)
    score_per_client: tuple[float, ...] = ()
    primary: str = "accuracy"
    evaluation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary score of each client: its accuracy in classification."""
        return self.score_per_client or self.accuracy_per_client


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The guarantee card of one client.

    `epsilon_spent` (fixed composition: as if every run of the ledger had been chosen beforehand), `epsilon_filter` (the
    privacy filter, which holds if later runs were chosen after earlier releases, and by which runs are admitted) and
    `epsilon_left` hold against the server, which sees each of the client's updates;
    `epsilon_third_party` is claimed against someone who sees only the models, for the reasons in `third_party`.
    `stages` lists the costs of one round of each stage of the run. `warnings` reports weak parameters. `name` is the
    client's name, empty if clients have numbers only. `server_view` says what the server sees, and what that changes,
    if it is less than each update. `unit` is the unit of privacy, of which there are `samples`, and
    `protects` says it in words. `row_groups` lists the groups of rows with budgets of their own: their budget, number,
    sampling rate, and epsilon over the whole run as planned.
    """

    client: int
    epsilon_budget: float | None
    epsilon_spent: float | None
    delta: float
    relation: Relation
    accountant: Accountant
    sampler: str
    noise: str
    not_covered: tuple[str, ...] = ()
    samples: int = 0
    batch_size: int = 0
    rounds: int = 0
    steps: int = 0
    sample_rate: float = 0.0
    clip: float | None = None
    noise_multiplier: float | None = None
    epsilon_left: float | None = None
    epsilon_filter: float | None = None
    epsilon_third_party: float | None = None
    third_party: str = ""
    stages: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    warnings: tuple[str, ...] = ()
    name: str = ""
    unit: Unit = "row"
    protects: str = ""
    server_view: str = ""
    row_groups: tuple[Mapping[str, float], ...] = ()


STOPPED = "stopped after round"  # how `ended` begins where a callback or a stop request ended a run


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run, as in `result.json` and `hush run --json`. Accuracies are fractions.

    `score` is the primary score over the clients, `metrics["primary"]` its name; its `std` is the sample standard
    deviation, NaN for a single client. In classification it is the accuracy, which `accuracy` and
    `accuracy_per_client` hold too; they are empty in regression, and `score_per_client` has each client's error.
    `metrics` are all metrics of the objective: `pooled`, `mean`, `worst` and `per_client`, by name.

    `evaluation` has the figures of noised counts on held-out rows, of each round that evaluated, with `round`.

    `ended` says why the run stopped early. `trained` is whether any client released an update, `out_of_budget` the
    first round that a client could not afford, for each such client. `warnings` is what to know before trusting the
    result. `clients` are the client names in order, empty if clients have numbers only.
    """

    recipe: str
    dataset: str
    model: str
    rounds: int
    seed: int
    accuracy: Mapping[str, float]
    accuracy_per_client: tuple[float, ...]
    loss: float
    guarantees: tuple[Guarantee, ...]
    not_covered: tuple[str, ...]
    ended: str
    seconds: float
    versions: Mapping[str, str]
    config_hash: str
    config: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True
    out_of_budget: Mapping[int, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    score: Mapping[str, float] = field(default_factory=dict)
    score_per_client: tuple[float, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    evaluation: tuple[Mapping[str, Any], ...] = ()

    @property
    def primary(self) -> str:
        """The name of the score that runs are compared by."""
        return str(self.metrics.get("primary", "accuracy"))

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary score of each client: its accuracy in classification."""
        return self.score_per_client or self.accuracy_per_client

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped on request, and can be resumed."""
        return self.ended.startswith(STOPPED)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped a run. `round` is the last round that was finished; `resumable` says whether it is saved."""

    def __init__(self, number: int, resumable: bool) -> None:
        self.round = number
        self.resumable = resumable
        super().__init__(self.words("resume=True"))

    def words(self, how: str) -> str:
        """What happened, and how to go on."""
        done = f"stopped after round {self.round}" if self.round else "stopped before the first round was finished"
        return f"{done}; continue with {how}" if self.resumable else f"{done}; nothing is saved, because out is not set"


class NothingTrainedError(HushError):
    """No client could afford a round, so the model is the initial one. `result` is the saved result of the run."""

    def __init__(self, text: str, result: RunResult) -> None:
        super().__init__(text)
        self.result = result
