"""Clusters, options of `assign` with several models: who works on which is learnt from updates, losses, or both.

Updates are noised already, so what is learnt from them is free. What a client says about its losses is not: its choice
is made from noised sums and charged, or else named as not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hush.privacy.plan import NoisePer
from hush.privacy.schedule import RoundSpec
from hush.privacy.sensitivity import FLOAT64_SLACK
from hush.privacy.side_release import ReleaseShape, RowModel, SideRelease
from hush.recipes.context import NO_MODEL, RoundView, ServerRng, State
from hush.recipes.estimators import mean_clusters, mixture
from hush.recipes.interfaces import Assign
from hush.types import Release

CHOICE = "cluster choice"
MOST_COPIES = 32  # of a client's rows, which are in memory together


@dataclass(frozen=True)
class ClusterChoice(SideRelease):
    """The bounded losses of each model, lowered by half their bound. The client sends which is least, and no sum."""

    def width(self, shape: ReleaseShape) -> int:
        """Return the width: one number for each model."""
        return shape.models

    def bound(self, shape: ReleaseShape) -> float:
        """Return half the bound of a loss for each model, rounding included."""
        return 0.5 * shape.loss_clip * math.sqrt(shape.models) * (1.0 + FLOAT64_SLACK)

    @property
    def sent(self) -> bool:
        """The choice is."""
        return False

    def row(self, x: Tensor, y: Tensor, model: RowModel) -> Tensor:
        """It needs all models: `hush.engines.side_releases` sums it."""
        raise TypeError(f"{self.what}: is not computed row by row")


class _Several(Assign):
    """Clients stay where they were, unless something is learnt."""

    clusters: int

    @property
    def models(self) -> int:
        """As many as there are clusters."""
        return self.clusters

    def start(self, clients: int) -> State:
        """Return a state with all clients on the first model."""
        return {"assignments": torch.zeros(clients, dtype=torch.int64)}

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, rng: ServerRng) -> tuple[list[int], State]:
        """Store the model of each client."""
        return list(placed), _moved(state, view.clients, placed)

    def assignments(self, clients: Sequence[int], state: State) -> list[int]:
        """Return where each client was last."""
        return [int(model) for model in state["assignments"][list(clients)]]

    def offers(self, number: int, state: State) -> bool:
        """Return all of them, always."""
        return True


@dataclass(frozen=True)
class Oracle(_Several):
    """The true clusters, which only a simulation knows: the bound for all others."""

    rule: ClassVar[str] = "oracle"
    clusters: int = 2

    def __post_init__(self) -> None:
        _check_number(self.clusters)

    def place(self, view: RoundView, state: State, rng: ServerRng) -> list[int]:
        """Return each client with its own kind."""
        return [int(group) for group in view.groups[list(view.clients)]]

    def releases(self) -> tuple[Release, ...]:
        """Return the truth."""
        return (Release("true cluster", False, "assumed known: an upper bound for comparison, not an algorithm"),)


@dataclass(frozen=True)
class _Choosing(_Several):
    """Clients choose by their losses.

    `share` is what a choice costs over what a round of training costs; 0 sends the true choice, which nothing covers.
    `every` says in how many rounds a client chooses again; in the others it keeps its model.
    """

    clusters: int = 2
    share: float = 0.2
    every: int = 10

    def __post_init__(self) -> None:
        if self.share < 0:
            raise ValueError(f"share: expected 0 or more, found {self.share}")
        if self.every < 1:
            raise ValueError(f"every: expected 1 or more rounds, found {self.every}")

    def chooses(self) -> RoundSpec:
        """Return the specification of a round in which clients choose."""
        return RoundSpec(choose=True, side_releases=(ClusterChoice(CHOICE, self.share),) if self.share else ())

    def releases(self) -> tuple[Release, ...]:
        """Return the choice."""
        if self.share:
            return (Release(CHOICE, True, "computed from noisy sums of bounded losses, charged each time", "gaussian"),)
        return (Release(CHOICE, False, "computed from the client's true losses and sent without noise"),)


@dataclass(frozen=True)
class ByLoss(_Choosing):
    """Models start apart, and clients choose by loss from the first round on (IFCA; f-CDPFL)."""

    rule: ClassVar[str] = "by-loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number(self.clusters)

    @property
    def alike(self) -> bool:
        """They are distinguished by where they start."""
        return False

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """Request a choice every `every` rounds, beginning with the first."""
        return self.chooses() if number and (number - 1) % self.every == 0 else RoundSpec(train=number > 0)


@dataclass(frozen=True, kw_only=True)
class GmmThenLoss(_Choosing):
    """RC-DPFL: clusters from the updates of one full-batch round, drawn from for a while, then chosen by loss.

    `switch` is E_c; 0 takes it from the overlap of the clusters. In rounds 1 to E_c clusters are drawn for the round
    after (Algorithm 1), so that clients first train on the model that they chose in round E_c + 2. What clients are
    asked must be known before the run, so they are asked to choose from round 4 on; choices count after E_c + 1.
    `clusters` is given, or 0: then as many as suit the updates best, up to `most`. `features`: `centred`, or
    `standardised` as the paper's code has it. `mixing`: the shares of the clusters in the mixture, `equal` as in the
    code of the paper's successor, or `fitted`. `copies`: how many times the first round's full batch has each image,
    once as it is and else shifted by up to two pixels each way (section 4.3). `noise_per` says what its noise is for:
    all copies of a `row`, which leaves the noise of the mean as it is without them; or one `copy`, as the paper's
    argument needs, which divides the noise by their number and is named as not covered.
    """

    rule: ClassVar[str] = "gmm-then-loss"
    most: int = 6
    switch: int = 0
    features: mixture.Scale = "centred"
    mixing: mixture.Mixing = "equal"
    copies: int = 1
    noise_per: NoisePer = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.switch < 0 or self.switch == 1:
            raise ValueError(f"switch: expected 0, or 2 or more, found {self.switch}")
        if self.clusters < 0 or self.most < 1:
            raise ValueError(f"clusters: expected 0 or more, and most 1 or more, found {self.clusters}, {self.most}")
        if not 1 <= self.copies <= MOST_COPIES:
            raise ValueError(f"copies: expected 1 to {MOST_COPIES}, found {self.copies}")

    @property
    def models(self) -> int:
        """As many as there are clusters, or may be."""
        return self.clusters or self.most

    @property
    def number_given(self) -> bool:
        """Unless it is to be found."""
        return self.clusters > 0

    def round_spec(self, number: int, rounds: int) -> RoundSpec:
        """Return a full batch first; later a choice every so many rounds."""
        if number == 1:
            return RoundSpec(full_batch=True, copies=self.copies, noise_per=self._noise_per)
        since = number - 2 - (self.switch or 2)
        return self.chooses() if since >= 0 and since % self.every == 0 else RoundSpec(train=number > 0)

    def releases(self) -> tuple[Release, ...]:
        """Return the choice, and the first update if its noise is for single copies."""
        if self._noise_per == "row":
            return super().releases()
        text = f"its noise is for one of the {self.copies} copies of each row, so a row has 1/{self.copies} of it"
        return (*super().releases(), Release("model update of round 1", False, text))

    @property
    def _noise_per(self) -> NoisePer:
        """As set; there is no difference for one copy."""
        return self.noise_per if self.copies > 1 else "row"

    def start(self, clients: int) -> State:
        """Return an empty state."""
        return {
            **super().start(clients),
            "soft": torch.full((clients, self.models), 1 / self.models, dtype=torch.float64),
            "overlap": torch.zeros(1, dtype=torch.float64),
        }

    def offers(self, number: int, state: State) -> bool:
        """Once the clusters are no longer drawn."""
        return number > self._last_drawn(state)

    def place(self, view: RoundView, state: State, rng: ServerRng) -> list[int]:
        """On the first model, then drawn, then where they chose to be."""
        if view.round == 1 or view.round > self._last_drawn(state):
            return self.assignments(view.clients, state)
        uniforms = rng.uniform("cluster", len(state["soft"]))[list(view.clients)]
        return mixture.drawn(state["soft"][list(view.clients)], uniforms)

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, rng: ServerRng) -> tuple[list[int], State]:
        """Learn the clusters from the first round, in which no model moves."""
        if view.round > 1:
            return super().absorb(view, placed, state, rng)
        seed = int(rng.uniform("mixture", 1) * 2**31)
        points = mixture.plane(view.matrix.sample(), self.features)
        found = mixture.fitted(points, self.clusters, seed, self.most, self.mixing)
        number = found.soft.shape[1]
        # Who was not there may be of any of the clusters that were found.
        soft = torch.zeros_like(state["soft"])
        soft[:, :number] = 1 / number
        soft[list(view.clients), :number] = found.soft
        learnt = {**state, "soft": soft, "overlap": torch.tensor([found.overlap], dtype=torch.float64)}
        likely = found.soft.argmax(1).tolist()
        rounds = torch.tensor([view.rounds], dtype=torch.float64)
        return [NO_MODEL] * len(placed), {**_moved(learnt, view.clients, likely), "rounds": rounds}

    def _last_drawn(self, state: State) -> int:
        """The last round on a cluster that was drawn."""
        if self.switch or "rounds" not in state:
            return (self.switch or 2) + 1
        return mixture.sampled_rounds(float(state["overlap"]), int(state["rounds"])) + 1


@dataclass(frozen=True)
class KMeansEachRound(_Several):
    """KM-CDPFL: after every round k-means on the updates says who belongs together."""

    rule: ClassVar[str] = "kmeans-each-round"
    clusters: int = 2

    def __post_init__(self) -> None:
        _check_number(self.clusters)

    def absorb(self, view: RoundView, placed: Sequence[int], state: State, rng: ServerRng) -> tuple[list[int], State]:
        """Cluster the updates; a cluster takes the name that most of its members had."""
        labels = mixture.kmeans(view.matrix.sample(), self.clusters, int(rng.uniform("kmeans", 1) * 2**31))
        joined = mixture.matched(labels, list(placed), self.clusters)
        return joined, _moved(state, view.clients, joined)


@dataclass(frozen=True)
class ByInputMean(Assign):
    """By the noisy means of the inputs that clients released at enrolment: as many models as there is evidence for.

    Whose data differ as a whole, by a rotation, a sensor or a quality, differ in the mean of their inputs. Clients are
    divided as long as noise and the usual differences between clients do not explain the division
    (`hush.recipes.estimators.mean_clusters`), into at most `most` clusters; who differ in their labels alone stay
    together. The means are those that `protect.centre` pays for. Without them there is one model.
    """

    rule: ClassVar[str] = "by-input-mean"
    most: int = 6

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most: expected 1 or more, found {self.most}")

    @property
    def number_given(self) -> bool:
        """It is found."""
        return False

    def start(self, clients: int) -> State:
        """Return a state with all clients on one model."""
        return {"assignments": torch.zeros(clients, dtype=torch.int64)}

    def clustered(self, means: Tensor, variances: Tensor) -> list[int]:
        """Return the cluster of each client."""
        return mean_clusters.clusters(means, variances, self.most)

    def enrolled(self, placed: Sequence[int], state: State) -> State:
        """Store the cluster of each client."""
        return {**state, "assignments": torch.tensor(list(placed), dtype=torch.int64)}

    def assignments(self, clients: Sequence[int], state: State) -> list[int]:
        """Return the cluster of each client."""
        return [int(model) for model in state["assignments"][list(clients)]]


def _check_number(clusters: int) -> None:
    if clusters < 1:
        raise ValueError(f"clusters: expected 1 or more, found {clusters}")


def _moved(state: State, clients: Sequence[int], models: Sequence[int]) -> State:
    assignments = state["assignments"].clone()
    assignments[list(clients)] = torch.tensor(list(models))
    return {**state, "assignments": assignments}
