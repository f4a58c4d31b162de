"""The frozen records that cross every seam of Hush, and the one error a user sees."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

Relation = Literal["add-remove", "replace-one"]
Accountant = Literal["pld", "rdp", "rdp-64"]


class HushError(Exception):
    """A mistake the user can mend. Its text names the key or file, what was found, and what is accepted.

    `key` is the dotted config key it concerns, if any: whoever knows the file adds the line.
    """

    def __init__(self, text: str, key: str | None = None) -> None:
        super().__init__(text)
        self.key = key


def unknown(key: str, what: str, found: object, names: Iterable[str], more: str = "") -> HushError:
    """The error for a name that is not known: it offers the nearest one, and all that are accepted."""
    known = list(names)
    near = difflib.get_close_matches(str(found), known, 1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    return HushError(f"{key}: unknown {what} {found!r}; {hint}accepted: {', '.join(known)}{more}", key)


@dataclass(frozen=True)
class Layout:
    """How a flat parameter vector splits into named tensors."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Numbers in all."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Policy:
    """What a client insists on."""

    epsilon: float
    delta: float
    relation: Relation = "add-remove"


@dataclass(frozen=True)
class Member:
    """A client as the server knows it: public facts, fixed at enrolment, never read from messages.

    `group` is its true cluster, for the oracle of a simulation; 0 where nobody knows.
    """

    client: int
    policy: Policy
    samples: int
    batch: int
    group: int = 0


@dataclass(frozen=True)
class Task:
    """One round's message to one client.

    Attributes:
        client: Its number.
        round: The round's.
        models: The model to work on, or all there are where the client is asked to choose: models x p.
        layout: How a model splits into tensors.
        answer: The layout of the vector that is to come back.
        notes: What the recipe's choices tell the client besides, by name.
    """

    client: int
    round: int
    models: Tensor
    layout: Layout
    answer: Layout
    notes: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """Proof that a ledger reserved the cost of one round. Only `hush.privacy.ledger` makes one.

    `serial` counts the client's charges. `head` names the ledger row of this one: the server keeps the newest and
    echoes it, so that a client can tell when its ledger is an old copy.
    """

    client: int | str
    round: int
    serial: int
    run: str = ""
    head: str = ""


@dataclass(frozen=True)
class Update:
    """One round's sealed answer: a flat float32 vector that a ledger receipt allowed out, and a few numbers by name."""

    client: int
    round: int
    vector: Tensor
    layout: Layout
    receipt: Receipt
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Its numbers on the wire: four bytes for each of the vector, eight for each of the notes."""
        return 4 * self.vector.numel() + 8 * len(self.notes)


@dataclass(frozen=True)
class Decline:
    """A client's no: nothing was trained, released or charged. `final` means that it will not come back."""

    client: int
    round: int
    reason: str
    final: bool = False


@dataclass(frozen=True)
class Release:
    """Something a choice of the recipe reveals, and whether the accountant covers it.

    `event` is the kind of cost that the ledger is charged with for it: `sampled-gaussian` (a batch of the plan's
    sampler) or `gaussian` (all rows). What is not covered has none.
    """

    what: str
    covered: bool
    why: str
    event: Literal["", "sampled-gaussian", "gaussian"] = ""


@dataclass(frozen=True)
class RoundRecord:
    """What is kept of one round. Keys of the mappings are client numbers; `charged` clients released an update.

    `stage` says what the round asked (see `Guarantee.stages`), `placed` which model each client worked on where there
    are several, `bytes_up` and `bytes_down` what went over the wire.
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


@dataclass(frozen=True)
class Guarantee:
    """The guarantee card of one client.

    `epsilon_spent` and `epsilon_left` are toward the server, which sees each of the client's updates;
    `epsilon_third_party` is toward someone who sees only the models, on the grounds that `third_party` names. `stages`
    lists the costs of one round of each stage of the run.
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
    epsilon_third_party: float | None = None
    third_party: str = ""
    stages: tuple[tuple[Mapping[str, Any], ...], ...] = ()


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run, as `result.json` and `hush run --json` show it. Accuracies are fractions.

    `ended` says why the run stopped where it did.
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
